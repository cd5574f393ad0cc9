#include "worker/backend/cuda/cuda_kernels.h"

#include "worker/backend/cuda/ops.h"
#include "worker/backend/pointers.h"

namespace rubato::worker::cuda {

namespace {

// The stream of one call: entered when it begins, and asked for launch errors when it ends.
class Launch {
 public:
  Launch(Stream& stream, const char* what)
      : stream_(static_cast<CudaStream&>(stream)), raw_(stream_.enter()), what_(what) {}
  ~Launch() { stream_.note_launch(what_); }
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;
  operator RawStream() const { return raw_; }  // NOLINT: it is one

 private:
  CudaStream& stream_;
  RawStream raw_;
  const char* what_;
};

// Rows of a matrix with that many columns.
std::int64_t rows_of(ConstBuffer x, std::int64_t columns) {
  CHECK_GT(columns, 0);
  CHECK_EQ(x.count() % columns, 0);
  return x.count() / columns;
}

AttentionOp op_of(const AttentionShape& shape, std::initializer_list<const void*> matrices) {
  constexpr std::int64_t kGridMax = 65535;
  CHECK(shape.batch <= kGridMax && shape.heads <= kGridMax);
  CHECK(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0);
  constexpr std::int64_t kWide = 4;
  bool is_wide = shape.head_size % kWide == 0;
  for (const void* matrix : matrices)
    is_wide = is_wide && reinterpret_cast<std::uintptr_t>(matrix) % (kWide * sizeof(float)) == 0;
  return {shape.batch, shape.length, shape.heads, shape.head_size, shape.kv_heads, is_wide};
}

}  // namespace

void CudaKernels::gemm(Stream& stream, const GemmShape& s, ConstBuffer a, ConstBuffer b,
                       ConstBuffer bias, Buffer c) {
  CHECK_EQ(a.count(), s.m * s.k);
  CHECK_EQ(b.count(), s.k * s.n);
  CHECK_EQ(c.count(), s.m * s.n);
  CHECK(bias.is_empty() || (!s.accumulate && bias.count() == s.n));
  matmul_.run(static_cast<CudaStream&>(stream), s, f32(a), f32(b),
              bias.is_empty() ? nullptr : f32(bias), f32(c));
}

void CudaKernels::embed_forward(Stream& stream, std::int64_t length, std::int64_t hidden,
                                ConstBuffer tokens, ConstBuffer token_table,
                                ConstBuffer position_table, Buffer out) {
  CHECK_EQ(out.count(), tokens.count() * hidden);
  CHECK(position_table.is_empty() || position_table.count() >= length * hidden);
  const Launch launch(stream, "embed_forward");
  cuda::embed_forward(launch, tokens.count(), length, hidden, i32(tokens), f32(token_table),
                      f32(position_table), f32(out));
}

void CudaKernels::embed_backward(Stream& stream, std::int64_t length, std::int64_t hidden,
                                 std::int64_t vocabulary, ConstBuffer tokens,
                                 ConstBuffer out_gradient, Buffer workspace, Buffer token_gradient,
                                 Buffer position_gradient) {
  CHECK_EQ(out_gradient.count(), tokens.count() * hidden);
  CHECK_GE(workspace.count(), embed_workspace(tokens.count(), vocabulary));
  CHECK_GE(token_gradient.count(), vocabulary * hidden);
  CHECK(position_gradient.is_empty() || position_gradient.count() >= length * hidden);
  const Launch launch(stream, "embed_backward");
  cuda::embed_backward(launch, tokens.count(), length, hidden, i32(tokens), f32(out_gradient),
                       i32(workspace), f32(token_gradient), f32(position_gradient));
}

std::int64_t CudaKernels::embed_workspace(std::int64_t tokens, std::int64_t) const {
  return 2 * tokens;
}

void CudaKernels::layernorm_forward(Stream& stream, std::int64_t hidden, float epsilon,
                                    ConstBuffer x, ConstBuffer weight, ConstBuffer bias, Buffer y,
                                    Buffer mean, Buffer rstd) {
  const std::int64_t rows = rows_of(x, hidden);
  CHECK(y.count() == x.count() && mean.count() == rows && rstd.count() == rows);
  CHECK(weight.count() == hidden && bias.count() == hidden);
  const Launch launch(stream, "layernorm_forward");
  cuda::layernorm_forward(launch, rows, hidden, epsilon, f32(x), nullptr, f32(weight), f32(bias),
                          nullptr, f32(y), f32(mean), f32(rstd));
}

void CudaKernels::add_layernorm_forward(Stream& stream, std::int64_t hidden, float epsilon,
                                        ConstBuffer a, ConstBuffer b, ConstBuffer weight,
                                        ConstBuffer bias, Buffer sum, Buffer y, Buffer mean,
                                        Buffer rstd) {
  const std::int64_t rows = rows_of(a, hidden);
  CHECK(b.count() == a.count() && sum.count() == a.count() && y.count() == a.count());
  CHECK(mean.count() == rows && rstd.count() == rows);
  CHECK(weight.count() == hidden && bias.count() == hidden);
  const Launch launch(stream, "add_layernorm_forward");
  cuda::layernorm_forward(launch, rows, hidden, epsilon, f32(a), f32(b), f32(weight), f32(bias),
                          f32(sum), f32(y), f32(mean), f32(rstd));
}

void CudaKernels::layernorm_backward(Stream& stream, std::int64_t hidden, ConstBuffer x,
                                     ConstBuffer weight, ConstBuffer mean, ConstBuffer rstd,
                                     ConstBuffer y_gradient, Buffer x_gradient,
                                     Buffer weight_gradient, Buffer bias_gradient) {
  const std::int64_t rows = rows_of(x, hidden);
  CHECK(y_gradient.count() == x.count() && x_gradient.count() == x.count());
  CHECK(mean.count() == rows && rstd.count() == rows && weight.count() == hidden);
  CHECK(weight_gradient.count() == hidden && bias_gradient.count() == hidden);
  const Launch launch(stream, "layernorm_backward");
  cuda::layernorm_backward(launch, rows, hidden, f32(x), f32(weight), f32(mean), f32(rstd),
                           f32(y_gradient), f32(x_gradient), f32(weight_gradient),
                           f32(bias_gradient));
}

void CudaKernels::rmsnorm_forward(Stream& stream, std::int64_t hidden, float epsilon, ConstBuffer x,
                                  ConstBuffer weight, Buffer y, Buffer rstd) {
  const std::int64_t rows = rows_of(x, hidden);
  CHECK(y.count() == x.count() && rstd.count() == rows && weight.count() == hidden);
  const Launch launch(stream, "rmsnorm_forward");
  cuda::rmsnorm_forward(launch, rows, hidden, epsilon, f32(x), nullptr, f32(weight), nullptr,
                        f32(y), f32(rstd));
}

void CudaKernels::add_rmsnorm_forward(Stream& stream, std::int64_t hidden, float epsilon,
                                      ConstBuffer a, ConstBuffer b, ConstBuffer weight, Buffer sum,
                                      Buffer y, Buffer rstd) {
  const std::int64_t rows = rows_of(a, hidden);
  CHECK(b.count() == a.count() && sum.count() == a.count() && y.count() == a.count());
  CHECK(rstd.count() == rows && weight.count() == hidden);
  const Launch launch(stream, "add_rmsnorm_forward");
  cuda::rmsnorm_forward(launch, rows, hidden, epsilon, f32(a), f32(b), f32(weight), f32(sum),
                        f32(y), f32(rstd));
}

void CudaKernels::rmsnorm_backward(Stream& stream, std::int64_t hidden, ConstBuffer x,
                                   ConstBuffer weight, ConstBuffer rstd, ConstBuffer y_gradient,
                                   Buffer x_gradient, Buffer weight_gradient) {
  const std::int64_t rows = rows_of(x, hidden);
  CHECK(y_gradient.count() == x.count() && x_gradient.count() == x.count());
  CHECK(rstd.count() == rows && weight.count() == hidden && weight_gradient.count() == hidden);
  const Launch launch(stream, "rmsnorm_backward");
  cuda::rmsnorm_backward(launch, rows, hidden, f32(x), f32(weight), f32(rstd), f32(y_gradient),
                         f32(x_gradient), f32(weight_gradient));
}

void CudaKernels::swiglu_forward(Stream& stream, std::int64_t width, ConstBuffer gate_up,
                                 Buffer y) {
  const std::int64_t rows = rows_of(y, width);
  CHECK_EQ(gate_up.count(), 2 * y.count());
  const Launch launch(stream, "swiglu_forward");
  cuda::swiglu_forward(launch, rows, width, f32(gate_up), f32(y));
}

void CudaKernels::swiglu_backward(Stream& stream, std::int64_t width, ConstBuffer gate_up,
                                  ConstBuffer y_gradient, Buffer gate_up_gradient) {
  const std::int64_t rows = rows_of(y_gradient, width);
  CHECK(gate_up.count() == 2 * y_gradient.count() && gate_up_gradient.count() == gate_up.count());
  const Launch launch(stream, "swiglu_backward");
  cuda::swiglu_backward(launch, rows, width, f32(gate_up), f32(y_gradient), f32(gate_up_gradient));
}

void CudaKernels::rotate(Stream& stream, const RotaryShape& s, ConstBuffer angles, Buffer x) {
  const std::int64_t rows = rows_of(x, s.columns);
  CHECK(s.head_size % 2 == 0 && s.heads * s.head_size <= s.columns);
  CHECK(s.length > 0 && angles.count() >= s.length * s.head_size);
  const Launch launch(stream, "rotate");
  cuda::rotate(launch, {rows, s.length, s.heads, s.head_size, s.columns, s.is_inverse}, f32(angles),
               f32(x));
}

void CudaKernels::gelu_forward(Stream& stream, ConstBuffer x, Buffer y) {
  CHECK_EQ(x.count(), y.count());
  const Launch launch(stream, "gelu_forward");
  cuda::gelu_forward(launch, x.count(), f32(x), f32(y));
}

void CudaKernels::gelu_backward(Stream& stream, ConstBuffer x, Buffer gradient) {
  CHECK_EQ(x.count(), gradient.count());
  const Launch launch(stream, "gelu_backward");
  cuda::gelu_backward(launch, x.count(), f32(x), f32(gradient));
}

void CudaKernels::add(Stream& stream, ConstBuffer a, ConstBuffer b, Buffer out) {
  CHECK(a.count() == b.count() && a.count() == out.count());
  const Launch launch(stream, "add");
  cuda::add(launch, a.count(), f32(a), f32(b), f32(out));
}

void CudaKernels::column_sum(Stream& stream, std::int64_t columns, ConstBuffer x, Buffer out) {
  CHECK_EQ(out.count(), columns);
  const Launch launch(stream, "column_sum");
  cuda::column_sum(launch, rows_of(x, columns), columns, f32(x), f32(out));
}

// Products on tensor cores are so fast that reading the table would take as long.
std::int64_t CudaKernels::logits_at_a_time() const {
  return precision_ == Precision::kBf16 ? kLogitsAtATimeOnTensorCores : kLogitsAtATime;
}

std::int64_t CudaKernels::attention_head_size_max() const {
  std::int64_t size = kHeadSizeMax;
  while (size > 1 && attention_shared_bytes(size) > shared_bytes_) size /= 2;
  return size;
}

std::int64_t CudaKernels::attention_saved(const AttentionShape& shape) const {
  return shape.batch * shape.heads * shape.length;
}

std::int64_t CudaKernels::attention_workspace(const AttentionShape& shape) const {
  return attention_saved(shape);
}

void CudaKernels::attention_forward(Stream& stream, const AttentionShape& shape, ConstBuffer qkv,
                                    Buffer saved, Buffer out) {
  CHECK_EQ(out.count(), shape.batch * shape.length * shape.hidden());
  CHECK_EQ(qkv.count(), shape.batch * shape.length * shape.columns());
  CHECK_GE(saved.count(), attention_saved(shape));
  CHECK_LE(shape.head_size, attention_head_size_max());
  const Launch launch(stream, "attention_forward");
  const auto run =
      precision_ == Precision::kBf16 ? cuda::attention_forward_bf16 : cuda::attention_forward;
  run(launch, op_of(shape, {qkv.address(), out.address()}), f32(qkv), f32(saved), f32(out));
}

void CudaKernels::attention_backward(Stream& stream, const AttentionShape& shape, ConstBuffer qkv,
                                     ConstBuffer saved, ConstBuffer out, ConstBuffer out_gradient,
                                     Buffer workspace, Buffer qkv_gradient) {
  CHECK(out.count() == shape.batch * shape.length * shape.hidden());
  CHECK(out_gradient.count() == out.count());
  CHECK_EQ(qkv.count(), shape.batch * shape.length * shape.columns());
  CHECK_EQ(qkv_gradient.count(), qkv.count());
  CHECK(saved.count() >= attention_saved(shape) && workspace.count() >= attention_workspace(shape));
  CHECK_LE(shape.head_size, attention_head_size_max());
  const Launch launch(stream, "attention_backward");
  const auto run =
      precision_ == Precision::kBf16 ? cuda::attention_backward_bf16 : cuda::attention_backward;
  run(launch, op_of(shape, {qkv.address(), out_gradient.address(), qkv_gradient.address()}),
      f32(qkv), f32(saved), f32(out), f32(out_gradient), f32(workspace), f32(qkv_gradient));
}

void CudaKernels::softmax_cross_entropy(Stream& stream, std::int64_t columns,
                                        std::int64_t vocabulary, float scale, bool write_gradient,
                                        ConstBuffer targets, Buffer logits, Buffer losses) {
  const std::int64_t rows = rows_of(logits, columns);
  CHECK(targets.count() == rows && losses.count() == rows);
  CHECK(vocabulary > 0 && vocabulary <= columns);
  const Launch launch(stream, "softmax_cross_entropy");
  cuda::softmax_cross_entropy(launch, rows, columns, vocabulary, scale, write_gradient,
                              i32(targets), f32(logits), f32(losses));
}

void CudaKernels::adamw(Stream& stream, const AdamWStep& step, ConstBuffer gradient,
                        Buffer parameters, Buffer exp_avg, Buffer exp_avg_sq) {
  const std::int64_t n = gradient.count();
  CHECK(parameters.count() == n && exp_avg.count() == n && exp_avg_sq.count() == n);
  const AdamWOp op{.keep = 1.0f - step.learning_rate * step.weight_decay,
                   .rate = step.learning_rate / step.first_correction,
                   .weight1 = 1.0f - step.beta1,
                   .weight2 = 1.0f - step.beta2,
                   .beta2 = step.beta2,
                   .epsilon = step.epsilon,
                   .correction = step.second_correction,
                   .scale = step.gradient_scale};
  const Launch launch(stream, "adamw");
  cuda::adamw(launch, n, op, f32(gradient), f32(parameters), f32(exp_avg), f32(exp_avg_sq));
}

void CudaKernels::quantise_add(Stream& stream, int fraction_bits, int guard_shift,
                               ConstBuffer exponents, ConstBuffer gradient, Buffer sums,
                               Buffer guards) {
  const std::int64_t blocks = rows_of(gradient, kBlockElements);
  CHECK(exponents.count() == blocks && guards.count() == blocks);
  CHECK_EQ(sums.count(), gradient.count());
  const Launch launch(stream, "quantise_add");
  cuda::quantise_add(launch, gradient.count(), fraction_bits, guard_shift, i32(exponents),
                     f32(gradient), i32(sums), i32(guards));
}

void CudaKernels::dither_add(Stream& stream, int fraction_bits, int guard_shift,
                             const Dither& dither, ConstBuffer exponents, ConstBuffer gradient,
                             Buffer sums, Buffer guards) {
  const std::int64_t blocks = rows_of(gradient, kBlockElements);
  CHECK(exponents.count() == blocks && guards.count() == blocks);
  CHECK_EQ(sums.count(), gradient.count());
  const Launch launch(stream, "dither_add");
  cuda::dither_add(launch, gradient.count(),
                   {fraction_bits, guard_shift, dither.key, dither.offset}, i32(exponents),
                   f32(gradient), i32(sums), i32(guards));
}

void CudaKernels::dequantise(Stream& stream, int fraction_bits, float factor, ConstBuffer exponents,
                             ConstBuffer sums, Buffer gradient) {
  CHECK_EQ(exponents.count(), rows_of(gradient, kBlockElements));
  CHECK_EQ(sums.count(), gradient.count());
  const Launch launch(stream, "dequantise");
  cuda::dequantise(launch, gradient.count(), fraction_bits, factor, i32(exponents), i32(sums),
                   f32(gradient));
}

void CudaKernels::block_exponents(Stream& stream, ConstBuffer x, Buffer out) {
  CHECK_EQ(out.count(), rows_of(x, kBlockElements));
  const Launch launch(stream, "block_exponents");
  cuda::block_exponents(launch, x.count(), kZeroExponent, f32(x), i32(out));
}

void CudaKernels::squared_norm_chunks(Stream& stream, ConstBuffer x, Buffer out) {
  CHECK_EQ(x.count() % kBlockElements, 0);
  CHECK_EQ(out.count(), (x.count() + kNormChunkElements - 1) / kNormChunkElements);
  const Launch launch(stream, "squared_norm_chunks");
  cuda::squared_norm_chunks(launch, x.count(), kNormChunkElements, f32(x), f64(out));
}

void CudaKernels::add_i32(Stream& stream, ConstBuffer from, Buffer to) {
  CHECK_EQ(from.count(), to.count());
  const Launch launch(stream, "add_i32");
  cuda::add_i32(launch, from.count(), i32(from), i32(to));
}

void CudaKernels::weighted_sums(Stream& stream, ConstBuffer x, Buffer out) {
  CHECK_EQ(out.count(), (x.count() + kNormChunkElements - 1) / kNormChunkElements);
  const Launch launch(stream, "weighted_sums");
  cuda::weighted_sums(launch, x.count(), kNormChunkElements, i32(x), i64(out));
}

}  // namespace rubato::worker::cuda
