// What sums in an order of its own, against plain sums in double. Bounds: for a sum of k products
// in f32 in any order, (k + 2) 2^-24 sum |a b|; for chains of such operations, a part of the norm.
#include "tests/gpu/suite.h"

#include <cmath>

namespace rubato::worker::gpu {

namespace {

constexpr double kRounding = 0x1p-24;

// To the nearest number of eight bits, to an even one in the middle.
Floats rounded_to_bf16(const Floats& x) {
  Floats out;
  for (const float value : x) {
    int exponent = 0;
    const float digits = std::frexp(value, &exponent);
    out.push_back(std::ldexp(std::nearbyint(std::ldexp(digits, 8)), exponent - 8));
  }
  return out;
}

void one_product(Bench& bench, Report& report, const GemmShape& s, Precision precision,
                 std::uint64_t seed) {
  report.begin("gemm " + text(s.m) + " x " + text(s.n) + " x " + text(s.k) +
               (s.transpose_a ? " ta" : "") + (s.transpose_b ? " tb" : ""));
  const Floats given_a = noise(size(s.m * s.k), seed), given_b = noise(size(s.k * s.n), seed + 1),
               bias = noise(size(s.n), seed + 2);
  const bool is_bf16 = precision == Precision::kBf16;
  const Floats a = is_bf16 ? rounded_to_bf16(given_a) : given_a;
  const Floats b = is_bf16 ? rounded_to_bf16(given_b) : given_b;
  Wide want(size(s.m * s.n)), bound(want.size());
  for (std::int64_t i = 0; i < s.m; ++i)
    for (std::int64_t j = 0; j < s.n; ++j) {
      double sum = 0, sizes = 0;
      for (std::int64_t k = 0; k < s.k; ++k) {
        const double product =
            static_cast<double>(a[size(s.transpose_a ? k * s.m + i : i * s.k + k)]) *
            static_cast<double>(b[size(s.transpose_b ? j * s.k + k : k * s.n + j)]);
        sum += product;
        sizes += std::abs(product);
      }
      want[size(i * s.n + j)] = sum;
      bound[size(i * s.n + j)] = static_cast<double>(s.k + 4) * kRounding * (sizes + 4);
    }
  const Buffer left = bench.upload(given_a), right = bench.upload(given_b),
               c = bench.floats(s.m * s.n), again = bench.floats(s.m * s.n);
  bench.kernels().gemm(*bench.stream, s, left, right, {}, c);
  const Floats got = bench.read(c);
  report.near(got, want, bound, "c");
  bench.kernels().gemm(*bench.stream, s, left, right, {}, again);
  report.same(bench.read(again), got, "c, once more");
  GemmShape adding = s;
  adding.accumulate = true;
  bench.kernels().gemm(*bench.stream, adding, left, right, {}, c);
  Wide twice = want;
  for (double& x : twice) x *= 2;
  Wide wider = bound;
  for (double& x : wider) x *= 2;
  report.near(bench.read(c), twice, wider, "c + c");
  const Buffer fresh = bench.floats(s.m * s.n);
  bench.kernels().gemm(*bench.stream, s, left, right, bench.upload(bias), fresh);
  for (std::size_t i = 0; i < want.size(); ++i)
    want[i] += static_cast<double>(bias[i % bias.size()]);
  report.near(bench.read(fresh), want, bound, "c + bias");
  bench.clear();
}

void column_sums(Bench& bench, Report& report) {
  struct Shape {
    std::int64_t rows, columns;
  };
  for (const Shape s : {Shape{1, 1}, {11, 37}, {127, 8}, {129, 9}, {1000, 300}}) {
    report.begin("sums over " + text(s.rows) + " rows of " + text(s.columns));
    const Floats x = noise(size(s.rows * s.columns), 1), dy = noise(x.size(), 2),
                 mean = noise(size(s.rows), 3);
    const Floats rstd = noise(size(s.rows), 4), weight = noise(size(s.columns), 5);
    Wide sums(size(s.columns)), bound(sums.size()), dweight(sums.size()), dbias(sums.size()),
        wide_bound(sums.size()), bias_bound(sums.size());
    const double rounds = static_cast<double>(s.rows + 8) * kRounding;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::size_t c = i % size(s.columns), r = i / size(s.columns);
      const double normal =
          (static_cast<double>(x[i]) - static_cast<double>(mean[r])) * static_cast<double>(rstd[r]);
      sums[c] += static_cast<double>(x[i]);
      bound[c] += rounds * std::abs(static_cast<double>(x[i]));
      dweight[c] += static_cast<double>(dy[i]) * normal;
      wide_bound[c] += rounds * 2 * std::abs(static_cast<double>(dy[i]));
      dbias[c] += static_cast<double>(dy[i]);
      bias_bound[c] += rounds * std::abs(static_cast<double>(dy[i]));
    }
    const Buffer in = bench.upload(x), out = bench.floats(s.columns);
    bench.kernels().column_sum(*bench.stream, s.columns, in, out);
    report.near(bench.read(out), sums, bound, "column sums");
    const Buffer dw = bench.floats(s.columns), db = bench.floats(s.columns), dx = bench.upload(x);
    bench.kernels().layernorm_backward(*bench.stream, s.columns, in, bench.upload(weight),
                                       bench.upload(mean), bench.upload(rstd), bench.upload(dy), dx,
                                       dw, db);
    report.near(bench.read(dw), dweight, wide_bound, "layernorm's gradient of weights");
    report.near(bench.read(db), dbias, bias_bound, "layernorm's gradient of biases");
    bench.clear();
  }
  report.line("column sums");
}

void cross_entropy(Bench& bench, Report& report) {
  for (const std::int64_t vocabulary : {1, 7, 61, 257, 1000, 50257}) {
    constexpr std::int64_t kRows = 5;
    const std::int64_t columns = (vocabulary + 63) / 64 * 64;
    report.begin("cross-entropy of " + text(vocabulary));
    const Floats logits = noise(size(kRows * columns), 1, 8);
    const Ints targets = tokens(kRows, static_cast<std::uint64_t>(vocabulary), 2);
    Wide losses(kRows), bound(kRows), gradient(logits.size());
    for (std::size_t r = 0; r < kRows; ++r) {
      const auto at = [&](std::int64_t i) {
        return static_cast<double>(logits[r * size(columns) + size(i)]);
      };
      double total = 0;
      for (std::int64_t i = 0; i < vocabulary; ++i) total += std::exp(at(i));
      losses[r] = std::log(total) - at(targets[r]);
      bound[r] = 2e-6 * (1 + std::abs(losses[r]));
      for (std::int64_t i = 0; i < vocabulary; ++i)
        gradient[r * size(columns) + size(i)] =
            0.25 * (std::exp(at(i)) / total - (i == targets[r] ? 1 : 0));
    }
    const Buffer buffer = bench.upload(logits), out = bench.floats(kRows),
                 to = bench.upload(targets);
    bench.kernels().softmax_cross_entropy(*bench.stream, columns, vocabulary, 0.25f, false, to,
                                          buffer, out);
    report.near(bench.read(out), losses, bound, "losses");
    report.same(bench.read(buffer), logits, "logits that stay");
    const Buffer again = bench.floats(kRows);
    bench.kernels().softmax_cross_entropy(*bench.stream, columns, vocabulary, 0.25f, true, to,
                                          buffer, again);
    report.same(bench.read(again), bench.read(out), "losses with a gradient");
    if (vocabulary > 1) report.close(bench.read(buffer), gradient, 2e-6, "gradient");
    bench.clear();
  }
  for (const float broken : {NAN, INFINITY})
    for (const std::size_t place : {0u, 9u, 17u}) {
      report.begin("cross-entropy of broken logits");
      Floats logits = noise(64, 1);
      logits[place] = broken;
      const Buffer out = bench.floats(1);
      bench.kernels().softmax_cross_entropy(*bench.stream, 64, 20, 1.0f, true,
                                            bench.upload(Ints{3}), bench.upload(logits), out);
      report.expect(!std::isfinite(bench.read(out)[0]), "the loss is finite");
    }
  bench.clear();
  report.line("cross-entropy");
}

struct AttentionWant {
  Wide out, dqkv;
};
// One head of one sequence at a time, with all of its probabilities.
void one_head(const AttentionShape& s, const Wide& qkv, const Wide& dout, std::int64_t b,
              std::int64_t h, AttentionWant& want) {
  const std::int64_t t = s.length, d = s.head_size, c = s.hidden();
  const double scale = 1 / std::sqrt(static_cast<double>(d));
  const auto in = [&](std::int64_t part, std::int64_t row, std::int64_t k) {
    const std::int64_t head = part == 0 ? h * d : c + h / s.group() * d;
    return size((b * t + row) * s.columns() + head + (part == 2 ? s.kv_hidden() : 0) + k);
  };
  const auto at = [&](std::int64_t row, std::int64_t k) {
    return size((b * t + row) * c + h * d + k);
  };
  for (std::int64_t i = 0; i < t; ++i) {
    Wide p(size(i + 1));
    double highest = -HUGE_VAL, total = 0;
    for (std::int64_t j = 0; j <= i; ++j) {
      for (std::int64_t k = 0; k < d; ++k)
        p[size(j)] += scale * qkv[in(0, i, k)] * qkv[in(1, j, k)];
      highest = std::max(highest, p[size(j)]);
    }
    for (double& x : p) total += x = std::exp(x - highest);
    double dot = 0;
    for (std::int64_t j = 0; j <= i; ++j)
      for (std::int64_t k = 0; k < d; ++k)
        want.out[at(i, k)] += p[size(j)] / total * qkv[in(2, j, k)];
    for (std::int64_t k = 0; k < d; ++k) dot += want.out[at(i, k)] * dout[at(i, k)];
    for (std::int64_t j = 0; j <= i; ++j) {
      const double weight = p[size(j)] / total;
      double dp = 0;
      for (std::int64_t k = 0; k < d; ++k) dp += dout[at(i, k)] * qkv[in(2, j, k)];
      const double ds = weight * (dp - dot) * scale;
      for (std::int64_t k = 0; k < d; ++k) {
        want.dqkv[in(0, i, k)] += ds * qkv[in(1, j, k)];
        want.dqkv[in(1, j, k)] += ds * qkv[in(0, i, k)];
        want.dqkv[in(2, j, k)] += weight * dout[at(i, k)];
      }
    }
  }
}

}  // namespace

