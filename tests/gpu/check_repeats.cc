// Equal bits in every run, while another stream keeps the device busy with products of other
// shapes.
#include "tests/gpu/suite.h"

#include <algorithm>
#include <functional>

namespace rubato::worker::gpu {

namespace {

struct Case {
  const char* name;
  std::function<void(Stream&)> run;
  ConstBuffer result;
};

std::vector<Case> make_cases(Bench& bench, const RepeatShapes& s) {
  const std::int64_t hidden = s.heads * s.head_size;
  const auto random = [&](std::int64_t n, std::uint64_t seed) {
    return bench.upload(noise(static_cast<std::size_t>(n), seed));
  };
  Kernels& kernels = bench.kernels();
  std::vector<Case> cases;
  const Buffer x = random(s.tokens * hidden, 1), dy = random(s.tokens * hidden, 2);
  const Buffer wide = random(s.tokens * 3 * hidden, 3), weight = random(hidden * 3 * hidden, 4);
  const Buffer bias = random(3 * hidden, 5);
  const auto product = [&](const char* name, const GemmShape& shape, Buffer a, Buffer b,
                           ConstBuffer with) {
    const Buffer c = bench.floats(shape.m * shape.n);
    cases.push_back(
        {name, [=, &kernels](Stream& stream) { kernels.gemm(stream, shape, a, b, with, c); }, c});
  };
  product("gemm", {.m = s.tokens, .n = 3 * hidden, .k = hidden}, x, weight, bias);
  product("gemm of a weight's gradient",
          {.m = hidden, .n = 3 * hidden, .k = s.tokens, .transpose_a = true}, x, wide, {});
  product("gemm of an input's gradient",
          {.m = s.tokens, .n = hidden, .k = 3 * hidden, .transpose_b = true}, wide, weight, {});
  product("gemm of a long sum",
          {.m = 64, .n = 64, .k = s.tokens * hidden / 64, .transpose_a = true}, x, dy, {});

  const AttentionShape shape{
      .batch = 1, .length = s.tokens, .heads = s.heads, .head_size = s.head_size};
  const Buffer saved = bench.floats(kernels.attention_saved(shape));
  const Buffer work = bench.floats(kernels.attention_workspace(shape));
  const Buffer out = bench.floats(s.tokens * hidden), dqkv = bench.floats(s.tokens * 3 * hidden);
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

  const Buffer mean = random(s.tokens, 6), rstd = random(s.tokens, 7), scale = random(hidden, 8);
  const Buffer dx = bench.floats(s.tokens * hidden), both = bench.floats(2 * hidden);
  cases.push_back({"layernorm's gradient",
                   [=, &kernels](Stream& stream) {
                     kernels.layernorm_backward(stream, hidden, x, scale, mean, rstd, dy, dx,
                                                both.slice(0, hidden), both.slice(hidden, hidden));
                   },
                   both});
  const Buffer sums = bench.floats(3 * hidden);
  cases.push_back(
      {"column sums",
       [=, &kernels](Stream& stream) { kernels.column_sum(stream, 3 * hidden, wide, sums); },
       sums});

  const Buffer ids = bench.upload(tokens(s.tokens, s.vocabulary, 9));
  const Buffer table = bench.floats(s.vocabulary * hidden);
  const Buffer positions = bench.floats(s.tokens * hidden);
  const Buffer order = bench.poisoned(DType::kI32, kernels.embed_workspace(s.tokens, s.vocabulary));
  Device& device = bench.device;
  cases.push_back({"embedding's gradient",
                   [=, &kernels, &device](Stream& stream) {
                     device.memset(stream, table, 0);
                     kernels.embed_backward(stream, s.tokens, hidden, s.vocabulary, ids, dy, order,
                                            table, positions);
                   },
                   table.slice(0, std::min<std::int64_t>(s.vocabulary, 2000) * hidden)});
  const Buffer logits = random(s.head_rows * s.columns, 10);
  const Buffer scratch = bench.floats(s.head_rows * s.columns), losses = bench.floats(s.head_rows);
  const Buffer targets = bench.upload(tokens(s.head_rows, s.vocabulary, 11));
  cases.push_back({"cross-entropy",
                   [=, &kernels, &device](Stream& stream) {
                     device.copy(stream, scratch, logits);
                     kernels.softmax_cross_entropy(stream, s.columns, s.vocabulary, 0.5f, true,
                                                   targets, scratch, losses);
                   },
                   losses});
  return cases;
}

}  // namespace

void check_repeats(Bench& bench, Report& report, const RepeatShapes& s) {
  std::vector<Case> cases = make_cases(bench, s);
  const auto load = bench.device.make_stream();
  const Buffer a = bench.upload(noise(static_cast<std::size_t>(s.load_side * s.load_side), 20)),
               c = bench.floats(s.load_side * s.load_side);
  CHECK(bench.stream->synchronize().ok());  // c is written by the other stream from here on
  std::vector<Ints> first;
  for (int run = 0; run < s.runs; ++run) {
    for (int i = 0; i < 12; ++i)
      bench.kernels().gemm(
          *load, {.m = s.load_side, .n = s.load_side, .k = s.load_side, .transpose_b = i % 2 == 0},
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
  report.line(std::to_string(s.runs) + " equal runs under load");
}

}  // namespace rubato::worker::gpu
