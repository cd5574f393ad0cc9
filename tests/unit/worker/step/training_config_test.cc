#include "worker/step/training_config.h"

#include "common/json.h"
#include "operator/api/job_spec.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace rubato::worker {
namespace {

const std::string kGood = R"({
  "model": {"family": "gpt2", "layers": 2, "hidden": 64, "heads": 2, "vocab": 256},
  "data": {"path": "/data/t.bin", "validationFraction": 0.1},
  "batch": {"global": 16, "micro": 2, "sequenceLength": 32},
  "optimizer": {"name": "adamw", "learningRate": 0.001, "betas": [0.8, 0.9],
                "schedule": {"warmupSteps": 5, "decay": "cosine", "minLearningRate": 0.0001}},
  "stop": {"steps": 50}, "seed": 7, "evaluateEvery": 10, "reduce": "exact",
  "checkpoint": {"every": 20, "path": "/ckpt", "keep": 2}})";

TEST(TrainingConfig, ReadsTheSpec) {
  const auto config = parse_training(kGood);
  ASSERT_TRUE(config.ok()) << config.error().to_string();
  EXPECT_EQ(config.value().model.hidden, 64);
  EXPECT_EQ(config.value().model.sequence_length, 32);
  EXPECT_EQ(config.value().sampler.global_batch, 16);
  EXPECT_EQ(config.value().sampler.seed, 7u);
  EXPECT_EQ(config.value().optimizer.beta1, 0.8);
  EXPECT_EQ(config.value().optimizer.decay_steps, 50);  // unset: where training stops
  EXPECT_EQ(config.value().checkpoint_keep, 2);
}

TEST(TrainingConfig, ReadsALlama) {
  const auto with = [](const std::string& model) {
    std::string text = kGood;
    const std::string old = R"("family": "gpt2")";
    return parse_training(text.replace(text.find(old), old.size(), model));
  };
  const auto config =
      with(R"("family": "llama", "kvHeads": 1, "mlpHidden": 96, "ropeTheta": 500000.0,
              "ropeScaling": {"factor": 8, "originalLength": 16}, "normEpsilon": 1e-6,
              "tieEmbeddings": true)");
  ASSERT_TRUE(config.ok()) << config.error().to_string();
  const ModelConfig& model = config.value().model;
  EXPECT_EQ(model.kv_heads, 1);
  EXPECT_EQ(model.mlp_hidden, 96);
  EXPECT_EQ(model.rope_theta, 500000);
  EXPECT_EQ(model.rope_scaling, (RopeScaling{.factor = 8, .original_length = 16}));
  EXPECT_EQ(model.norm_epsilon, 1e-6f);
  EXPECT_TRUE(model.has_tied_head);
  EXPECT_FALSE(with(R"("family": "llama")").ok());
  EXPECT_EQ(with(R"("family": "gpt2", "kvHeads": 1)").error().what(),
            "training.model.kvHeads is of family llama, the model is of gpt2");
}

Result<TrainingConfig> without(const std::string& part, const std::string& instead) {
  std::string text = kGood;
  text.replace(text.find(part), part.size(), instead);
  return parse_training(text);
}

// A field that is passed over is a training that nobody asked for.
TEST(TrainingConfig, KnowsEachFieldOrRefusesIt) {
  const auto why = [](const Result<TrainingConfig>& config) {
    return config.ok() ? "accepted" : std::string(config.error().what());
  };
  EXPECT_EQ(why(without("\"seed\": 7", "\"seeds\": 7")),
            "this worker does not know training.seeds");
  EXPECT_EQ(why(without("\"warmupSteps\"", "\"warmup\"")),
            "this worker does not know training.optimizer.schedule.warmup");
  EXPECT_EQ(why(without("\"micro\": 2", "\"micro\": \"2\"")),
            "training.batch.micro has the wrong type");
  EXPECT_EQ(why(without("[0.8, 0.9]", "[0.8, \"0.9\"]")),
            "training.optimizer.betas has the wrong type");
  EXPECT_EQ(why(without("\"seed\": 7", "\"precision\": \"fp16\"")),
            "training.precision \"fp16\" is not known; it must be f32 or bf16");
  EXPECT_EQ(why(without("\"adamw\"", "\"sgd\"")),
            "training.optimizer.name \"sgd\" is not possible here; it must be adamw");
}

// The smallest and the largest value of a number that the API server takes.
struct Bounds {
  std::string path;
  double least, most;
};

