#include "worker/plan/recording_device.h"

#include <algorithm>
#include <utility>

namespace rubato::worker {

namespace {

// The CUDA backend's (attention_tiles.cuh), on a card with 227 KB of shared memory a block.
constexpr std::int64_t kHeadSizeMax = 128;

double bytes_of(std::initializer_list<ConstBuffer> tensors) {
  double sum = 0;
  for (const ConstBuffer& tensor : tensors) sum += static_cast<double>(tensor.bytes());
  return sum;
}

std::string times(std::int64_t rows, std::int64_t columns) {
  return std::to_string(rows) + " x " + std::to_string(columns);
}
std::string rows_of(ConstBuffer x, std::int64_t columns) {
  return times(x.count() / columns, columns);
}

std::string attention_shape(const AttentionShape& s) {
  std::string text = std::to_string(s.batch) + " x " + std::to_string(s.heads) + " heads x " +
                     times(s.length, s.head_size);
  if (s.kv_heads != s.heads) text += ", " + std::to_string(s.kv_heads) + " of keys";
  return text;
}

// Of one product of queries and keys or of probabilities and values, as causality leaves it: half.
double attention_product_flops(const AttentionShape& s) {
  const auto length = static_cast<double>(s.length);
  return static_cast<double>(s.batch * s.hidden()) * length * length;
}

}  // namespace

void RecordingKernels::note(KernelCalls call) {
  const auto same = std::ranges::find_if(calls_, [&](const KernelCalls& seen) {
    return seen.kernel == call.kernel && seen.shape == call.shape && seen.bytes == call.bytes;
  });
  if (same != calls_.end()) {
    ++same->count;
    return;
  }
  call.count = 1;
  calls_.push_back(std::move(call));
}

void RecordingKernels::gemm(Stream&, const GemmShape& s, ConstBuffer a, ConstBuffer b,
                            ConstBuffer bias, Buffer c) {
  std::string shape = times(s.m, s.n) + " x " + std::to_string(s.k);
  if (s.transpose_a) shape += ", a transposed";
  if (s.transpose_b) shape += ", b transposed";
  if (s.accumulate) shape += ", adds";
  note({.kernel = "gemm",
        .shape = std::move(shape),
        .kind = KernelKind::kGemm,
        .bytes = bytes_of({a, b, bias, c}) + (s.accumulate ? bytes_of({c}) : 0),
        .flops =
            2.0 * static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k)});
}

// Of a table those rows are read that tokens name.
void RecordingKernels::embed_forward(Stream&, std::int64_t, std::int64_t hidden, ConstBuffer tokens,
                                     ConstBuffer, ConstBuffer position_table, Buffer out) {
  note({.kernel = "embed_forward",
        .shape = rows_of(out, hidden),
        .bytes = bytes_of({tokens, out, out}) + (position_table.is_empty() ? 0 : bytes_of({out}))});
}
// Each table reads the gradient; to rows of the token table it is added. Tokens that come twice are
// not known: their rows count twice.
void RecordingKernels::embed_backward(Stream&, std::int64_t, std::int64_t hidden, std::int64_t,
                                      ConstBuffer tokens, ConstBuffer out_gradient, Buffer, Buffer,
                                      Buffer position_gradient) {
  double bytes = bytes_of({tokens}) + 3 * bytes_of({out_gradient});
  if (!position_gradient.is_empty()) bytes += bytes_of({out_gradient, position_gradient});
  note({.kernel = "embed_backward", .shape = rows_of(out_gradient, hidden), .bytes = bytes});
}
std::int64_t RecordingKernels::embed_workspace(std::int64_t tokens, std::int64_t) const {
  return 2 * tokens;
}

void RecordingKernels::layernorm_forward(Stream&, std::int64_t hidden, float, ConstBuffer x,
                                         ConstBuffer weight, ConstBuffer bias, Buffer y,
                                         Buffer mean, Buffer rstd) {
  note({.kernel = "layernorm_forward",
        .shape = rows_of(x, hidden),
        .bytes = bytes_of({x, weight, bias, y, mean, rstd})});
}
void RecordingKernels::add_layernorm_forward(Stream&, std::int64_t hidden, float, ConstBuffer a,
                                             ConstBuffer b, ConstBuffer weight, ConstBuffer bias,
                                             Buffer sum, Buffer y, Buffer mean, Buffer rstd) {
  note({.kernel = "add_layernorm_forward",
        .shape = rows_of(a, hidden),
        .bytes = bytes_of({a, b, weight, bias, sum, y, mean, rstd})});
}
// Of x and of the weights: each by a kernel of its own, which reads x and y_gradient.
void RecordingKernels::layernorm_backward(Stream&, std::int64_t hidden, ConstBuffer x,
                                          ConstBuffer weight, ConstBuffer mean, ConstBuffer rstd,
                                          ConstBuffer y_gradient, Buffer x_gradient,
                                          Buffer weight_gradient, Buffer bias_gradient) {
  note({.kernel = "layernorm_backward",
        .shape = rows_of(x, hidden),
        .bytes = 2 * bytes_of({x, mean, rstd, y_gradient, x_gradient}) +
                 bytes_of({weight, weight_gradient, bias_gradient})});
}