// In bf16 the reference rounds what comes in, too; what is left are the roundings of probabilities
// and of the gradients of scores, each to 2^-9 of itself.
void check_attention(Bench& bench, Report& report, Precision precision) {
  const bool is_bf16 = precision == Precision::kBf16;
  const double bound = is_bf16 ? 2e-3 : 2e-6;
  for (const AttentionShape s :
       {AttentionShape{.batch = 2, .length = 5, .heads = 3, .head_size = 4},
        {.batch = 1, .length = 1, .heads = 1, .head_size = 7},
        {.batch = 1, .length = 64, .heads = 2, .head_size = 20},
        {.batch = 3, .length = 65, .heads = 2, .head_size = 32},
        {.batch = 1, .length = 131, .heads = 2, .head_size = 48},
        {.batch = 2, .length = 67, .heads = 6, .head_size = 20, .kv_heads = 2},
        {.batch = 1, .length = 130, .heads = 3, .head_size = 64, .kv_heads = 1},
        {.batch = 2, .length = 200, .heads = 3, .head_size = 64},
        {.batch = 1, .length = 63, .heads = 2, .head_size = 80},
        {.batch = 1, .length = 193, .heads = 1, .head_size = 128}}) {
    if (s.head_size > bench.kernels().attention_head_size_max()) continue;
    report.begin("attention of " + text(s.batch) + " x " + text(s.length) + ", " + text(s.heads) +
                 " heads (" + text(s.kv_heads) + " of keys) of " + text(s.head_size));
    const std::int64_t n = s.batch * s.length * s.hidden();
    const std::int64_t packed = s.batch * s.length * s.columns();
    const Floats given_qkv = noise(size(packed), 1, 2), given_dout = noise(size(n), 2);
    const Floats qkv = is_bf16 ? rounded_to_bf16(given_qkv) : given_qkv;
    const Floats dout = is_bf16 ? rounded_to_bf16(given_dout) : given_dout;
    AttentionWant want{Wide(size(n)), Wide(size(packed))};
    for (std::int64_t b = 0; b < s.batch; ++b)
      for (std::int64_t h = 0; h < s.heads; ++h) one_head(s, widen(qkv), widen(dout), b, h, want);
    const Buffer in = bench.upload(given_qkv), out = bench.floats(n),
                 gradient = bench.floats(packed);
    const Buffer saved = bench.floats(bench.kernels().attention_saved(s)),
                 work = bench.floats(bench.kernels().attention_workspace(s));
    bench.kernels().attention_forward(*bench.stream, s, in, saved, out);
    report.close(bench.read(out), want.out, bound, "out");
    bench.kernels().attention_backward(*bench.stream, s, in, saved, out, bench.upload(given_dout),
                                       work, gradient);
    report.close(bench.read(gradient), want.dqkv, 2 * bound,
                 "gradient of queries, keys and values");
    bench.clear();
  }
  report.line(is_bf16 ? "attention in bf16" : "attention");
}

void check_products(Bench& bench, Report& report, Precision precision) {
  std::uint64_t seed = 1;
  for (const bool ta : {false, true})
    for (const bool tb : {false, true})
      for (const GemmShape shape : {GemmShape{.m = 1, .n = 1, .k = 1},
                                    {.m = 5, .n = 7, .k = 3},
                                    {.m = 64, .n = 48, .k = 400},
                                    {.m = 33, .n = 130, .k = 65},
                                    {.m = 128, .n = 192, .k = 1500}}) {
        GemmShape s = shape;
        s.transpose_a = ta;
        s.transpose_b = tb;
        one_product(bench, report, s, precision, seed += 3);
      }
  report.line(precision == Precision::kBf16 ? "gemm in bf16" : "gemm");
}

void check_values(Bench& bench, Report& report) {
  check_products(bench, report, Precision::kF32);
  column_sums(bench, report);
  cross_entropy(bench, report);
  check_attention(bench, report, Precision::kF32);
}

}  // namespace rubato::worker::gpu
