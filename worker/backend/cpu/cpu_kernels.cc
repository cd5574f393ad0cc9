#include "worker/backend/cpu/cpu_kernels.h"

#include "worker/backend/cpu/float_mode.h"
#include "worker/backend/cpu/gemm.h"
#include "worker/backend/pointers.h"

#include <vector>

namespace rubato::worker::cpu {

namespace {

const Ops& ops_of(Isa isa) {
  switch (isa) {
    case Isa::kSse41:
      return ops_sse41();
    case Isa::kAvx2:
      return ops_avx2();
    case Isa::kAvx512:
    case Isa::kAvx512Bf16:
    case Isa::kAmx:
      return ops_avx512();
  }
  return ops_sse41();
}

// Rows of a matrix with that many columns.
std::int64_t rows_of(ConstBuffer x, std::int64_t columns) {
  CHECK_GT(columns, 0);
  CHECK_EQ(x.count() % columns, 0);
  return x.count() / columns;
}

}  // namespace

CpuKernels::CpuKernels(Isa isa) : ops_(ops_of(isa)), precision_(precision_of(isa)) {}

std::uint16_t* CpuKernels::rounded(std::size_t factor, ConstBuffer x) const {
  // Of a thread, as a device may be shared. They grow in the first micro-batch.
  thread_local std::vector<std::uint16_t> factors[2];
  std::vector<std::uint16_t>& out = factors[factor];
  const auto count = static_cast<std::size_t>(x.count());
  if (out.size() < count) out.resize(count);
  ops_.to_bf16(x.count(), f32(x), out.data());
  return out.data();
}

void CpuKernels::gemm(Stream&, const GemmShape& s, ConstBuffer a, ConstBuffer b, ConstBuffer bias,
                      Buffer c) {
  CHECK_EQ(a.count(), s.m * s.k);
  CHECK_EQ(b.count(), s.k * s.n);
  CHECK_EQ(c.count(), s.m * s.n);
  CHECK(bias.is_empty() || (!s.accumulate && bias.count() == s.n));
  const FloatMode mode;
  if (!bias.is_empty()) ops_.broadcast_row(s.m, s.n, f32(bias), f32(c));
  const bool adds = s.accumulate || !bias.is_empty();
  if (precision_ == Precision::kBf16) {
    GemmShape shape = s;
    shape.accumulate = adds;
    bf16_gemm(shape, rounded(0, a), rounded(1, b), f32(c));
    return;
  }
  const float beta = adds ? 1.0f : 0.0f;
  sgemm(s.transpose_a, s.transpose_b, s.m, s.n, s.k, 1.0f, f32(a), s.transpose_a ? s.m : s.k,
        f32(b), s.transpose_b ? s.k : s.n, beta, f32(c), s.n);
}

void CpuKernels::embed_forward(Stream&, std::int64_t length, std::int64_t hidden,
                               ConstBuffer tokens, ConstBuffer token_table,
                               ConstBuffer position_table, Buffer out) {
  CHECK_EQ(out.count(), tokens.count() * hidden);
  CHECK(position_table.is_empty() || position_table.count() >= length * hidden);
  const FloatMode mode;
  ops_.embed_forward(tokens.count(), length, hidden, i32(tokens), f32(token_table),
                     f32(position_table), f32(out));
}

void CpuKernels::embed_backward(Stream&, std::int64_t length, std::int64_t hidden,
                                std::int64_t vocabulary, ConstBuffer tokens,
                                ConstBuffer out_gradient, Buffer workspace, Buffer token_gradient,
                                Buffer position_gradient) {
  CHECK_EQ(out_gradient.count(), tokens.count() * hidden);
  CHECK_GE(workspace.count(), embed_workspace(tokens.count(), vocabulary));
  CHECK_GE(token_gradient.count(), vocabulary * hidden);
  CHECK(position_gradient.is_empty() || position_gradient.count() >= length * hidden);
  const FloatMode mode;
  ops_.embed_backward(tokens.count(), length, hidden, vocabulary, i32(tokens), f32(out_gradient),
                      i32(workspace), f32(token_gradient), f32(position_gradient));
}

std::int64_t CpuKernels::embed_workspace(std::int64_t tokens, std::int64_t vocabulary) const {
  return vocabulary + 1 + tokens;
}

void CpuKernels::layernorm_forward(Stream&, std::int64_t hidden, float epsilon, ConstBuffer x,
                                   ConstBuffer weight, ConstBuffer bias, Buffer y, Buffer mean,
                                   Buffer rstd) {
  const std::int64_t rows = rows_of(x, hidden);
  CHECK(y.count() == x.count() && mean.count() == rows && rstd.count() == rows);
  CHECK(weight.count() == hidden && bias.count() == hidden);
  const FloatMode mode;
  ops_.layernorm_forward(rows, hidden, epsilon, f32(x), nullptr, f32(weight), f32(bias), nullptr,
                         f32(y), f32(mean), f32(rstd));
}

void CpuKernels::add_layernorm_forward(Stream&, std::int64_t hidden, float epsilon, ConstBuffer a,
                                       ConstBuffer b, ConstBuffer weight, ConstBuffer bias,
                                       Buffer sum, Buffer y, Buffer mean, Buffer rstd) {
  const std::int64_t rows = rows_of(a, hidden);
  CHECK(b.count() == a.count() && sum.count() == a.count() && y.count() == a.count());
  CHECK(mean.count() == rows && rstd.count() == rows);
  CHECK(weight.count() == hidden && bias.count() == hidden);
  const FloatMode mode;
  ops_.layernorm_forward(rows, hidden, epsilon, f32(a), f32(b), f32(weight), f32(bias), f32(sum),
                         f32(y), f32(mean), f32(rstd));
}

void CpuKernels::layernorm_backward(Stream&, std::int64_t hidden, ConstBuffer x, ConstBuffer weight,
                                    ConstBuffer mean, ConstBuffer rstd, ConstBuffer y_gradient,
                                    Buffer x_gradient, Buffer weight_gradient,
                                    Buffer bias_gradient) {
  const std::int64_t rows = rows_of(x, hidden);
  CHECK(y_gradient.count() == x.count() && x_gradient.count() == x.count());
  CHECK(mean.count() == rows && rstd.count() == rows && weight.count() == hidden);
  CHECK(weight_gradient.count() == hidden && bias_gradient.count() == hidden);
  const FloatMode mode;
  ops_.layernorm_backward(rows, hidden, f32(x), f32(weight), f32(mean), f32(rstd), f32(y_gradient),
                          f32(x_gradient), f32(weight_gradient), f32(bias_gradient));
}

void CpuKernels::rmsnorm_forward(Stream&, std::int64_t hidden, float epsilon, ConstBuffer x,
                                 ConstBuffer weight, Buffer y, Buffer rstd) {
  const std::int64_t rows = rows_of(x, hidden);
  CHECK(y.count() == x.count() && rstd.count() == rows && weight.count() == hidden);
  const FloatMode mode;
  ops_.rmsnorm_forward(rows, hidden, epsilon, f32(x), nullptr, f32(weight), nullptr, f32(y),
                       f32(rstd));
}

void CpuKernels::add_rmsnorm_forward(Stream&, std::int64_t hidden, float epsilon, ConstBuffer a,
                                     ConstBuffer b, ConstBuffer weight, Buffer sum, Buffer y,
                                     Buffer rstd) {
  const std::int64_t rows = rows_of(a, hidden);
  CHECK(b.count() == a.count() && sum.count() == a.count() && y.count() == a.count());
  CHECK(rstd.count() == rows && weight.count() == hidden);
  const FloatMode mode;
  ops_.rmsnorm_forward(rows, hidden, epsilon, f32(a), f32(b), f32(weight), f32(sum), f32(y),
                       f32(rstd));
}

void CpuKernels::rmsnorm_backward(Stream&, std::int64_t hidden, ConstBuffer x, ConstBuffer weight,
                                  ConstBuffer rstd, ConstBuffer y_gradient, Buffer x_gradient,
                                  Buffer weight_gradient) {
  const std::int64_t rows = rows_of(x, hidden);
  CHECK(y_gradient.count() == x.count() && x_gradient.count() == x.count());
  CHECK(rstd.count() == rows && weight.count() == hidden && weight_gradient.count() == hidden);
  const FloatMode mode;
  ops_.rmsnorm_backward(rows, hidden, f32(x), f32(weight), f32(rstd), f32(y_gradient),
                        f32(x_gradient), f32(weight_gradient));
}

void CpuKernels::swiglu_forward(Stream&, std::int64_t width, ConstBuffer gate_up, Buffer y) {
  const std::int64_t rows = rows_of(y, width);
  CHECK_EQ(gate_up.count(), 2 * y.count());
  const FloatMode mode;
  ops_.swiglu_forward(rows, width, f32(gate_up), f32(y));
}

void CpuKernels::swiglu_backward(Stream&, std::int64_t width, ConstBuffer gate_up,
                                 ConstBuffer y_gradient, Buffer gate_up_gradient) {
  const std::int64_t rows = rows_of(y_gradient, width);
  CHECK(gate_up.count() == 2 * y_gradient.count() && gate_up_gradient.count() == gate_up.count());
  const FloatMode mode;
  ops_.swiglu_backward(rows, width, f32(gate_up), f32(y_gradient), f32(gate_up_gradient));
}

void CpuKernels::rotate(Stream&, const RotaryShape& s, ConstBuffer angles, Buffer x) {
  const std::int64_t rows = rows_of(x, s.columns);
  CHECK(s.head_size % 2 == 0 && s.heads * s.head_size <= s.columns);
  CHECK(s.length > 0 && angles.count() >= s.length * s.head_size);
  const FloatMode mode;
  ops_.rotate({rows, s.length, s.heads, s.head_size, s.columns, s.is_inverse}, f32(angles), f32(x));
}

void CpuKernels::gelu_forward(Stream&, ConstBuffer x, Buffer y) {
  CHECK_EQ(x.count(), y.count());
  const FloatMode mode;
  ops_.gelu_forward(x.count(), f32(x), f32(y));
}

void CpuKernels::gelu_backward(Stream&, ConstBuffer x, Buffer gradient) {
  CHECK_EQ(x.count(), gradient.count());
  const FloatMode mode;
  ops_.gelu_backward(x.count(), f32(x), f32(gradient));
}

void CpuKernels::add(Stream&, ConstBuffer a, ConstBuffer b, Buffer out) {
  CHECK(a.count() == b.count() && a.count() == out.count());
  const FloatMode mode;
  ops_.add(a.count(), f32(a), f32(b), f32(out));
}

void CpuKernels::column_sum(Stream&, std::int64_t columns, ConstBuffer x, Buffer out) {
  CHECK_EQ(out.count(), columns);
  const FloatMode mode;
  ops_.column_sum(rows_of(x, columns), columns, f32(x), f32(out));
}

void CpuKernels::softmax_cross_entropy(Stream&, std::int64_t columns, std::int64_t vocabulary,
                                       float scale, bool write_gradient, ConstBuffer targets,
                                       Buffer logits, Buffer losses) {
  const std::int64_t rows = rows_of(logits, columns);
  CHECK(targets.count() == rows && losses.count() == rows);
  CHECK(vocabulary > 0 && vocabulary <= columns);
  const FloatMode mode;
  ops_.softmax_cross_entropy(rows, columns, vocabulary, scale, write_gradient, i32(targets),
                             f32(logits), f32(losses));
}

void CpuKernels::adamw(Stream&, const AdamWStep& step, ConstBuffer gradient, Buffer parameters,
                       Buffer exp_avg, Buffer exp_avg_sq) {
  const std::int64_t n = gradient.count();
  CHECK(parameters.count() == n && exp_avg.count() == n && exp_avg_sq.count() == n);
  const AdamWOp op{step.learning_rate,     step.beta1,         step.beta2,
                   step.epsilon,           step.weight_decay,  step.first_correction,
                   step.second_correction, step.gradient_scale};
  const FloatMode mode;
  ops_.adamw(n, op, f32(gradient), f32(parameters), f32(exp_avg), f32(exp_avg_sq));
}

void CpuKernels::quantise_add(Stream&, int fraction_bits, int guard_shift, ConstBuffer exponents,
                              ConstBuffer gradient, Buffer sums, Buffer guards) {
  const std::int64_t blocks = rows_of(gradient, kBlockElements);
  CHECK(exponents.count() == blocks && guards.count() == blocks);
  CHECK_EQ(sums.count(), gradient.count());
  const FloatMode mode;
  ops_.quantise_add(gradient.count(), fraction_bits, guard_shift, i32(exponents), f32(gradient),
                    i32(sums), i32(guards));
}

void CpuKernels::dither_add(Stream&, int fraction_bits, int guard_shift, const Dither& dither,
                            ConstBuffer exponents, ConstBuffer gradient, Buffer sums,
                            Buffer guards) {
  const std::int64_t blocks = rows_of(gradient, kBlockElements);
  CHECK(exponents.count() == blocks && guards.count() == blocks);
  CHECK_EQ(sums.count(), gradient.count());
  const FloatMode mode;
  ops_.dither_add(gradient.count(), {fraction_bits, guard_shift, dither.key, dither.offset},
                  i32(exponents), f32(gradient), i32(sums), i32(guards));
}

void CpuKernels::dequantise(Stream&, int fraction_bits, float factor, ConstBuffer exponents,
                            ConstBuffer sums, Buffer gradient) {
  CHECK_EQ(exponents.count(), rows_of(gradient, kBlockElements));
  CHECK_EQ(sums.count(), gradient.count());
  const FloatMode mode;
  ops_.dequantise(gradient.count(), fraction_bits, factor, i32(exponents), i32(sums),
                  f32(gradient));
}

void CpuKernels::block_exponents(Stream&, ConstBuffer x, Buffer out) {
  CHECK_EQ(out.count(), rows_of(x, kBlockElements));
  ops_.block_exponents(x.count(), kZeroExponent, f32(x), i32(out));
}

void CpuKernels::squared_norm_chunks(Stream&, ConstBuffer x, Buffer out) {
  CHECK_EQ(x.count() % kBlockElements, 0);
  CHECK_EQ(out.count(), (x.count() + kNormChunkElements - 1) / kNormChunkElements);
  const FloatMode mode;
  ops_.squared_norm_chunks(x.count(), kNormChunkElements, f32(x), f64(out));
}

void CpuKernels::add_i32(Stream&, ConstBuffer from, Buffer to) {
  CHECK_EQ(from.count(), to.count());
  ops_.add_i32(from.count(), i32(from), i32(to));
}

void CpuKernels::weighted_sums(Stream&, ConstBuffer x, Buffer out) {
  CHECK_EQ(out.count(), (x.count() + kNormChunkElements - 1) / kNormChunkElements);
  ops_.weighted_sums(x.count(), kNormChunkElements, i32(x), i64(out));
}

}  // namespace rubato::worker::cpu
