#include "worker/model/model.h"

#include "common/json.h"
#include "tests/unit/worker/model/training_fixture.h"
#include "worker/model/fingerprint.h"
#include "worker/model/generate.h"
#include "worker/model/scalar_math.h"
#include "worker/plan/recording_device.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace rubato::worker::testing {
namespace {

class ModelTest : public EachFamily {};
class Fingerprint : public EachFamily {};
RUBATO_EACH_FAMILY(ModelTest);
RUBATO_EACH_FAMILY(Fingerprint);

TEST(ScalarMath, AgreesWithLibm) {
  for (double x : {1e-300, 1e-5, 0.3, 0.99999, 1.0, 1.5, 2.0, 1e10, 1e300})
    EXPECT_NEAR(log_of(x), std::log(x), 4e-16 * std::max(1.0, std::abs(std::log(x)))) << x;
  for (int i = -200; i <= 200; ++i)
    EXPECT_NEAR(cos_of_pi(i / 100.0), std::cos(std::numbers::pi * i / 100.0), 2e-15) << i;
  for (const double x : {0.0, -1e-9, -0.3, -2.0, -13.1, -600.0})
    EXPECT_NEAR(exp_of(x) / std::exp(x), 1.0, 1e-9) << x;
  for (const std::uint64_t n : {0u, 1u, 2u, 17u, 1000u})
    EXPECT_NEAR(power_of(0.95, n), std::pow(0.95, static_cast<double>(n)), 1e-14);
}

TEST(ScalarMath, NormalNumbersAreNormal) {
  constexpr std::uint64_t kCount = 200000;
  double sum = 0, square = 0, fourth = 0;
  for (std::uint64_t i = 0; i < kCount; ++i) {
    const double x = normal_of(77, i);
    sum += x;
    square += x * x;
    fourth += x * x * x * x;
  }
  EXPECT_NEAR(sum / kCount, 0.0, 0.01);
  EXPECT_NEAR(square / kCount, 1.0, 0.02);
  EXPECT_NEAR(fourth / kCount, 3.0, 0.12);
}

TEST(LearningRate, WarmsUpAndFollowsTheCosine) {
  const OptimizerConfig config{
      .learning_rate = 1.0, .min_learning_rate = 0.1, .warmup_steps = 10, .decay_steps = 110};
  EXPECT_DOUBLE_EQ(learning_rate_at(config, 0), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate_at(config, 9), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate_at(config, 10), 1.0);
  EXPECT_NEAR(learning_rate_at(config, 60), 0.55, 1e-15);
  EXPECT_DOUBLE_EQ(learning_rate_at(config, 110), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate_at(config, 1000000), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate_at({.learning_rate = 2.0}, 5), 2.0);
  EXPECT_FALSE(OptimizerConfig{.learning_rate = -1}.validate().ok());
  // As f32 these would divide by zero: 1 - beta is 0, and so is epsilon.
  EXPECT_EQ(OptimizerConfig{.beta1 = 0.99999999}.validate().error().what(),
            "beta1 must lie in [0, 0.9999999]");
  EXPECT_FALSE(OptimizerConfig{.beta2 = 0.99999999}.validate().ok());
  EXPECT_EQ(OptimizerConfig{.epsilon = 1e-38}.validate().error().what(),
            "epsilon must lie in (1e-37, 1]");
  EXPECT_TRUE(
      (OptimizerConfig{.beta1 = 0.9999999, .beta2 = 0.9999999, .epsilon = 2e-37}).validate().ok());
  EXPECT_FALSE((OptimizerConfig{.warmup_steps = 5, .decay_steps = 3}).validate().ok());
}

TEST(ModelConfigTest, HuggingFaceRoundTripAndRefusals) {
  const ModelConfig big = model_preset("gpt2-124m").value();
  EXPECT_EQ(from_huggingface_config(to_huggingface_config(big)).value(), big);
  EXPECT_FALSE(model_preset("gpt5").ok());
  ModelConfig bad = tiny_config();
  bad.heads = 5;
  EXPECT_EQ(bad.validate().error().code(), Code::kInvalid);
  bad = tiny_config();
  bad.family = "mamba";
  EXPECT_EQ(bad.validate().error().code(), Code::kInvalid);
}

TEST(ModelConfigTest, LlamasRoundTripAndRefusals) {
  for (const char* preset : {"llama-tiny", "llama-3.2-1b", "llama-2-7b"}) {
    const ModelConfig config = model_preset(preset).value();
    EXPECT_EQ(from_huggingface_config(to_huggingface_config(config)).value(), config) << preset;
  }
  const auto refused = [](auto change) {
    ModelConfig bad = tiny_llama();
    change(bad);
    const Status status = bad.validate();
    return status.ok() ? std::string("accepted") : status.error().what();
  };
  EXPECT_EQ(refused([](ModelConfig& c) { c.kv_heads = 0; }), "kvHeads is 0, but must lie in 1..2");
  EXPECT_EQ(refused([](ModelConfig& c) { c.mlp_hidden = 40; }),
            "mlpHidden is 40, but must be a multiple of 16 in the family llama");
  EXPECT_EQ(refused([](ModelConfig& c) { c.heads = 4; }),
            "the size of a head (hidden / heads) is 8, but must be a multiple of 16 in the family "
            "llama");
}

// What asks for another computation than ours is refused by its name.
TEST(ModelConfigTest, MembersThatWouldComputeSomethingElseAreRefused) {
  const auto refused = [](const ModelConfig& config, const char* member, json::Value value) {
    json::Value changed = to_huggingface_config(config);
    changed.set(member, std::move(value));
    const auto read = from_huggingface_config(changed);
    return read.ok() ? std::string("accepted") : read.error().what();
  };
  EXPECT_EQ(refused(tiny_config(), "activation_function", "relu"),
            "config.json: activation_function is \"relu\", this program computes with "
            "\"gelu_new\" only");
  EXPECT_EQ(refused(tiny_config(), "n_inner", 64),
            "config.json: n_inner is 64, this program computes with 128 only");
  EXPECT_EQ(refused(tiny_config(), "add_cross_attention", true),
            "config.json: add_cross_attention is true, this program computes with false only");
  EXPECT_EQ(refused(tiny_config(), "n_embd", std::int64_t{1} << 62).substr(0, 6), "hidden");
  EXPECT_EQ(refused(tiny_llama(), "attention_bias", true),
            "config.json: attention_bias is true, this program computes with false only");
  EXPECT_EQ(refused(tiny_llama(), "head_dim", 32),
            "config.json: head_dim is 32, this program computes with 16 only");
  EXPECT_EQ(refused(tiny_llama(), "rope_parameters",
                    json::Value::object({{"rope_type", "yarn"}, {"rope_theta", 10000.0}})),
            "config.json: rope_type is 'yarn', this program computes with default and llama3 only");
  EXPECT_EQ(refused(tiny_llama(), "hidden_size", nullptr), "config.json: hidden_size is missing");
  EXPECT_EQ(refused(tiny_llama(), "model_type", "mixtral"),
            "config.json: model_type is 'mixtral', this program has gpt2 and llama");
}

// A fallback in its place would compute something else, and nobody would be told.
TEST(ModelConfigTest, MembersOfAnotherTypeAreRefused) {
  using json::Value;
  const auto refused = [](const ModelConfig& config, const char* member, Value value) {
    const std::string named = std::string("config.json: ") + member + " is " + json::dump(value);
    const auto read =
        from_huggingface_config(to_huggingface_config(config).set(member, std::move(value)));
    if (read.ok()) return std::string("accepted");
    EXPECT_TRUE(read.error().what().starts_with(named)) << read.error().what();
    return read.error().what().substr(std::min(named.size(), read.error().what().size()));
  };
  for (const Value& value : {Value("1"), Value(true), Value::array({1})}) {
    EXPECT_EQ(refused(tiny_config(), "layer_norm_epsilon", value), ", which is no number");
    EXPECT_EQ(refused(tiny_llama(), "rms_norm_eps", value), ", which is no number");
    EXPECT_EQ(refused(tiny_llama(), "num_key_value_heads", value), ", which is no integer");
    EXPECT_EQ(refused(tiny_llama(), "num_hidden_layers", value), ", which is no integer");
  }
  for (const Value& value : {Value("true"), Value(1), Value::array({true})})
    EXPECT_EQ(refused(tiny_llama(), "tie_word_embeddings", value),
              ", which is neither true nor false");
  EXPECT_EQ(refused(tiny_llama(), "num_hidden_layers", 2.5), ", which is no integer");
  EXPECT_EQ(refused(tiny_llama(), "num_hidden_layers", 1e300), ", which is no integer");
}

// As YAML and tables write them.
TEST(ModelConfigTest, IntegersMayHaveAPoint) {
  json::Value config = to_huggingface_config(tiny_llama());
  for (auto& [member, value] : config.mutable_members())
    if (value.is_int()) value = static_cast<double>(value.int_or(0));
  EXPECT_EQ(from_huggingface_config(config).value(), tiny_llama());
  EXPECT_TRUE(config["head_dim"].type() == json::Value::Type::kDouble);
}

// Two places of one number: which of them counts depends on the version of transformers.
TEST(ModelConfigTest, PlacesOfTheRotaryEmbeddingMustAgree) {
  const auto read = [](const json::Value& parameters, const json::Value& scaling,
                       const json::Value& theta, const json::Value& original) {
    json::Value config = to_huggingface_config(tiny_llama());
    config.set("rope_parameters", parameters).set("rope_scaling", scaling);
    config.set("rope_theta", theta).set("original_max_position_embeddings", original);
    const auto made = from_huggingface_config(config);
    if (!made.ok()) return made.error().what();
    return json::dump(made->rope_theta) + " " + json::dump(made->rope_scaling.factor) + " " +
           std::to_string(made->rope_scaling.original_length);
  };
  const auto object = [](const char* text) { return json::parse(text).value(); };
  const json::Value none, plain = object(R"({"rope_type": "default"})");
  const json::Value llama3 = object(R"({"rope_type": "llama3", "factor": 8, "low_freq_factor": 1,
      "high_freq_factor": 4, "original_max_position_embeddings": 16})");
  json::Value other = llama3, shorter = llama3, with_theta = plain;
  other.set("factor", 4.0);
  shorter.erase("original_max_position_embeddings");
  with_theta.set("rope_theta", 50);
  EXPECT_EQ(read(none, none, none, none), read(plain, plain, 10000, none));
  EXPECT_EQ(read(plain, none, 500000, none), read(none, none, 500000.0, none));
  EXPECT_EQ(read(with_theta, none, none, none), read(none, plain, 50.0, none));
  EXPECT_EQ(read(llama3, llama3, none, 16), "10000.0 8.0 16");
  EXPECT_EQ(read(none, shorter, none, 16), "10000.0 8.0 16");
  EXPECT_EQ(read(with_theta, none, 500000, none),
            "config.json: rope_theta is 50 in one place and 500000 in another");
  EXPECT_EQ(read(plain, none, "500000", none),
            "config.json: rope_theta is \"500000\", which is no number");
  EXPECT_EQ(read(plain, llama3, none, none),
            "config.json: rope_type is 'default' in rope_parameters and 'llama3' in rope_scaling");
  EXPECT_EQ(read(plain, object(R"({"type": "yarn"})"), none, none),
            "config.json: rope_type is 'yarn', this program computes with default and llama3 only");
  EXPECT_EQ(read(llama3, other, none, none),
            "config.json: factor is 8 in one place and 4.0 in another");
  EXPECT_EQ(read(llama3, none, none, 8),
            "config.json: original_max_position_embeddings is 16 in one place and 8 in another");
  EXPECT_EQ(read(shorter, none, none, none),
            "config.json: original_max_position_embeddings is missing");
  EXPECT_EQ(
      read(object(R"({"rope_type": "default", "partial_rotary_factor": 0.5})"), none, none, none),
      "config.json: partial_rotary_factor is 0.5, this program computes with 1.0 only");
}

