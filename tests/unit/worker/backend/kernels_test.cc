// Each kernel against its plain reference, and each backward pass against the numerical gradient of
// the reference's forward pass.
#include "common/rng.h"
#include "tests/unit/worker/backend/kernel_bench.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

namespace rubato::worker::testing {
namespace {

class KernelsTest : public KernelBench {};

TEST_F(KernelsTest, Gemm) {
  for (const GemmShape shape : {GemmShape{.m = 5, .n = 7, .k = 3},
                                {.m = 64, .n = 48, .k = 400},
                                {.m = 33, .n = 17, .k = 19, .transpose_a = true},
                                {.m = 16, .n = 65, .k = 31, .transpose_b = true}}) {
    const double tolerance = 2e-7 * static_cast<double>(shape.k + 10);  // roundings of a long sum
    const auto a = noise(static_cast<std::size_t>(shape.m * shape.k), 1);
    const auto b = noise(static_cast<std::size_t>(shape.k * shape.n), 2);
    const auto bias = noise(static_cast<std::size_t>(shape.n), 3);
    const Buffer c = zeros(static_cast<std::size_t>(shape.m * shape.n));
    auto want = reference::gemm(shape, wide(a), wide(b));
    kernels().gemm(*stream, shape, upload(a), upload(b), {}, c);
    expect_near(floats(c), want, tolerance);

    GemmShape adding = shape;
    adding.accumulate = true;
    kernels().gemm(*stream, adding, upload(a), upload(b), {}, c);
    auto twice = want;
    for (double& x : twice) x *= 2;
    expect_near(floats(c), twice, tolerance);

    kernels().gemm(*stream, shape, upload(a), upload(b), upload(bias), c);
    for (std::size_t i = 0; i < want.size(); ++i)
      want[i] += static_cast<double>(bias[i % bias.size()]);
    expect_near(floats(c), want, tolerance);
  }
}

TEST_F(KernelsTest, LayernormForwardAndBackward) {
  for (const std::size_t c : {1u, 5u, 16u, 48u, 60u, 192u}) {
    constexpr std::size_t kRows = 6;
    const auto x = noise(kRows * c, 1, 3), dy = noise(kRows * c, 2);
    const auto weight = noise(c, 3), bias = noise(c, 4);
    const Buffer y = zeros(kRows * c), mean = zeros(kRows), rstd = zeros(kRows);
    const auto n = static_cast<std::int64_t>(c);
    kernels().layernorm_forward(*stream, n, 1e-5f, upload(x), upload(weight), upload(bias), y, mean,
                                rstd);
    const auto forward = [&](const reference::Vector& v) {
      return reference::layernorm(c, 1e-5, v, wide(weight), wide(bias));
    };
    expect_near(floats(y), forward(wide(x)), 2e-5);

    const auto before = noise(kRows * c, 5);
    const Buffer dx = upload(before), dweight = zeros(c), dbias = zeros(c);
    kernels().layernorm_backward(*stream, n, upload(x), upload(weight), mean, rstd, upload(dy), dx,
                                 dweight, dbias);
    auto want = reference::numerical_gradient(forward, wide(x), wide(dy));
    for (std::size_t i = 0; i < want.size(); ++i) want[i] += static_cast<double>(before[i]);
    if (c > 1) expect_near(floats(dx), want, 5e-4);  // c == 1: the gradient is all cancellation
    expect_near(floats(dweight),
                reference::numerical_gradient(
                    [&](const reference::Vector& w) {
                      return reference::layernorm(c, 1e-5, wide(x), w, wide(bias));
                    },
                    wide(weight), wide(dy)),
                1e-4);
    expect_near(floats(dbias),
                reference::numerical_gradient(
                    [&](const reference::Vector& b) {
                      return reference::layernorm(c, 1e-5, wide(x), wide(weight), b);
                    },
                    wide(bias), wide(dy)),
                1e-4);
  }
}

TEST_F(KernelsTest, AddLayernormIsAddThenLayernorm) {
  constexpr std::size_t kRows = 3, kColumns = 40;
  const Buffer a = upload(noise(kRows * kColumns, 1)), b = upload(noise(kRows * kColumns, 2));
  const Buffer weight = upload(noise(kColumns, 3)), bias = upload(noise(kColumns, 4));
  const Buffer sum = zeros(kRows * kColumns), y1 = zeros(kRows * kColumns),
               y2 = zeros(kRows * kColumns), fused = zeros(kRows * kColumns);
  const Buffer mean = zeros(kRows), rstd = zeros(kRows);
  kernels().add(*stream, a, b, sum);
  kernels().layernorm_forward(*stream, kColumns, 1e-5f, sum, weight, bias, y1, mean, rstd);
  kernels().add_layernorm_forward(*stream, kColumns, 1e-5f, a, b, weight, bias, fused, y2, mean,
                                  rstd);
  EXPECT_EQ(floats(fused), floats(sum));
  EXPECT_EQ(floats(y2), floats(y1));
}

TEST_F(KernelsTest, GeluForwardAndBackward) {
  auto x = noise(203, 1, 6);
  x[0] = 0;
  x[1] = 60;
  x[2] = -60;
  const auto dy = noise(x.size(), 2);
  const Buffer y = zeros(x.size()), gradient = upload(dy);
  kernels().gelu_forward(*stream, upload(x), y);
  expect_near(floats(y), reference::gelu(wide(x)), 1e-6);
  kernels().gelu_backward(*stream, upload(x), gradient);
  expect_near(floats(gradient), reference::numerical_gradient(reference::gelu, wide(x), wide(dy)),
              2e-6);
}

TEST_F(KernelsTest, AttentionForwardAndBackward) {
  for (const AttentionShape shape :
       {AttentionShape{.batch = 2, .length = 5, .heads = 3, .head_size = 4},
        {.batch = 1, .length = 64, .heads = 1, .head_size = 20},
        {.batch = 1, .length = 131, .heads = 2, .head_size = 8}}) {
    const auto n = static_cast<std::size_t>(shape.batch * shape.length * shape.hidden());
    const auto qkv = noise(3 * n, 1, 2), dout = noise(n, 2);
    const Buffer in = upload(qkv), out = zeros(n), grad = zeros(3 * n);
    const Buffer saved = zeros(static_cast<std::size_t>(kernels().attention_saved(shape)));
    const Buffer work = zeros(static_cast<std::size_t>(kernels().attention_workspace(shape)));
    kernels().attention_forward(*stream, shape, in, saved, out);
    const auto forward = [&](const reference::Vector& v) { return reference::attention(shape, v); };
    expect_near(floats(out), forward(wide(qkv)), 5e-6);
    kernels().attention_backward(*stream, shape, in, saved, out, upload(dout), work, grad);
    // Some hundred elements of the large shapes are enough, and quick.
    const std::size_t stride = 3 * n < 500 ? 1 : 3 * n / 150 | 1;
    expect_near(floats(grad), reference::numerical_gradient(forward, wide(qkv), wide(dout), stride),
                5e-5, stride);
  }
}

TEST_F(KernelsTest, SoftmaxCrossEntropy) {
  for (const std::size_t vocabulary : {1u, 7u, 16u, 61u, 257u}) {
    const std::size_t columns = (vocabulary + 63) / 64 * 64;
    constexpr std::size_t kRows = 5;
    const auto logits = noise(kRows * columns, 1, 8);
    const auto targets = tokens(kRows, vocabulary, 2);
    const Buffer buffer = upload(logits), losses = zeros(kRows);
    const auto c = static_cast<std::int64_t>(columns), v = static_cast<std::int64_t>(vocabulary);
    kernels().softmax_cross_entropy(*stream, c, v, 0.25f, false, upload(targets), buffer, losses);
    const auto forward = [&](const reference::Vector& x) {
      return reference::cross_entropy(columns, vocabulary, targets, x);
    };
    expect_near(floats(losses), forward(wide(logits)), 2e-6);
    EXPECT_EQ(floats(buffer), logits);
    kernels().softmax_cross_entropy(*stream, c, v, 0.25f, true, upload(targets), buffer, losses);
    expect_near(floats(losses), forward(wide(logits)), 2e-6);
    expect_near(
        floats(buffer),
        reference::numerical_gradient(forward, wide(logits), reference::Vector(kRows, 0.25)), 1e-6);
  }
}

TEST_F(KernelsTest, LossOfBrokenLogitsIsNotFinite) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const float broken : {kNan, kInfinity}) {
    for (const std::size_t place : {0u, 9u, 17u}) {
      auto logits = noise(64, 1);
      logits[place] = broken;
      const Buffer losses = zeros(1);
      kernels().softmax_cross_entropy(*stream, 64, 20, 1.0f, true,
                                      upload(std::vector<std::int32_t>{3}), upload(logits), losses);
      EXPECT_FALSE(std::isfinite(floats(losses)[0])) << broken << " at " << place;
    }
  }
}

