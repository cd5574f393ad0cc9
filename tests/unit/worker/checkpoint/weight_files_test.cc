// Hugging Face folders: in and out with equal bits, and refused when anything does not fit.
#include "worker/checkpoint/weight_files.h"

#include "common/json.h"
#include "tests/unit/worker/model/training_fixture.h"
#include "tests/unit/worker/support/troubled_files.h"
#include "worker/checkpoint/widen.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <unistd.h>

namespace rubato::worker::testing {
namespace {

namespace fs = std::filesystem;

class WeightFilesTest : public EachFamily {
 protected:
  WeightFilesTest()
      : device(take(open_test_device())), model(take(make_model(GetParam(), 1, *device))) {
    char made[] = "/tmp/rubato-weights-XXXXXX";
    folder = mkdtemp(made);
    weights.resize(static_cast<std::size_t>(table().flat_count()));
    model->init(3, weights);
  }
  ~WeightFilesTest() override { fs::remove_all(folder); }

  const ParameterTable& table() const { return model->table(); }
  void write(std::uint64_t shard_bytes) {
    ASSERT_TRUE(
        write_weights(files, folder, GetParam(), table(), weights, {.shard_bytes = shard_bytes})
            .ok());
  }
  // What reading says, without the folder's name; empty: nothing.
  std::string why(const ModelConfig& config) {
    std::vector<float> flat;
    const auto opened = WeightFiles::open(files, folder);
    Status status = opened.ok() ? opened->check(config) : Status(opened.error());
    if (status.ok()) status = opened->read(table(), flat);
    if (status.ok()) return flat == weights ? "" : "other weights";
    EXPECT_EQ(status.error().code() == Code::kInvalid || status.error().code() == Code::kNotFound,
              true);
    std::string text = status.error().what();
    for (std::size_t at = text.find(folder); at != std::string::npos; at = text.find(folder))
      text.erase(at, folder.size() + 1);
    return text;
  }
  std::string why() { return why(GetParam()); }
  void rewrite(const std::string& name, const std::function<void(std::string&)>& change) {
    std::string text = take(read_text(files, folder + "/" + name, 1 << 24));
    change(text);
    std::ofstream(folder + "/" + name, std::ios::binary) << text;
  }
  // All tensors in one file, changed.
  void write_changed(const std::function<void(std::vector<TensorView>&)>& change) {
    write(1 << 30);
    std::vector<TensorView> tensors;
    for (const Parameter& entry : table().entries())
      tensors.push_back({entry.name, "F32", entry.shape,
                         weights.data() + static_cast<std::size_t>(entry.offset),
                         static_cast<std::uint64_t>(entry.count) * 4});
    change(tensors);
    ASSERT_TRUE(write_safetensors(files, folder + "/model.safetensors", tensors, {}).ok());
  }
  bool is_llama() const { return GetParam().family == "llama"; }