TEST(ParameterTableTest, BlocksAreNeverShared) {
  const auto device = take(open_test_device());
  const auto model = take(make_model(tiny_config(), 1, *device));
  const ParameterTable& table = model->table();
  std::int64_t end = 0;
  for (const Parameter& entry : table.entries()) {
    EXPECT_EQ(entry.offset, end);
    EXPECT_EQ(entry.offset % kBlockElements, 0);
    EXPECT_EQ(entry.slot % kBlockElements, 0);
    EXPECT_LE(entry.count, entry.slot);
    end = entry.offset + entry.slot;
  }
  EXPECT_EQ(end, table.flat_count());
  const auto llama = take(make_model(tiny_llama(), 1, *device));
  EXPECT_EQ(llama->table().find("model.layers.1.self_attn.k_proj.weight")->shape,
            (std::vector<std::int64_t>{16, 32}));
  EXPECT_EQ(llama->table().parameter_count(),
            2 * 61 * 32 + 2 * (2 * 32 * 32 + 2 * 16 * 32 + 3 * 48 * 32 + 2 * 32) + 32);
  EXPECT_EQ(table.find("transformer.h.1.mlp.c_fc.weight")->shape,
            (std::vector<std::int64_t>{32, 128}));
  EXPECT_FALSE(table.find("transformer.h.1.ln_2.weight")->decays);
  const ModelConfig big = model_preset("gpt2-124m").value();
  EXPECT_EQ(big.layers * 7087872 + 50257 * 768 + 1024 * 768 + 2 * 768, 124439808);
}