TEST_F(KernelsTest, EmbeddingForwardAndBackward) {
  constexpr std::size_t kBatch = 3, kLength = 7, kHidden = 70, kVocabulary = 11;
  constexpr std::size_t kRows = kBatch * kLength;
  const auto ids = tokens(kRows, kVocabulary, 1);
  const auto table = noise(kVocabulary * kHidden, 2), positions = noise(kLength * kHidden, 3);
  const auto dout = noise(kRows * kHidden, 4), before = noise(kVocabulary * kHidden, 5);
  const Buffer out = zeros(kRows * kHidden);
  kernels().embed_forward(*stream, kLength, kHidden, upload(ids), upload(table), upload(positions),
                          out);
  reference::Vector want(kRows * kHidden), dtable = wide(before), dpositions(kLength * kHidden);
  for (std::size_t r = 0; r < kRows; ++r)
    for (std::size_t i = 0; i < kHidden; ++i) {
      const auto token = static_cast<std::size_t>(ids[r]);
      want[r * kHidden + i] = static_cast<double>(table[token * kHidden + i]) +
                              static_cast<double>(positions[r % kLength * kHidden + i]);
      dtable[token * kHidden + i] += static_cast<double>(dout[r * kHidden + i]);
      dpositions[r % kLength * kHidden + i] += static_cast<double>(dout[r * kHidden + i]);
    }
  expect_near(floats(out), want, 1e-6);
  const Buffer token_gradient = upload(before), position_gradient = zeros(kLength * kHidden);
  const Buffer work =
      blank(DType::kI32, static_cast<std::size_t>(kernels().embed_workspace(kRows, kVocabulary)));
  kernels().embed_backward(*stream, kLength, kHidden, kVocabulary, upload(ids), upload(dout), work,
                           token_gradient, position_gradient);
  expect_near(floats(token_gradient), dtable, 1e-6);
  expect_near(floats(position_gradient), dpositions, 1e-6);
}