void add_bounds(const api::ObjectSchema& object, const std::string& prefix,
                std::vector<Bounds>& out) {
  for (const api::FieldSchema& field : object.fields()) {
    const api::TypeSchema& type = field.type;
    if (type.object != nullptr) add_bounds(*type.object, prefix + field.name + ".", out);
    if (!type.minimum && !type.maximum) continue;
    const double least = type.minimum.value_or(1);
    out.push_back({prefix + field.name, type.exclusive_minimum ? least + 1e-12 : least,
                   type.maximum.value_or(1e12)});
  }
}

// kGood with that number, and with others that go with it.
json::Value spec_with(const std::string& path, double number) {
  json::Value spec = json::parse(kGood).value();
  const auto put = [&spec](const std::string& at, double value) {
    json::Value* object = &spec;
    std::size_t from = 0;
    for (std::size_t dot = at.find('.'); dot != std::string::npos; dot = at.find('.', from)) {
      object = &object->at(at.substr(from, dot - from));
      from = dot + 1;
    }
    const bool is_whole = value == std::floor(value) && std::abs(value) < 9e15;
    object->set(at.substr(from),
                is_whole ? json::Value(static_cast<std::int64_t>(value)) : json::Value(value));
  };
  put("optimizer.schedule.warmupSteps", 0);
  put("optimizer.schedule.minLearningRate", 0);
  put("optimizer.learningRate", 100);
  put("model.hidden", 65536);
  put("model.heads", 1);
  put("batch.global", 16777216);
  put("batch.micro", 1);
  put("stop.steps", 1e12);
  if (path == "batch.micro") put("batch.global", number);
  constexpr std::string_view kOfLlama[] = {"kv", "mlp", "rope", "norm"};
  if (std::ranges::any_of(kOfLlama, [&](auto part) {
        return std::string_view(path).starts_with("model." + std::string(part));
      })) {
    spec.at("model").set("family", "llama");
    spec.at("model").set("ropeScaling", json::Value::object({{"factor", 2}}));
    put("model.heads", 1024);
    put("model.mlpHidden", 96);
  }
  put(path, number);
  return spec;
}

// Whatever number the API server takes the worker takes, and a model that it refuses so does the
// worker (common/training_limits.h).
TEST(TrainingConfig, BoundsAreThoseOfTheApi) {
  std::vector<Bounds> all;
  add_bounds(api::TrainingSpec::schema(), "", all);
  ASSERT_GT(all.size(), 15u);
  int refused = 0;
  for (const Bounds& bounds : all) {
    for (const double number : {bounds.least, bounds.most}) {
      if (bounds.path == "optimizer.schedule.minLearningRate" && number > 100) continue;
      if (bounds.path == "data.validationFraction" && number > 0.5) continue;  // a rule's
      if (bounds.path.starts_with("parallelism.")) continue;                   // a rule's
      if (bounds.path.ends_with("FrequencyFactor")) continue;                  // a rule's
      const auto config = parse_training(json::dump(spec_with(bounds.path, number)));
      EXPECT_TRUE(config.ok()) << bounds.path << " = " << number << ": " << config.error().what();
    }
    const bool is_of_numerics = bounds.path.starts_with("model.") || bounds.path == "batch.micro" ||
                                bounds.path == "batch.sequenceLength" ||
                                (bounds.path.starts_with("optimizer.") && bounds.most <= 100);
    if (!is_of_numerics) continue;
    ++refused;
    const double beyond = bounds.most > 1 ? bounds.most + bounds.least : bounds.most + 0.01;
    EXPECT_FALSE(parse_training(json::dump(spec_with(bounds.path, beyond))).ok())
        << bounds.path << " = " << beyond;
  }
  EXPECT_GE(refused, 8);
}

TEST(TrainingConfig, SaysWhatIsWrong) {
  EXPECT_FALSE(without("\"micro\": 2", "\"micro\": 3").ok());
  EXPECT_FALSE(without("/data/t.bin", "").ok());
  EXPECT_FALSE(without("\"steps\": 50", "\"steps\": 0").ok());
  EXPECT_FALSE(without("\"exact\"", "\"fast\"").ok());
  EXPECT_FALSE(without("\"heads\": 2", "\"heads\": 3").ok());
  EXPECT_FALSE(parse_training("{").ok());
}

}  // namespace
}  // namespace rubato::worker