// The micro-batch's gradient may depend on nothing that was in the buffers before, and its padding
// must be zero: padding in parameters stays zero for ever.
TEST_P(ModelTest, GradientsAreOverwrittenAndPaddingStaysZero) {
  SmallJob job(GetParam(), 2, 2, {});
  const auto tokens = job.tokens(0, 0);
  const auto hash = [&] {
    const std::vector<float> values = job.read(job.gradient);
    return digest_of(values.data(), values.size() * sizeof(float));
  };
  take(job.model->forward_backward(*job.stream, tokens, job.state.parameters(), job.gradient));
  const std::uint64_t first = hash();
  take(job.model->forward_backward(*job.stream, job.tokens(3, 1), job.state.parameters(),
                                   job.gradient));
  EXPECT_NE(hash(), first);
  job.device->memset(*job.stream, job.gradient, 0x7F);
  take(job.model->evaluate(*job.stream, job.tokens(9, 1), job.state.parameters()));
  take(job.model->forward_backward(*job.stream, tokens, job.state.parameters(), job.gradient));
  EXPECT_EQ(hash(), first);

  for (int i = 0; i < 3; ++i) job.step(job.one_worker());
  for (const Buffer flat : {job.gradient, job.state.parameters(), job.state.exp_avg()}) {
    const std::vector<float> values = job.read(flat);
    for (const Parameter& entry : job.model->table().entries())
      for (std::int64_t i = entry.count; i < entry.slot; ++i)
        ASSERT_EQ(values[static_cast<std::size_t>(entry.offset + i)], 0.0f)
            << entry.name << " " << i;
  }
}