TEST_F(KernelsTest, ColumnSum) {
  constexpr std::size_t kRows = 11, kColumns = 37;
  const auto x = noise(kRows * kColumns, 1);
  reference::Vector want(kColumns);
  for (std::size_t i = 0; i < x.size(); ++i) want[i % kColumns] += static_cast<double>(x[i]);
  const Buffer out = zeros(kColumns);
  kernels().column_sum(*stream, kColumns, upload(x), out);
  expect_near(floats(out), want, 1e-6);
}

TEST_F(KernelsTest, AdamW) {
  constexpr std::size_t kCount = 77;
  const auto g = noise(kCount, 1), p = noise(kCount, 2), m = noise(kCount, 3, 0.1);
  auto v = noise(kCount, 4, 0.01);
  for (float& x : v) x = std::abs(x);
  const AdamWStep step{.learning_rate = 0.01f,
                       .beta1 = 0.9f,
                       .beta2 = 0.95f,
                       .epsilon = 1e-8f,
                       .weight_decay = 0.1f,
                       .first_correction = 0.271f,
                       .second_correction = 0.3776f,
                       .gradient_scale = 0.5f};
  const Buffer parameters = upload(p), first = upload(m), second = upload(v);
  kernels().adamw(*stream, step, upload(g), parameters, first, second);
  reference::Vector want_p, want_m, want_v;
  for (std::size_t i = 0; i < kCount; ++i) {
    const double gradient = static_cast<double>(g[i]) * 0.5;
    want_m.push_back(0.9 * static_cast<double>(m[i]) + 0.1 * gradient);
    want_v.push_back(0.95 * static_cast<double>(v[i]) + 0.05 * gradient * gradient);
    want_p.push_back(static_cast<double>(p[i]) * (1 - 0.01 * 0.1) -
                     0.01 / 0.271 * want_m[i] / (std::sqrt(want_v[i]) / 0.3776 + 1e-8));
  }
  expect_near(floats(first), want_m, 1e-6);
  expect_near(floats(second), want_v, 1e-6);
  expect_near(floats(parameters), want_p, 1e-6);
}

