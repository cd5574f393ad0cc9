// Equal bits in every run, while another stream keeps the device busy with products of other
// shapes.
#include "tests/gpu/suite.h"

#include <functional>

namespace rubato::worker::gpu {

namespace {

// A micro-batch of GPT-2 124M, small enough to be run a hundred times.
constexpr std::int64_t kTokens = 1024;
constexpr std::int64_t kHidden = 768;
constexpr std::int64_t kVocabulary = 50257;
constexpr std::int64_t kColumns = 50304;
constexpr std::int64_t kHeadRows = 320;

struct Case {
  const char* name;
  std::function<void(Stream&)> run;
  ConstBuffer result;
};

std::vector<Case> make_cases(Bench& bench) {
  const auto random = [&](std::int64_t n, std::uint64_t seed) {
    return bench.upload(noise(static_cast<std::size_t>(n), seed));
  };
  Kernels& kernels = bench.kernels();
  std::vector<Case> cases;
  const Buffer x = random(kTokens * kHidden, 1), dy = random(kTokens * kHidden, 2);
  const Buffer wide = random(kTokens * 3 * kHidden, 3), weight = random(kHidden * 3 * kHidden, 4);
  const Buffer bias = random(3 * kHidden, 5);
  const auto product = [&](const char* name, const GemmShape& shape, Buffer a, Buffer b,
                           ConstBuffer with) {
    const Buffer c = bench.floats(shape.m * shape.n);
    cases.push_back(
        {name, [=, &kernels](Stream& stream) { kernels.gemm(stream, shape, a, b, with, c); }, c});
  };
  product("gemm", {.m = kTokens, .n = 3 * kHidden, .k = kHidden}, x, weight, bias);
  product("gemm of a weight's gradient",
          {.m = kHidden, .n = 3 * kHidden, .k = kTokens, .transpose_a = true}, x, wide, {});
  product("gemm of an input's gradient",
          {.m = kTokens, .n = kHidden, .k = 3 * kHidden, .transpose_b = true}, wide, weight, {});
  product("gemm of a long sum",
          {.m = 64, .n = 64, .k = kTokens * kHidden / 64, .transpose_a = true}, x, dy, {});

  const AttentionShape shape{.batch = 1, .length = kTokens, .heads = 12, .head_size = 64};
  const Buffer saved = bench.floats(kernels.attention_saved(shape));
  const Buffer work = bench.floats(kernels.attention_workspace(shape));
  const Buffer out = bench.floats(kTokens * kHidden), dqkv = bench.floats(kTokens * 3 * kHidden);
  cases.push_back({"attention",
                   [=, &kernels](Stream& stream) {
                     kernels.attention_forward(stream, shape, wide, saved, out);
                   },
                   out});
  cases.push_back({"attention's gradient",
                   [=, &kernels](Stream& stream) {
                     kernels.attention_backward(stream, shape, wide, saved, out, dy, work, dqkv);
                   },
                   dqkv});

  const Buffer mean = random(kTokens, 6), rstd = random(kTokens, 7), scale = random(kHidden, 8);
  const Buffer dx = bench.floats(kTokens * kHidden), both = bench.floats(2 * kHidden);
  cases.push_back({"layernorm's gradient",
                   [=, &kernels](Stream& stream) {
                     kernels.layernorm_backward(stream, kHidden, x, scale, mean, rstd, dy, dx,
                                                both.slice(0, kHidden),
                                                both.slice(kHidden, kHidden));
                   },
                   both});
  const Buffer sums = bench.floats(3 * kHidden);
  cases.push_back(
      {"column sums",
       [=, &kernels](Stream& stream) { kernels.column_sum(stream, 3 * kHidden, wide, sums); },
       sums});

  const Buffer ids = bench.upload(tokens(kTokens, kVocabulary, 9));
  const Buffer table = bench.floats(kVocabulary * kHidden);
  const Buffer positions = bench.floats(kTokens * kHidden);
  const Buffer order = bench.poisoned(DType::kI32, kernels.embed_workspace(kTokens, kVocabulary));
  Device& device = bench.device;
  cases.push_back({"embedding's gradient",
                   [=, &kernels, &device](Stream& stream) {
                     device.memset(stream, table, 0);
                     kernels.embed_backward(stream, kTokens, kHidden, kVocabulary, ids, dy, order,
                                            table, positions);
                   },
                   table.slice(0, 2000 * kHidden)});
  const Buffer logits = random(kHeadRows * kColumns, 10);
  const Buffer scratch = bench.floats(kHeadRows * kColumns), losses = bench.floats(kHeadRows);
  const Buffer targets = bench.upload(tokens(kHeadRows, kVocabulary, 11));
  cases.push_back({"cross-entropy",
                   [=, &kernels, &device](Stream& stream) {
                     device.copy(stream, scratch, logits);
                     kernels.softmax_cross_entropy(stream, kColumns, kVocabulary, 0.5f, true,
                                                   targets, scratch, losses);
                   },
                   losses});
  return cases;
}

}  // namespace

void check_repeats(Bench& bench, Report& report, int repeats) {
  std::vector<Case> cases = make_cases(bench);
  const auto load = bench.device.make_stream();
  constexpr std::int64_t kSide = 1536;
  const Buffer a = bench.upload(noise(kSide * kSide, 20)), c = bench.floats(kSide * kSide);
  std::vector<Ints> first;
  for (int run = 0; run < repeats; ++run) {
    for (int i = 0; i < 12; ++i)
      bench.kernels().gemm(*load, {.m = kSide, .n = kSide, .k = kSide, .transpose_b = i % 2 == 0},
                           a, a, {}, c);
    for (const Case& one : cases) one.run(*bench.stream);
    for (std::size_t i = 0; i < cases.size(); ++i) {
      report.begin(std::string(cases[i].name) + ", run " + std::to_string(run));
      const ConstBuffer result(cases[i].result.address(), cases[i].result.count(), DType::kI32);
      Ints bits = bench.read_ints(result);
      if (run == 0)
        first.push_back(std::move(bits));
      else
        report.same(bits, first[i], "the result");
    }
  }
  report.expect(load->synchronize().ok(), "the other stream failed");
  bench.clear();
  report.line(std::to_string(repeats) + " equal runs under load");
}

}  // namespace rubato::worker::gpu