TEST_P(ModelTest, LossesAgreeAndWrongTokensAreRefused) {
  SmallJob job(GetParam(), 2, 2, {});
  const auto tokens = job.tokens(0, 0);
  const MicroLoss trained =
      take(job.model->forward_backward(*job.stream, tokens, job.state.parameters(), job.gradient));
  const MicroLoss evaluated =
      take(job.model->evaluate(*job.stream, tokens, job.state.parameters()));
  EXPECT_EQ(trained.fixed, evaluated.fixed);
  EXPECT_NEAR(static_cast<double>(trained.mean), step_loss(trained.fixed, 1), 1e-6);
  auto wrong = tokens;
  wrong[5] = 61;
  EXPECT_EQ(job.model->evaluate(*job.stream, wrong, job.state.parameters()).error().code(),
            Code::kInvalid);
  wrong.pop_back();
  EXPECT_EQ(job.model->evaluate(*job.stream, wrong, job.state.parameters()).error().code(),
            Code::kInvalid);
  EXPECT_FALSE(make_micro_loss(NAN).is_finite);
  EXPECT_FALSE(make_micro_loss(INFINITY).is_finite);
}

TEST_P(Fingerprint, IsStableAndSeesTheJob) {
  SmallJob job(GetParam(), 2, 2, {});
  const std::uint64_t before = job.hash();
  const OptimizerConfig optimizer;
  const auto print = [&](Model& model, const OptimizerConfig& o) {
    return take(numerics_fingerprint(*job.device, *job.stream, model, o));
  };
  const std::string first = print(*job.model, optimizer);
  EXPECT_EQ(print(*job.model, optimizer), first);
  EXPECT_NE(print(*job.model, {.learning_rate = 1e-3}), first);
  const auto other = take(make_model(GetParam(), 3, *job.device));
  EXPECT_NE(print(*other, optimizer), first);
  EXPECT_EQ(job.hash(), before) << "the job's state was touched";
}