void RecordingKernels::rmsnorm_forward(Stream&, std::int64_t hidden, float, ConstBuffer x,
                                       ConstBuffer weight, Buffer y, Buffer rstd) {
  note({.kernel = "rmsnorm_forward",
        .shape = rows_of(x, hidden),
        .bytes = bytes_of({x, weight, y, rstd})});
}
void RecordingKernels::add_rmsnorm_forward(Stream&, std::int64_t hidden, float, ConstBuffer a,
                                           ConstBuffer b, ConstBuffer weight, Buffer sum, Buffer y,
                                           Buffer rstd) {
  note({.kernel = "add_rmsnorm_forward",
        .shape = rows_of(a, hidden),
        .bytes = bytes_of({a, b, weight, sum, y, rstd})});
}
void RecordingKernels::rmsnorm_backward(Stream&, std::int64_t hidden, ConstBuffer x,
                                        ConstBuffer weight, ConstBuffer rstd,
                                        ConstBuffer y_gradient, Buffer x_gradient,
                                        Buffer weight_gradient) {
  note({.kernel = "rmsnorm_backward",
        .shape = rows_of(x, hidden),
        .bytes =
            2 * bytes_of({x, rstd, y_gradient, x_gradient}) + bytes_of({weight, weight_gradient})});
}

void RecordingKernels::swiglu_forward(Stream&, std::int64_t width, ConstBuffer gate_up, Buffer y) {
  note({.kernel = "swiglu_forward", .shape = rows_of(y, width), .bytes = bytes_of({gate_up, y})});
}
void RecordingKernels::swiglu_backward(Stream&, std::int64_t width, ConstBuffer gate_up,
                                       ConstBuffer y_gradient, Buffer gate_up_gradient) {
  note({.kernel = "swiglu_backward",
        .shape = rows_of(y_gradient, width),
        .bytes = bytes_of({gate_up, y_gradient, gate_up_gradient})});
}

// Of a row the first heads are turned, which may be a part of it.
void RecordingKernels::rotate(Stream&, const RotaryShape& s, ConstBuffer angles, Buffer x) {
  const std::int64_t turned = x.count() / s.columns * s.heads * s.head_size;
  const Buffer part = x.slice(0, turned);
  note({.kernel = "rotate",
        .shape = times(x.count() / s.columns, s.heads * s.head_size),
        .bytes = bytes_of({part, part, angles})});
}

void RecordingKernels::gelu_forward(Stream&, ConstBuffer x, Buffer y) {
  note({.kernel = "gelu_forward", .shape = std::to_string(x.count()), .bytes = bytes_of({x, y})});
}
void RecordingKernels::gelu_backward(Stream&, ConstBuffer x, Buffer gradient) {
  note({.kernel = "gelu_backward",
        .shape = std::to_string(x.count()),
        .bytes = bytes_of({x, gradient, gradient})});
}
void RecordingKernels::add(Stream&, ConstBuffer a, ConstBuffer b, Buffer out) {
  note({.kernel = "add", .shape = std::to_string(a.count()), .bytes = bytes_of({a, b, out})});
}
void RecordingKernels::column_sum(Stream&, std::int64_t columns, ConstBuffer x, Buffer out) {
  note({.kernel = "column_sum", .shape = rows_of(x, columns), .bytes = bytes_of({x, out})});
}