TEST_F(KernelsTest, QuantiseAddsIntegersAndGuards) {
  constexpr int kFraction = 26, kShift = 12;
  auto g = noise(3 * 256, 1, 0.9);
  std::fill(g.begin() + 256, g.begin() + 512, 0.0f);
  const std::vector<std::int32_t> exponents = {0, 5, -2};
  const Buffer sums = blank(DType::kI32, g.size()), guards = blank(DType::kI32, 3);
  for (int twice = 0; twice < 2; ++twice)
    kernels().quantise_add(*stream, kFraction, kShift, upload(exponents), upload(g), sums, guards);
  const auto q = ints(sums);
  for (std::size_t i = 0; i < g.size(); ++i) {
    const double scale = std::ldexp(1.0, kFraction - exponents[i / 256]);
    ASSERT_EQ(q[i], 2 * std::llrint(static_cast<double>(g[i]) * scale));
  }
  const auto guard = ints(guards);
  std::int64_t largest = 0;
  for (std::size_t i = 0; i < 256; ++i)
    largest = std::max<std::int64_t>(largest, std::abs(q[i]) / 2);
  EXPECT_EQ(guard[0], 2 * ((largest + 4095) / 4096));
  EXPECT_EQ(guard[1], 0);

  const Buffer back = zeros(g.size());
  kernels().dequantise(*stream, kFraction, 0.5f, upload(exponents), sums, back);
  expect_near(floats(back), wide(g), 1e-7);
}

// kernels.h, Dither: whatever turn J the circle has, points all round it round up in just one arc.
TEST_F(KernelsTest, DitherRoundsUpInOneArcOfTheCircle) {
  constexpr int kFraction = 4;
  constexpr std::uint32_t kPoints = 64;
  auto g = noise(2 * 256, 3, 3.0);
  g[7] = 0.0f;
  g[8] = -2.0f;
  const std::vector<std::int32_t> exponents = {0, 1};
  std::vector<std::int64_t> total(g.size());
  for (std::uint32_t k = 0; k < kPoints; ++k) {
    const Buffer sums = blank(DType::kI32, g.size()), guards = blank(DType::kI32, 2);
    kernels().dither_add(*stream, kFraction, 4, {.key = 99, .offset = k << 26}, upload(exponents),
                         upload(g), sums, guards);
    const auto q = ints(sums), guard = ints(guards);
    for (std::size_t block = 0; block < 2; ++block) {
      double top = 0;
      for (std::size_t i = block * 256; i < block * 256 + 256; ++i) {
        const double x = std::ldexp(static_cast<double>(g[i]), kFraction - exponents[block]);
        ASSERT_TRUE(q[i] == std::floor(x) || q[i] == std::ceil(x)) << x << " became " << q[i];
        top = std::max(top, std::abs(x));
        total[i] += q[i];
      }
      EXPECT_EQ(guard[block], static_cast<std::int32_t>(std::ceil(std::ceil(top) / 16)));
    }
  }
  // Points all round the circle: what is rounded up is what rounding down left, to less than one.
  for (std::size_t i = 0; i < g.size(); ++i) {
    const double x = std::ldexp(static_cast<double>(g[i]), kFraction - exponents[i / 256]);
    ASSERT_LT(std::abs(static_cast<double>(total[i]) - kPoints * x), 1 + 1e-6) << x;
  }
}