// What a replica has is memory enough, whatever the job's number of micro-batches.
TEST_P(Fingerprint, IsTheSameInTheMemoryOfAJobAndLeavesItZero) {
  for (const int numerics : {1, 2}) {
    SmallJob job(GetParam(), 2, 2, {});
    const ParameterTable& table = job.model->table();
    auto state = take(TrainingState::create(*job.device, table));
    const std::uint64_t before = take(state.digest(*job.device, *job.stream));
    auto sum = take(ExactSum::create(*job.device, table, 3, numerics));
    auto adamw = take(AdamW::create({}, *job.device, table));
    auto arena = take(job.device->allocate(Arena::bytes_for(DType::kF32, table.flat_count())));
    const Buffer gradient = arena.take(DType::kF32, table.flat_count());
    const auto own =
        numerics_fingerprint(*job.device, *job.stream, *job.model, {}, numerics).value();
    for (int i = 0; i < 2; ++i)
      EXPECT_EQ(take(numerics_fingerprint(*job.device, *job.stream, *job.model, {},
                                          {state, sum, adamw, gradient})),
                own);
    EXPECT_EQ(take(state.digest(*job.device, *job.stream)), before);
  }
}

TEST_P(Fingerprint, NamesTheNumericsInUse) {
  SmallJob job(GetParam(), 2, 2, {});
  const auto print = [&](int numerics) {
    return numerics_fingerprint(*job.device, *job.stream, *job.model, {}, numerics);
  };
  for (const int version : {1, 2, 3}) EXPECT_EQ(numerics_version_of(take(print(version))), version);
  EXPECT_NE(take(print(1)).substr(2), take(print(2)).substr(2));
  EXPECT_EQ(print(kNumericsVersion + 1).error().code(), Code::kInvalid);
  EXPECT_EQ(numerics_version_of(""), 0);
  EXPECT_EQ(numerics_version_of("f00d-1"), 0);
  EXPECT_EQ(numerics_version_of("12"), 0);
  EXPECT_EQ(numerics_version_of("12-cpu/avx2"), 12);
}

