// The table of what our kernels ask of memory (traffic.txt), and the counter that makes it.
#include "tests/emulator/traffic.h"

#include "tests/emulator/emulator_fixture.h"
#include "tests/emulator/planted.h"
#include "tests/gpu/suite.h"
#include "worker/plan/recording_device.h"

#include <cstdio>
#include <fstream>
#include <functional>
#include <iterator>

namespace rubato::emulator {
namespace {

class TrafficTest : public Emulator {
 protected:
  Traffic of(void (*kernel)(cudaStream_t, float*)) {
    float* memory = device(Floats(kPlantedFloats, 1.0f));
    start_counting();
    kernel(stream, memory);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    const auto all = counted();
    EXPECT_EQ(all.size(), 1u);
    return all.begin()->second;
  }
};

TEST_F(TrafficTest, SectorsOfAWarp) {
  const Traffic dense = of(dense_load);
  EXPECT_EQ(dense.loaded, 32u * sizeof(float));
  EXPECT_EQ(dense.stored, 32u * sizeof(float));
  EXPECT_EQ(dense.sectors, 4u + 4u);
  EXPECT_EQ(dense.ideal_sectors, 4u + 4u);
  const Traffic strided = of(strided_load);
  EXPECT_EQ(strided.sectors, 32u + 4u);
  EXPECT_EQ(strided.ideal_sectors, 4u + 4u);
}

TEST_F(TrafficTest, WavefrontsOfAWarp) {
  const Traffic spread = of(spread_banks);
  EXPECT_EQ(spread.wavefronts, spread.ideal_wavefronts);
  const Traffic one = of(one_bank);
  EXPECT_EQ(one.ideal_wavefronts, 2u);
  EXPECT_EQ(one.wavefronts, 2u * 32u);
}

// ---- The table ----

using worker::Buffer;
using worker::Kernels;
using worker::Stream;
using worker::gpu::Bench;

struct Case {
  std::string name;
  std::function<void(Kernels&, Stream&)> run;
};

constexpr std::int64_t kRows = 64, kHidden = 768, kCount = kRows * kHidden;
constexpr std::int64_t kVocabulary = 1000, kColumns = 1024, kHeadRows = 4;

std::vector<Case> pointwise(Bench& bench) {
  const auto random = [&](std::int64_t n) {
    return bench.upload(worker::gpu::noise(static_cast<std::size_t>(n), 1));
  };
  const Buffer x = random(kCount), y = random(kCount), z = random(kCount), w = random(kCount);
  const Buffer sums = bench.upload(worker::gpu::Ints(kCount, 1)),
               addends = bench.upload(worker::gpu::Ints(kCount, 1));
  const Buffer exponents = bench.upload(worker::gpu::Ints(kCount / 256, 1));
  const Buffer guards = bench.upload(worker::gpu::Ints(kCount / 256, 0));
  const Buffer norms = bench.poisoned(worker::DType::kF64, kCount / worker::kNormChunkElements);
  const Buffer weighed = bench.poisoned(worker::DType::kI64, kCount / worker::kNormChunkElements);
  return {
      {"gelu_forward",
       [x, y](Kernels& kernels, Stream& stream) { kernels.gelu_forward(stream, x, y); }},
      {"gelu_backward",
       [x, y](Kernels& kernels, Stream& stream) { kernels.gelu_backward(stream, x, y); }},
      {"swiglu_forward",
       [x, y](Kernels& kernels, Stream& stream) {
         kernels.swiglu_forward(stream, kHidden, x, y.slice(0, kCount / 2));
       }},
      {"swiglu_backward",
       [x, y, z](Kernels& kernels, Stream& stream) {
         kernels.swiglu_backward(stream, kHidden, x, y.slice(0, kCount / 2), z);
       }},
      {"rotate",
       [x, y](Kernels& kernels, Stream& stream) {
         kernels.rotate(stream, {.length = kRows, .heads = 12, .head_size = 64, .columns = kHidden},
                        x.slice(0, kRows * 64), y);
       }},
      {"add", [x, y, z](Kernels& kernels, Stream& stream) { kernels.add(stream, x, y, z); }},
      {"add_i32", [sums, addends](Kernels& kernels,
                                  Stream& stream) { kernels.add_i32(stream, addends, sums); }},
      {"adamw",
       [x, y, z, w](Kernels& kernels, Stream& stream) { kernels.adamw(stream, {}, x, y, z, w); }},
      {"quantise_add",
       [x, sums, exponents, guards](Kernels& kernels, Stream& stream) {
         kernels.quantise_add(stream, 20, 4, exponents, x, sums, guards);
       }},
      {"dither_add",
       [x, sums, exponents, guards](Kernels& kernels, Stream& stream) {
         kernels.dither_add(stream, 20, 4, {}, exponents, x, sums, guards);
       }},
      {"dequantise",
       [x, sums, exponents](Kernels& kernels, Stream& stream) {
         kernels.dequantise(stream, 20, 1.0f, exponents, sums, x);
       }},
      {"block_exponents",
       [x, exponents](Kernels& kernels, Stream& stream) {
         kernels.block_exponents(stream, x, exponents);
       }},
      {"squared_norm_chunks",
       [x, norms](Kernels& kernels, Stream& stream) {
         kernels.squared_norm_chunks(stream, x, norms);
       }},
      {"weighted_sums",
       [sums, weighed](Kernels& kernels, Stream& stream) {
         kernels.weighted_sums(stream, sums, weighed);
       }},
  };
}

std::vector<Case> rowwise(Bench& bench) {
  const auto random = [&](std::int64_t n) {
    return bench.upload(worker::gpu::noise(static_cast<std::size_t>(n), 1));
  };
  const Buffer x = random(kCount), y = random(kCount), z = random(kCount), w = random(kHidden),
               b = random(kHidden), mean = random(kRows), rstd = random(kRows);
  const Buffer ids = bench.upload(worker::gpu::tokens(kRows, kVocabulary, 1));
  const Buffer table = random(kVocabulary * kHidden), positions = random(kCount);
  const Buffer work =
      bench.poisoned(worker::DType::kI32, bench.kernels().embed_workspace(kRows, 0));
  const Buffer logits = random(kHeadRows * kColumns), losses = random(kHeadRows);
  const Buffer targets = ids.slice(0, kHeadRows);
  return {
      {"embed_forward",
       [ids, table, positions, x](Kernels& kernels, Stream& stream) {
         kernels.embed_forward(stream, kRows, kHidden, ids, table, positions, x);
       }},
      {"embed_backward",
       [ids, x, work, table, positions](Kernels& kernels, Stream& stream) {
         kernels.embed_backward(stream, kRows, kHidden, kVocabulary, ids, x, work, table,
                                positions);
       }},
      {"layernorm_forward",
       [x, w, b, y, mean, rstd](Kernels& kernels, Stream& stream) {
         kernels.layernorm_forward(stream, kHidden, 1e-5f, x, w, b, y, mean, rstd);
       }},
      {"layernorm_backward",
       [x, w, b, y, z, mean, rstd](Kernels& kernels, Stream& stream) {
         kernels.layernorm_backward(stream, kHidden, x, w, mean, rstd, y, z, w, b);
       }},
      {"rmsnorm_forward",
       [x, w, y, rstd](Kernels& kernels, Stream& stream) {
         kernels.rmsnorm_forward(stream, kHidden, 1e-5f, x, w, y, rstd);
       }},
      {"rmsnorm_backward",
       [x, w, b, y, z, rstd](Kernels& kernels, Stream& stream) {
         kernels.rmsnorm_backward(stream, kHidden, x, w, rstd, y, z, b);
       }},
      {"column_sum",
       [x, w](Kernels& kernels, Stream& stream) { kernels.column_sum(stream, kHidden, x, w); }},
      {"softmax_cross_entropy",
       [targets, logits, losses](Kernels& kernels, Stream& stream) {
         kernels.softmax_cross_entropy(stream, kColumns, kVocabulary, 1.0f, true, targets, logits,
                                       losses);
       }},
  };
}

// `suffix`: of the names, as a device in bf16 has other kernels.
std::vector<Case> attention(Bench& bench, const char* suffix) {
  const worker::AttentionShape shape{.batch = 1, .length = 128, .heads = 1, .head_size = 64};
  const std::int64_t count = shape.length * shape.hidden();
  const auto random = [&](std::int64_t n) {
    return bench.upload(worker::gpu::noise(static_cast<std::size_t>(n), 1));
  };
  const Buffer qkv = random(3 * count), out = random(count), dout = random(count),
               dqkv = random(3 * count), saved = random(bench.kernels().attention_saved(shape)),
               work = random(bench.kernels().attention_workspace(shape));
  return {
      {std::string("attention_forward") + suffix,
       [shape, qkv, saved, out](Kernels& kernels, Stream& stream) {
         kernels.attention_forward(stream, shape, qkv, saved, out);
       }},
      {std::string("attention_backward") + suffix,
       [shape, qkv, saved, out, dout, work, dqkv](Kernels& kernels, Stream& stream) {
         kernels.attention_backward(stream, shape, qkv, saved, out, dout, work, dqkv);
       }},
  };
}

std::string ratio(std::uint64_t ideal, std::uint64_t actual) {
  if (actual == 0) return "    -";
  char text[40];
  std::snprintf(text, sizeof text, "%5.3f",
                static_cast<double>(ideal) / static_cast<double>(actual));
  return text;
}

std::string row_of(const std::string& name, double tensors, const Traffic& t) {
  char text[200];
  std::snprintf(
      text, sizeof text, "%-60s %9llu %9llu  %5s  %s  %s\n", name.c_str(),
      static_cast<unsigned long long>(t.loaded), static_cast<unsigned long long>(t.stored),
      tensors == 0
          ? ""
          : std::to_string(static_cast<double>(t.loaded + t.stored) / tensors).substr(0, 5).c_str(),
      ratio(t.ideal_sectors, t.sectors).c_str(), ratio(t.ideal_wavefronts, t.wavefronts).c_str());
  return text;
}

// Bytes of the tensors, as the prediction of a step counts them (worker/plan).
double planned_bytes(const Case& one, Stream& stream) {
  worker::RecordingKernels planned(worker::Precision::kF32);
  one.run(planned, stream);
  EXPECT_EQ(planned.calls().size(), 1u);
  return planned.calls().at(0).bytes;
}

std::string rows_of(const Case& one, Bench& bench) {
  const double planned = planned_bytes(one, *bench.stream);
  start_counting();
  one.run(bench.kernels(), *bench.stream);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_NEAR(static_cast<double>(touched_bytes()), planned, 0.02 * planned) << one.name;
  const auto kernels = counted();
  Traffic sum;
  std::string rows;
  for (const auto& [name, traffic] : kernels) {
    sum.loaded += traffic.loaded;
    sum.stored += traffic.stored;
    sum.sectors += traffic.sectors;
    sum.ideal_sectors += traffic.ideal_sectors;
    sum.wavefronts += traffic.wavefronts;
    sum.ideal_wavefronts += traffic.ideal_wavefronts;
    rows += row_of("  " + name, 0, traffic);
  }
  return row_of(one.name, planned, sum) + rows;
}

TEST_F(TrafficTest, APlanKnowsWhatTheBackendTakes) {
  for (const auto precision : {worker::Precision::kF32, worker::Precision::kBf16}) {
    const auto device = worker::open_device({.kind = "cuda", .precision = precision});
    ASSERT_TRUE(device.ok());
    const Kernels& kernels = (*device)->kernels();
    const worker::RecordingKernels planned(precision);
    const worker::AttentionShape shape{.batch = 3, .length = 70, .heads = 4, .head_size = 48};
    EXPECT_EQ(planned.attention_saved(shape), kernels.attention_saved(shape));
    EXPECT_EQ(planned.attention_workspace(shape), kernels.attention_workspace(shape));
    EXPECT_EQ(planned.attention_head_size_max(), kernels.attention_head_size_max());
    EXPECT_EQ(planned.embed_workspace(70, 300), kernels.embed_workspace(70, 300));
    EXPECT_EQ(planned.logits_at_a_time(), kernels.logits_at_a_time());
  }
}

TEST_F(TrafficTest, TheTableIsAsItIsWritten) {
  const auto opened = worker::open_device({.kind = "cuda"});
  ASSERT_TRUE(opened.ok());
  const auto in_bf16 = worker::open_device({.kind = "cuda", .precision = worker::Precision::kBf16});
  ASSERT_TRUE(in_bf16.ok());
  Bench bench(**opened), tensor_cores(**in_bf16);
  std::string table;
  for (const auto& cases : {pointwise(bench), rowwise(bench), attention(bench, "")})
    for (const Case& one : cases) table += rows_of(one, bench);
  for (const Case& one : attention(tensor_cores, "_bf16")) table += rows_of(one, tensor_cores);
  std::ifstream in("tests/emulator/traffic.txt");
  std::string written(std::istreambuf_iterator<char>(in), {});
  written = written.substr(std::min(written.find("gelu_forward"), written.size()));
  EXPECT_EQ(written, table) << "write this to tests/emulator/traffic.txt, below its heading:\n"
                            << table;
}

}  // namespace
}  // namespace rubato::emulator