void RecordingKernels::attention_forward(Stream&, const AttentionShape& shape, ConstBuffer qkv,
                                         Buffer saved, Buffer out) {
  note({.kernel = "attention_forward",
        .shape = attention_shape(shape),
        .kind = KernelKind::kAttentionForward,
        .bytes = bytes_of({qkv, saved, out}),
        .flops = 2 * attention_product_flops(shape)});
}
void RecordingKernels::attention_backward(Stream&, const AttentionShape& shape, ConstBuffer qkv,
                                          ConstBuffer saved, ConstBuffer out,
                                          ConstBuffer out_gradient, Buffer workspace,
                                          Buffer qkv_gradient) {
  // Three kernels: sums of out times its gradient; keys and values; queries.
  note({.kernel = "attention_backward",
        .shape = attention_shape(shape),
        .kind = KernelKind::kAttentionBackward,
        .bytes = bytes_of({out, out_gradient, workspace, qkv_gradient}) +
                 2 * bytes_of({qkv, out_gradient, saved, workspace}),
        .flops = 5 * attention_product_flops(shape)});
}
std::int64_t RecordingKernels::logits_at_a_time() const {
  return precision_ == Precision::kBf16 ? kLogitsAtATimeOnTensorCores : kLogitsAtATime;
}
std::int64_t RecordingKernels::attention_head_size_max() const { return kHeadSizeMax; }
std::int64_t RecordingKernels::attention_saved(const AttentionShape& shape) const {
  return shape.batch * shape.heads * shape.length;
}
std::int64_t RecordingKernels::attention_workspace(const AttentionShape& shape) const {
  return attention_saved(shape);
}

void RecordingKernels::softmax_cross_entropy(Stream&, std::int64_t columns, std::int64_t, float,
                                             bool write_gradient, ConstBuffer targets,
                                             Buffer logits, Buffer losses) {
  note({.kernel = "softmax_cross_entropy",
        .shape = rows_of(logits, columns),
        .bytes = bytes_of({targets, logits, losses}) + (write_gradient ? bytes_of({logits}) : 0)});
}

void RecordingKernels::adamw(Stream&, const AdamWStep&, ConstBuffer gradient, Buffer parameters,
                             Buffer exp_avg, Buffer exp_avg_sq) {
  note({.kernel = "adamw",
        .shape = std::to_string(gradient.count()),
        .bytes = bytes_of({gradient}) + 2 * bytes_of({parameters, exp_avg, exp_avg_sq})});
}

void RecordingKernels::quantise_add(Stream&, int, int, ConstBuffer exponents, ConstBuffer gradient,
                                    Buffer sums, Buffer guards) {
  note({.kernel = "quantise_add",
        .shape = std::to_string(gradient.count()),
        .bytes = bytes_of({exponents, gradient}) + 2 * bytes_of({sums, guards})});
}
void RecordingKernels::dither_add(Stream&, int, int, const Dither&, ConstBuffer exponents,
                                  ConstBuffer gradient, Buffer sums, Buffer guards) {
  note({.kernel = "dither_add",
        .shape = std::to_string(gradient.count()),
        .bytes = bytes_of({exponents, gradient}) + 2 * bytes_of({sums, guards})});
}
void RecordingKernels::dequantise(Stream&, int, float, ConstBuffer exponents, ConstBuffer sums,
                                  Buffer gradient) {
  note({.kernel = "dequantise",
        .shape = std::to_string(gradient.count()),
        .bytes = bytes_of({exponents, sums, gradient})});
}
void RecordingKernels::block_exponents(Stream&, ConstBuffer x, Buffer out) {
  note({.kernel = "block_exponents",
        .shape = std::to_string(x.count()),
        .bytes = bytes_of({x, out})});
}
void RecordingKernels::squared_norm_chunks(Stream&, ConstBuffer x, Buffer out) {
  note({.kernel = "squared_norm_chunks",
        .shape = std::to_string(x.count()),
        .bytes = bytes_of({x, out})});
}
void RecordingKernels::add_i32(Stream&, ConstBuffer from, Buffer to) {
  note({.kernel = "add_i32",
        .shape = std::to_string(to.count()),
        .bytes = bytes_of({from, to, to})});
}
void RecordingKernels::weighted_sums(Stream&, ConstBuffer x, Buffer out) {
  note(
      {.kernel = "weighted_sums", .shape = std::to_string(x.count()), .bytes = bytes_of({x, out})});
}

void RecordingDevice::copy(Stream&, Buffer to, ConstBuffer from) {
  kernels_.note(
      {.kernel = "copy", .shape = std::to_string(to.count()), .bytes = bytes_of({from, to})});
}
void RecordingDevice::memset(Stream&, Buffer to, std::uint8_t) {
  kernels_.note({.kernel = "memset", .shape = std::to_string(to.count()), .bytes = bytes_of({to})});
}

}  // namespace rubato::worker