TEST(Generate, TheLastRowOfLogitsHasTheBitsThatItHasAmongAll) {
  for (const std::int64_t batch : {1, 4}) {  // as many rows at a time as a micro-batch has
    SmallJob job(tiny_config(), batch, batch, {});
    const std::int64_t length = job.model->config().sequence_length;
    for (const std::int64_t count : {std::int64_t{1}, length / 2 + 1, length}) {
      const std::vector<std::int32_t> tokens(static_cast<std::size_t>(count), 5);
      std::vector<float> all, last;
      ASSERT_TRUE(job.model->logits(*job.stream, tokens, job.state.parameters(), all).ok());
      ASSERT_TRUE(job.model->last_logits(*job.stream, tokens, job.state.parameters(), last).ok());
      EXPECT_TRUE(std::ranges::equal(last, std::span(all).last(last.size())));
      EXPECT_EQ(last.size(), static_cast<std::size_t>(job.model->config().vocabulary));
    }
  }
}

// Its blocks take turns with the same buffers, and give the bits of one that keeps them all.
TEST_P(ModelTest, OneWithoutABackwardPassHasTheMemoryOfOneBlock) {
  SmallJob job(GetParam(), 1, 1, {});
  const auto forward = take(make_forward_model(GetParam(), *job.device));
  const std::vector<std::int32_t> tokens = {3, 60, 0, 5, 5, 17, 2};
  std::vector<float> kept, shared;
  for (int turn = 0; turn < 2; ++turn) {
    ASSERT_TRUE(job.model->logits(*job.stream, tokens, job.state.parameters(), kept).ok());
    ASSERT_TRUE(forward->logits(*job.stream, tokens, job.state.parameters(), shared).ok());
    EXPECT_EQ(kept, shared);
  }
  const auto bytes = [](ModelConfig config, std::int64_t layers, bool has_backward) {
    RecordingDevice device(Precision::kF32);
    config.layers = layers;
    const auto model =
        take(has_backward ? make_model(config, 1, device) : make_forward_model(config, device));
    return device.allocated();
  };
  EXPECT_EQ(bytes(GetParam(), 9, false), bytes(GetParam(), 1, false));
  EXPECT_LT(bytes(GetParam(), 1, false), bytes(GetParam(), 1, true));
}

TEST(Generate, OfWeightsThatAreNotFiniteIsAnError) {
  SmallJob job(tiny_config(), 4, 4, {});
  const std::vector<float> broken(static_cast<std::size_t>(job.state.parameters().count()), NAN);
  job.device->copy_to_device(*job.stream, job.state.parameters(), broken.data());
  const auto made = generate(*job.stream, *job.model, job.state.parameters(), {5}, {.tokens = 3});
  ASSERT_FALSE(made.ok());
  EXPECT_NE(made.error().what().find("not finite"), std::string::npos);
}

TEST(Generate, IsRepeatableAndLearnsTheText) {
  SmallJob job(tiny_config(), 4, 4, {.learning_rate = 3e-3});
  for (int i = 0; i < 120; ++i) job.step(job.one_worker());
  const auto make = [&](GenerateOptions options) {
    return take(generate(*job.stream, *job.model, job.state.parameters(), {5}, options));
  };
  const auto text = make({.tokens = 40, .temperature = 0.3, .seed = 1});
  ASSERT_EQ(text.size(), 40u);
  EXPECT_EQ(make({.tokens = 40, .temperature = 0.3, .seed = 1}), text);
  EXPECT_NE(make({.tokens = 40, .temperature = 1.0, .seed = 2}), text);
  // Each token has two successors (see SmallJob::tokens); a trained model takes one of them.
  int good = 0;
  std::int32_t before = 5;
  for (const std::int32_t token : text) {
    good += token == (before * 3 + 1) % 61 || token == (before * 3 + 2) % 61 ? 1 : 0;
    before = token;
  }
  EXPECT_GT(good, 32);
  EXPECT_EQ(make({.tokens = 40, .temperature = 0, .seed = 1}),
            make({.tokens = 40, .temperature = 1.0, .top_k = 1, .seed = 9}));
}

}  // namespace
}  // namespace rubato::worker::testing