  std::unique_ptr<Device> device;
  std::unique_ptr<Model> model;
  PosixFileSystem files;
  std::string folder;
  std::vector<float> weights;
};
RUBATO_EACH_FAMILY(WeightFilesTest);

TEST_P(WeightFilesTest, FoldersComeBackWithEqualBits) {
  for (const std::uint64_t most :
       {std::uint64_t{1} << 40, std::uint64_t{20000}, std::uint64_t{1}}) {
    write(most);
    EXPECT_EQ(why(), "");
    const bool is_sharded = most < 1u << 30;
    EXPECT_EQ(fs::exists(folder + "/model.safetensors.index.json"), is_sharded);
    EXPECT_EQ(fs::exists(folder + "/model.safetensors"), !is_sharded);
    for (const auto& entry : fs::directory_iterator(folder)) fs::remove(entry.path());
  }
}

TEST_P(WeightFilesTest, NamesMayLackTheirRootAndConstantsAreLeftOut) {
  const std::vector<float> constant(4);
  write_changed([&](std::vector<TensorView>& tensors) {
    for (TensorView& tensor : tensors)
      for (const std::string root : {"transformer.", "model."})
        if (tensor.name.starts_with(root)) tensor.name.erase(0, root.size());
    tensors.push_back({"h.0.attn.bias", "F32", {4}, constant.data(), 16});
    tensors.push_back({"layers.0.self_attn.rotary_emb.inv_freq", "F32", {4}, constant.data(), 16});
  });
  EXPECT_EQ(why(), "");
}

TEST_P(WeightFilesTest, HalfPrecisionIsWidened) {
  for (float& weight : weights)
    weight = std::bit_cast<float>(std::bit_cast<std::uint32_t>(weight) & 0xFFFF0000u);
  std::vector<std::uint16_t> half(weights.size());
  for (std::size_t i = 0; i < half.size(); ++i)
    half[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(weights[i]) >> 16);
  write_changed([&](std::vector<TensorView>& tensors) {
    for (TensorView& tensor : tensors) {
      const auto at = static_cast<const float*>(tensor.bytes) - weights.data();
      tensor.dtype = "BF16";
      tensor.bytes = half.data() + at;
      tensor.size /= 2;
    }
  });
  EXPECT_EQ(why(), "");
}

TEST(Widen, HalvesAreWhatTheyMean) {
  const auto half = [](std::uint16_t bits) {
    float out = 0;
    widen("F16", std::as_bytes(std::span(&bits, 1)), std::span(&out, 1));
    return out;
  };
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const std::uint32_t exponent = bits >> 10 & 31, fraction = bits & 1023;
    const float size = exponent == 31  ? (fraction == 0 ? INFINITY : NAN)
                       : exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                                       : std::ldexp(static_cast<float>(1024 + fraction),
                                                    static_cast<int>(exponent) - 25);
    const float want = bits < 0x8000 ? size : -size;
    const float got = half(static_cast<std::uint16_t>(bits));
    ASSERT_TRUE(std::isnan(want)
                    ? std::isnan(got)
                    : std::bit_cast<std::uint32_t>(got) == std::bit_cast<std::uint32_t>(want))
        << bits;
  }
}

TEST(Narrow, IsTheInverseAndRoundsToTheNearestAndTiesToEven) {
  for (const char* dtype : {"F16", "BF16"}) {
    const auto wide = [&](std::uint16_t bits) {
      float out = 0;
      widen(dtype, std::as_bytes(std::span(&bits, 1)), std::span(&out, 1));
      return out;
    };
    const auto narrowed = [&](float x) {
      std::uint16_t bits = 0;
      narrow(dtype, std::span(&x, 1), std::as_writable_bytes(std::span(&bits, 1)));
      return bits;
    };
    for (std::uint32_t i = 0; i < 0x10000; ++i) {
      const auto bits = static_cast<std::uint16_t>(i);
      const float low = wide(bits), high = wide(static_cast<std::uint16_t>(bits + 1));
      ASSERT_EQ(narrowed(low), bits) << dtype;
      if (!std::isfinite(low) || !std::isfinite(high)) continue;
      if (std::signbit(low) != std::signbit(high)) continue;
      const float middle = low / 2 + high / 2;
      ASSERT_EQ(narrowed(middle), bits % 2 == 0 ? bits : bits + 1) << dtype;
      ASSERT_EQ(narrowed(std::nextafter(middle, low)), bits) << dtype;
      ASSERT_EQ(narrowed(std::nextafter(middle, high)), bits + 1) << dtype;
    }
    const float bound = infinite_from(dtype);
    EXPECT_TRUE(std::isinf(wide(narrowed(bound))));
    EXPECT_TRUE(std::isinf(wide(narrowed(-bound))));
    EXPECT_TRUE(std::isfinite(wide(narrowed(std::nextafter(bound, 0.0f)))));
    const float smallest_nan = std::bit_cast<float>(0x7F800001u);  // its upper bits are infinity's
    EXPECT_TRUE(std::isnan(wide(narrowed(smallest_nan))));
  }
}

TEST_P(WeightFilesTest, AnotherModelIsRefusedByTheMember) {
  write(1 << 30);
  ModelConfig other = GetParam();
  other.layers = 3;
  EXPECT_EQ(why(other), is_llama() ? "config.json: num_hidden_layers: expected 3, found 2"
                                   : "config.json: n_layer: expected 3, found 2");
  other = GetParam();
  other.sequence_length *= 2;  // says nothing of the weights but for GPT-2's positions
  EXPECT_EQ(why(other), "");
  if (!is_llama()) return;
  other = GetParam();
  other.rope_theta = 500000;
  EXPECT_EQ(why(other), "config.json: rope_theta: expected 5e+05, found 10000.0");
}

// What stands in config.json alone would be computed by the job's word for it.
TEST_P(WeightFilesTest, WeightsWithoutTheirConfigurationAreRefused) {
  write(1 << 30);
  fs::remove(folder + "/config.json");
  EXPECT_EQ(why(), " config.json: expected one, found none");
  const auto file = WeightFiles::open(files, folder + "/model.safetensors");
  EXPECT_EQ(file.error().what(), folder +
                                     "/model.safetensors: weights: expected a folder that has them "
                                     "and config.json, found a file");
}

TEST_P(WeightFilesTest, ATensorUnderBothOfItsNamesIsRefused) {
  const std::string first = table().entries()[0].name;
  const std::string other = first.substr(first.find('.') + 1);
  write_changed([&](std::vector<TensorView>& tensors) {
    tensors.push_back(tensors[0]);
    tensors.back().name = other;
  });
  EXPECT_EQ(why(),
            "model.safetensors: tensor " + other + ": expected it once, found it also as " + first);
}

TEST_P(WeightFilesTest, TensorsThatDoNotFitAreRefused) {
  const std::string first = table().entries()[0].name, last = table().entries().back().name;
  write_changed([](std::vector<TensorView>& tensors) { tensors.pop_back(); });
  EXPECT_EQ(why().substr(0, why().find(": expected")), "model.safetensors: tensor " + last);
  write_changed([](std::vector<TensorView>& tensors) {
    tensors[0].shape = {tensors[0].shape[1], tensors[0].shape[0]};
  });
  EXPECT_EQ(why(), "model.safetensors: tensor " + first + ": expected [61, 32], found [32, 61]");
  write_changed([](std::vector<TensorView>& tensors) { tensors[0].dtype = "I32"; });
  EXPECT_EQ(why(), "model.safetensors: tensor " + first + ": expected F32, BF16 or F16, found I32");
  write_changed([](std::vector<TensorView>& tensors) {
    tensors.push_back(tensors[1]);
    tensors.back().name = "model.layers.7.mlp.up_proj.weight";
  });
  EXPECT_EQ(why().substr(0, why().find(", found")),
            "model.safetensors: tensor model.layers.7.mlp.up_proj.weight: expected none (this "
            "model has no such tensor)");
}

TEST_P(WeightFilesTest, ACopyOfTheTiedHeadMustBeOne) {
  if (!GetParam().has_tied_head) return;
  std::vector<float> other(weights);
  for (const bool is_copy : {true, false}) {
    other[5] = is_copy ? weights[5] : 1.0f;
    write_changed([&](std::vector<TensorView>& tensors) {
      tensors.push_back(tensors[0]);
      tensors.back().name = "lm_head.weight";
      tensors.back().bytes = other.data();
    });
    EXPECT_EQ(why(), is_copy ? ""
                             : "model.safetensors: tensor lm_head.weight: expected the bytes of "
                               "transformer.wte.weight, to which this model's is tied, found "
                               "others");
  }
}

TEST_P(WeightFilesTest, LongerTablesOfPositionsAreCut) {
  if (is_llama()) return;
  write(1 << 30);
  ModelConfig shorter = GetParam();
  shorter.sequence_length = 9;
  const auto cut = take(make_model(shorter, 1, *device));
  std::vector<float> flat;
  ASSERT_TRUE(take(WeightFiles::open(files, folder)).read(cut->table(), flat).ok());
  const auto at = [](const Model& of) {
    return static_cast<std::size_t>(of.table().find("transformer.wpe.weight")->offset);
  };
  for (std::size_t i = 0; i < 9u * 32; ++i)
    ASSERT_EQ(flat[at(*cut) + i], weights[at(*model) + i]) << i;
}

TEST_P(WeightFilesTest, WhatCannotBeLookedAtIsNotMissing) {
  write(1 << 30);
  fs::remove(folder + "/config.json");
  fs::create_symlink("config.json", folder + "/config.json");
  EXPECT_EQ(why(), "looking at config.json: Too many levels of symbolic links");
}

TEST_P(WeightFilesTest, DamagedAndContradictoryFoldersAreRefused) {
  write(1 << 30);
  fs::remove(folder + "/model.safetensors");
  EXPECT_EQ(why(),
            " weights: expected model.safetensors or model.safetensors.index.json, found "
            "neither (save_pretrained() of transformers writes one)");
  std::ofstream(folder + "/pytorch_model.bin") << "pickled";
  EXPECT_EQ(why(),
            " weights: expected model.safetensors or model.safetensors.index.json, found neither, "
            "but pytorch_model.bin: load it with transformers, and save it with "
            "save_pretrained(folder, safe_serialization=True)");
  const auto file = WeightFiles::open(files, folder + "/pytorch_model.bin");
  ASSERT_FALSE(file.ok());
  EXPECT_NE(file.error().what().find("a folder that has them and config.json, found a file"),
            std::string::npos)
      << file.error().what();
  write(20000);
  const std::string index = "model.safetensors.index.json";
  const std::string kept = take(read_text(files, folder + "/" + index, 1 << 20));
  const json::Value map = take(json::parse(kept))["weight_map"];
  const std::string tensor = map.members()[0].first, shard = map.members()[0].second.string_or("");
  const std::string last = table().entries().back().name, second = table().entries()[1].name;
  const auto edit = [&](auto change) {
    rewrite(index, [&](std::string& text) {
      json::Value value = take(json::parse(kept));
      change(value.at("weight_map"));
      text = json::dump(value);
    });
  };
  edit([&](json::Value& v) { v.set(tensor, v[last].string_or("")); });
  EXPECT_EQ(why(), index + ": tensor " + tensor + ": expected it in " + map[last].string_or("") +
                       ", found " + shard);
  edit([&](json::Value& v) { v.erase(second); });
  EXPECT_EQ(why(), map[second].string_or("") + ": tensor " + second + ": expected a tensor of " +
                       index + ", found another");
  edit([&](json::Value& v) { v.set(tensor, "../elsewhere.safetensors"); });
  EXPECT_EQ(why(), index + ": tensor " + tensor +
                       ": expected a file beside the index, found \"../elsewhere.safetensors\"");
  edit([&](json::Value& v) { v.set(tensor, "a\nb.safetensors"); });
  EXPECT_EQ(why(), index + ": tensor " + tensor +
                       ": expected a file beside the index, found \"a\\nb.safetensors\"");
  rewrite(index, [&](std::string& text) {
    text = kept;
    text.insert(1, R"("weight_map": {},)");
  });
  EXPECT_EQ(why(), index + ": JSON: the document has \"weight_map\" twice; write each field once");
  rewrite(index, [&](std::string& text) { text = kept; });
  const std::string twice = R"("dtype": "float32",)";
  rewrite("config.json", [&](std::string& text) { text.insert(1, twice); });
  EXPECT_EQ(why(), "config.json: JSON: the document has \"dtype\" twice; write each field once");
  rewrite("config.json", [&](std::string& text) { text.erase(1, twice.size()); });
  EXPECT_EQ(why(), "");
  fs::resize_file(folder + "/" + shard, fs::file_size(folder + "/" + shard) - 1);
  EXPECT_NE(why().find("lies beyond the end of the file"), std::string::npos) << why();
  fs::remove(folder + "/" + shard);
  EXPECT_NE(why().find(shard), std::string::npos) << why();
  rewrite("config.json", [](std::string& text) { text.resize(20); });
  EXPECT_FALSE(why().empty());
}

// A config.json may say more than any machine has.
TEST_P(WeightFilesTest, AModelThatIsNotThereTakesNoMemory) {
  write(1 << 30);
  ModelConfig huge = GetParam();
  huge.layers = 1024;
  huge.hidden = huge.mlp_hidden = 65536;
  const ParameterTable wanted = take(parameter_table(huge, *device));
  std::vector<float> flat;
  const auto read = take(WeightFiles::open(files, folder)).read(wanted, flat);
  EXPECT_NE(read.error().what().find(": expected [61, 65536], found [61, 32]"), std::string::npos)
      << read.error().what();
  EXPECT_EQ(flat.capacity(), 0u);
}

// Anybody may have written them, and a message goes to terminals and logs.
TEST_P(WeightFilesTest, NamesOfTensorsAreCutAndWithoutControlCharacters) {
  write_changed([](std::vector<TensorView>& tensors) {
    tensors.push_back(tensors[1]);
    tensors.back().name = "evil\x1b[31m\nline" + std::string(1000, 'a');
  });
  EXPECT_TRUE(why().starts_with("model.safetensors: tensor evil [31m linea")) << why();
  EXPECT_LT(why().size(), 300u);
}

TEST_P(WeightFilesTest, WeightsThatAreNotFiniteAreCounted) {
  EXPECT_EQ(not_finite(table(), weights, "F32"), "");
  const Parameter& second = table().entries()[1];
  const auto last = static_cast<std::size_t>(second.offset + second.count - 1);
  weights[last] = NAN;
  EXPECT_EQ(not_finite(table(), weights, "F32"),
            "1 parameter is not finite in F32, the first in tensor " + second.name);
  weights[0] = -INFINITY;
  EXPECT_EQ(not_finite(table(), weights, "F32"),
            "2 parameters are not finite in F32, the first in tensor " + table().entries()[0].name);
  weights[last] = weights[0] = 65519;  // the last number that F16 rounds to 65504
  EXPECT_EQ(not_finite(table(), weights, "F16"), "");
  weights[0] = -65520;
  EXPECT_EQ(not_finite(table(), weights, "F16"),
            "1 parameter is not finite in F16, the first in tensor " + table().entries()[0].name);
  EXPECT_EQ(not_finite(table(), weights, "BF16"), "");
}

// What was read as half comes back as the same bytes, and its config.json says what it is.
TEST_P(WeightFilesTest, ShortNumbersAreWrittenAsTheyWereRead) {
  for (const auto& [dtype, name] : {std::pair("BF16", "bfloat16"), std::pair("F16", "float16")}) {
    model->init(3, weights);
    const auto save = [&] {
      const WeightFormat format{.shard_bytes = 10000, .dtype = dtype};
      EXPECT_TRUE(write_weights(files, folder, GetParam(), table(), weights, format).ok());
      std::string shards;
      for (const std::string& file : take(files.list(folder)))
        shards += take(read_text(files, folder + "/" + file, 1 << 20));
      return shards;
    };
    const std::string first = save();
    EXPECT_NE(why(), "");  // rounded
    EXPECT_TRUE(take(WeightFiles::open(files, folder)).read(table(), weights).ok());
    EXPECT_EQ(save(), first) << dtype;
    EXPECT_EQ(why(), "") << dtype;
    const std::string config = take(read_text(files, folder + "/config.json", 1 << 20));
    EXPECT_EQ(take(json::parse(config))["dtype"].string_or(""), name);
  }
}

// A kill leaves a folder that nobody takes for a whole one.
TEST_P(WeightFilesTest, TheConfigurationComesLast) {
  TroubledFiles watched(files);
  watched.on_rename = [&](const std::string& to) -> Status {
    if (!to.ends_with("/config.json")) return ok();
    EXPECT_GT(std::distance(fs::directory_iterator(folder), {}), 3);
    return Error(Code::kUnavailable, "killed");
  };
  EXPECT_FALSE(
      write_weights(watched, folder, GetParam(), table(), weights, {.shard_bytes = 20000}).ok());
  EXPECT_EQ(why(), " config.json: expected one, found none");
}

}  // namespace
}  // namespace rubato::worker::testing