// The turn of the circle: uniform over elements and over keys, and another for each.
TEST_F(KernelsTest, DitherIsUniformAndIndependent) {
  constexpr std::size_t kCount = 64 * 256;
  const std::vector<float> g(kCount, 0.25f);
  const Buffer gradient = upload(g), exponents = blank(DType::kI32, kCount / 256);
  std::vector<std::int32_t> last;
  for (std::uint64_t key = 0; key < 16; ++key) {
    const Buffer sums = blank(DType::kI32, kCount), guards = blank(DType::kI32, kCount / 256);
    kernels().dither_add(*stream, 0, 4, {.key = key, .offset = 0}, exponents, gradient, sums,
                         guards);
    const auto q = ints(sums);
    double up = 0, again = 0, neighbours = 0, blocks = 0;
    for (std::size_t i = 0; i < kCount; ++i) {
      up += q[i];
      again += last.empty() ? 0 : q[i] * last[i];
      neighbours += i + 1 < kCount ? q[i] * q[i + 1] : 0;
      blocks += i + 256 < kCount ? q[i] * q[i + 256] : 0;
    }
    EXPECT_NEAR(up / kCount, 0.25, 4.5 * std::sqrt(0.25 * 0.75 / kCount));
    for (const double both : {neighbours, blocks, last.empty() ? kCount / 16.0 : again})
      EXPECT_NEAR(both / kCount, 0.0625, 0.01);
    last = q;
  }
}

TEST_F(KernelsTest, DitherRefusesWhatDoesNotFit) {
  for (const float broken : {std::numeric_limits<float>::quiet_NaN(),
                             std::numeric_limits<float>::infinity(), -32.0f, 1e30f}) {
    auto g = noise(2 * 256, 1);
    g[300] = broken;
    const Buffer sums = blank(DType::kI32, g.size()), guards = blank(DType::kI32, 2);
    kernels().dither_add(*stream, 26, 12, {.key = 1, .offset = 2}, blank(DType::kI32, 2), upload(g),
                         sums, guards);
    const auto q = ints(sums);
    EXPECT_TRUE(std::all_of(q.begin() + 256, q.end(), [](std::int32_t x) { return x == 0; }));
    EXPECT_EQ(ints(guards)[1], 1 << 19);
    EXPECT_LT(ints(guards)[0], 1 << 19);
  }
}

TEST_F(KernelsTest, QuantiseRefusesWhatDoesNotFit) {
  for (const float broken : {std::numeric_limits<float>::quiet_NaN(),
                             std::numeric_limits<float>::infinity(), -32.0f, 1e30f}) {
    auto g = noise(2 * 256, 1);
    g[300] = broken;  // -32 * 2^26 is exactly -2^31: one too large
    const Buffer sums = blank(DType::kI32, g.size()), guards = blank(DType::kI32, 2);
    kernels().quantise_add(*stream, 26, 12, upload(std::vector<std::int32_t>{0, 0}), upload(g),
                           sums, guards);
    const auto q = ints(sums);
    EXPECT_TRUE(std::all_of(q.begin() + 256, q.end(), [](std::int32_t x) { return x == 0; }));
    EXPECT_EQ(ints(guards)[1], 1 << 19);
    EXPECT_LT(ints(guards)[0], 1 << 19);
  }
}

