// The kernels that came with Llama, as in kernels_test.cc.
#include "tests/unit/worker/backend/kernel_bench.h"

#include <algorithm>

namespace rubato::worker::testing {
namespace {

class LlamaKernelsTest : public KernelBench {};

TEST_F(LlamaKernelsTest, RmsnormForwardAndBackward) {
  for (const std::size_t c : {1u, 5u, 16u, 48u, 60u, 192u}) {
    constexpr std::size_t kRows = 6;
    const auto x = noise(kRows * c, 1, 3), dy = noise(kRows * c, 2), weight = noise(c, 3);
    const Buffer y = zeros(kRows * c), rstd = zeros(kRows);
    const auto n = static_cast<std::int64_t>(c);
    kernels().rmsnorm_forward(*stream, n, 1e-5f, upload(x), upload(weight), y, rstd);
    const auto forward = [&](const reference::Vector& v) {
      return reference::rmsnorm(c, 1e-5, v, wide(weight));
    };
    expect_near(floats(y), forward(wide(x)), 1e-6);

    const auto before = noise(kRows * c, 5);
    const Buffer dx = upload(before), dweight = zeros(c);
    kernels().rmsnorm_backward(*stream, n, upload(x), upload(weight), rstd, upload(dy), dx,
                               dweight);
    auto want = reference::numerical_gradient(forward, wide(x), wide(dy));
    for (std::size_t i = 0; i < want.size(); ++i) want[i] += static_cast<double>(before[i]);
    expect_near(floats(dx), want, c > 1 ? 2e-5 : 5e-3);  // c == 1: all cancellation
    expect_near(
        floats(dweight),
        reference::numerical_gradient(
            [&](const reference::Vector& w) { return reference::rmsnorm(c, 1e-5, wide(x), w); },
            wide(weight), wide(dy)),
        2e-5);
  }
}

TEST_F(LlamaKernelsTest, AddRmsnormIsAddThenRmsnorm) {
  constexpr std::size_t kRows = 3, kColumns = 40;
  const Buffer a = upload(noise(kRows * kColumns, 1)), b = upload(noise(kRows * kColumns, 2));
  const Buffer weight = upload(noise(kColumns, 3)), sum = zeros(kRows * kColumns);
  const Buffer y1 = zeros(kRows * kColumns), y2 = zeros(kRows * kColumns), rstd = zeros(kRows);
  kernels().add(*stream, a, b, sum);
  kernels().rmsnorm_forward(*stream, kColumns, 1e-5f, sum, weight, y1, rstd);
  kernels().add_rmsnorm_forward(*stream, kColumns, 1e-5f, a, b, weight, a, y2, rstd);
  EXPECT_EQ(floats(a), floats(sum));
  EXPECT_EQ(floats(y2), floats(y1));
}

TEST_F(LlamaKernelsTest, SwigluForwardAndBackward) {
  for (const std::size_t width : {1u, 16u, 37u, 96u}) {
    constexpr std::size_t kRows = 5;
    auto x = noise(kRows * 2 * width, 1, 6);
    x[0] = 90;
    x[2 * width] = -90;
    const auto dy = noise(kRows * width, 2);
    const Buffer y = zeros(dy.size()), gradient = zeros(x.size());
    const auto n = static_cast<std::int64_t>(width);
    kernels().swiglu_forward(*stream, n, upload(x), y);
    const auto forward = [&](const reference::Vector& v) { return reference::swiglu(width, v); };
    expect_near(floats(y), forward(wide(x)), 1e-6);
    kernels().swiglu_backward(*stream, n, upload(x), upload(dy), gradient);
    expect_near(floats(gradient), reference::numerical_gradient(forward, wide(x), wide(dy)), 3e-6);
  }
}

TEST_F(LlamaKernelsTest, RotationsTurnAndTurnBack) {
  RotaryShape shape{.length = 7, .heads = 3, .head_size = 6, .columns = 23};
  constexpr std::size_t kRows = 14;
  const auto x = noise(kRows * 23, 1);
  std::vector<float> angles;
  for (std::int64_t t = 0; t < shape.length; ++t) {
    for (int i = 0; i < 3; ++i)
      angles.push_back(static_cast<float>(std::cos(static_cast<double>(t) / (1 + i))));
    for (int i = 0; i < 3; ++i)
      angles.push_back(static_cast<float>(std::sin(static_cast<double>(t) / (1 + i))));
  }
  const Buffer there = upload(x);
  kernels().rotate(*stream, shape, upload(angles), there);
  const auto turned = floats(there);
  for (std::size_t r = 0; r < kRows; ++r)
    for (std::size_t i = 0; i < 23; ++i) {
      const std::size_t pair = i % 6 % 3;
      const double angle = static_cast<double>(r % 7) / (1.0 + static_cast<double>(pair));
      const double a = static_cast<double>(x[r * 23 + i / 6 * 6 + pair]);
      const double b =
          static_cast<double>(x[r * 23 + std::min<std::size_t>(i / 6 * 6 + pair + 3, 22)]);
      const double want = i >= 18     ? static_cast<double>(x[r * 23 + i])
                          : i % 6 < 3 ? a * std::cos(angle) - b * std::sin(angle)
                                      : b * std::cos(angle) + a * std::sin(angle);
      ASSERT_NEAR(static_cast<double>(turned[r * 23 + i]), want, 1e-6) << r << " " << i;
    }
  shape.is_inverse = true;
  kernels().rotate(*stream, shape, upload(angles), there);
  expect_near(floats(there), wide(x), 1e-6);
}

TEST_F(LlamaKernelsTest, AttentionWithFewerKeyHeads) {
  for (const AttentionShape shape :
       {AttentionShape{.batch = 2, .length = 5, .heads = 4, .head_size = 4, .kv_heads = 2},
        {.batch = 1, .length = 70, .heads = 3, .head_size = 6, .kv_heads = 1}}) {
    const auto rows = static_cast<std::size_t>(shape.batch * shape.length);
    const std::size_t n = rows * static_cast<std::size_t>(shape.hidden());
    const std::size_t packed = rows * static_cast<std::size_t>(shape.columns());
    const auto qkv = noise(packed, 1, 2), dout = noise(n, 2);
    const Buffer in = upload(qkv), out = zeros(n), grad = zeros(packed);
    const Buffer saved = zeros(static_cast<std::size_t>(kernels().attention_saved(shape)));
    const Buffer work = zeros(static_cast<std::size_t>(kernels().attention_workspace(shape)));
    kernels().attention_forward(*stream, shape, in, saved, out);
    const auto forward = [&](const reference::Vector& v) { return reference::attention(shape, v); };
    expect_near(floats(out), forward(wide(qkv)), 5e-6);
    kernels().attention_backward(*stream, shape, in, saved, out, upload(dout), work, grad);
    const std::size_t stride = packed < 500 ? 1 : packed / 150 | 1;
    expect_near(floats(grad), reference::numerical_gradient(forward, wide(qkv), wide(dout), stride),
                5e-5, stride);
  }
}

TEST_F(LlamaKernelsTest, EmbeddingWithoutPositions) {
  constexpr std::int64_t kHidden = 20, kVocabulary = 11;
  const auto ids = tokens(12, kVocabulary, 1);
  const auto table = noise(kVocabulary * kHidden, 2), dout = noise(12 * kHidden, 3);
  const Buffer out = zeros(12 * kHidden), gradient = zeros(table.size());
  const Buffer work =
      blank(DType::kI32, static_cast<std::size_t>(kernels().embed_workspace(12, kVocabulary)));
  kernels().embed_forward(*stream, 6, kHidden, upload(ids), upload(table), {}, out);
  kernels().embed_backward(*stream, 6, kHidden, kVocabulary, upload(ids), upload(dout), work,
                           gradient, {});
  reference::Vector rows, want(table.size());
  for (std::size_t r = 0; r < ids.size(); ++r)
    for (std::size_t i = 0; i < kHidden; ++i) {
      const std::size_t at = static_cast<std::size_t>(ids[r]) * kHidden + i;
      rows.push_back(static_cast<double>(table[at]));
      want[at] += static_cast<double>(dout[r * kHidden + i]);
    }
  expect_near(floats(out), rows, 0);
  expect_near(floats(gradient), want, 1e-6);
}

}  // namespace
}  // namespace rubato::worker::testing