TEST_F(KernelsTest, BlockExponents) {
  std::vector<float> x(6 * 256);
  x[0] = 1.0f;
  x[256 + 9] = -1.5f;
  x[512 + 255] = 0.2499f;
  x[768] = 1e-42f;  // denormal: counts as zero
  x[1024 + 3] = -3e38f;
  const Buffer out = blank(DType::kI32, 6);
  kernels().block_exponents(*stream, upload(x), out);
  EXPECT_EQ(ints(out), (std::vector<std::int32_t>{0, 1, -2, Kernels::kZeroExponent, 128,
                                                  Kernels::kZeroExponent}));
}

TEST_F(KernelsTest, SquaredNormChunks) {
  const std::size_t count = 2 * kNormChunkElements + 512;
  const auto x = noise(count, 1);
  const Buffer out = blank(DType::kF64, 3);
  kernels().squared_norm_chunks(*stream, upload(x), out);
  double chunks[3];
  device->copy_to_host(*stream, chunks, out);
  ASSERT_TRUE(stream->synchronize().ok());
  for (std::size_t c = 0; c < 3; ++c) {
    double want = 0;
    for (std::size_t i = c * kNormChunkElements;
         i < std::min<std::size_t>(count, (c + 1) * kNormChunkElements); ++i)
      want += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    EXPECT_NEAR(chunks[c], want, 1e-12 * want);
  }
}

TEST_F(KernelsTest, AddI32Wraps) {
  const Buffer to =
      upload(std::vector<std::int32_t>{1, std::numeric_limits<std::int32_t>::max(), -5});
  kernels().add_i32(*stream, upload(std::vector<std::int32_t>{2, 1, 5}), to);
  EXPECT_EQ(ints(to), (std::vector<std::int32_t>{3, std::numeric_limits<std::int32_t>::min(), 0}));
}

// Of every length of a last row: linear, and no place weighs what another does.
TEST_F(KernelsTest, WeightedSums) {
  const auto weighed = [&](const std::vector<std::int32_t>& x) {
    const std::size_t chunks = (x.size() + kNormChunkElements - 1) / kNormChunkElements;
    const Buffer out = blank(DType::kI64, chunks);
    kernels().weighted_sums(*stream, upload(x), out);
    std::vector<std::int64_t> sums(chunks);
    device->copy_to_host(*stream, sums.data(), out);
    EXPECT_TRUE(stream->synchronize().ok());
    return std::vector<std::uint64_t>(sums.begin(), sums.end());
  };
  std::set<std::uint64_t> weights;
  for (const std::size_t at : {0u, 1u, 15u, 16u, 17u, 32u, 300u, 16383u}) {
    std::vector<std::int32_t> one(kNormChunkElements);
    one[at] = 1;
    weights.insert(weighed(one)[0]);
    EXPECT_EQ(weighed(one)[0] & 1, 1u) << "any one error shows, also modulo 2^32: " << at;
  }
  EXPECT_EQ(weights.size(), 8u);
  Rng rng(5);
  for (std::size_t count = 1; count < 300; count += count < 40 ? 1 : 37) {
    std::vector<std::int32_t> a(kNormChunkElements + count), b(a.size()), sum(a.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
      a[i] = static_cast<std::int32_t>(rng.below(1u << 31)) - (1 << 30);
      b[i] = static_cast<std::int32_t>(rng.below(1u << 31)) - (1 << 30);
      sum[i] = a[i] + b[i];
    }
    const auto of_a = weighed(a), of_b = weighed(b), of_sum = weighed(sum);
    ASSERT_EQ(of_sum[0], of_a[0] + of_b[0]);
    ASSERT_EQ(of_sum[1], of_a[1] + of_b[1]) << count;
    sum.back() ^= 1 << 30;
    ASSERT_NE(weighed(sum)[1], of_sum[1]) << count;
  }
}

}  // namespace
}  // namespace rubato::worker::testing
