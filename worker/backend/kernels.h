// The operations of training, on buffers, enqueued on a stream. Every operation is deterministic:
// equal inputs, equal shapes and one device fingerprint give equal bits, on every run, in every
// build type, whatever else the machine does. No operation splits its work by load, uses atomics on
// floats, or looks at anything but its arguments.
//
// Matrices are row-major and dense. "(n, c)" after a name is its shape. Activations and parameters
// are f32. Outputs are overwritten
// unless the comment says "adds". Buffers may not overlap unless a comment allows it.
#pragma once

#include "worker/backend/device.h"

#include <cstdint>

namespace rubato::worker {

// Elements that share one exponent in the exact reduction, and the grain of parameter offsets.
constexpr std::int64_t kBlockElements = 256;
// Elements of one partial sum of a squared norm or of a checksum. A multiple of kBlockElements.
constexpr std::int64_t kNormChunkElements = 16384;

// c (m, n) = op(a) (m, k) · op(b) (k, n) [+ bias (n)] [+ c], where op transposes what is stored as
// (k, m) or (n, k). One call is one product: never batched or split. `accumulate` adds c.
struct GemmShape {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;
  bool operator==(const GemmShape&) const = default;
};

// Causal self-attention of `batch` sequences of `length` tokens; `heads` heads of `head_size`.
// Grouped-query attention (arXiv 2305.13245): query head h uses key and value head h / group().
struct AttentionShape {
  std::int64_t batch = 0;
  std::int64_t length = 0;
  std::int64_t heads = 0;
  std::int64_t head_size = 0;
  std::int64_t kv_heads = heads;  // of keys and values; divides heads
  std::int64_t hidden() const { return heads * head_size; }
  std::int64_t kv_hidden() const { return kv_heads * head_size; }
  std::int64_t group() const { return heads / kv_heads; }
  std::int64_t columns() const { return hidden() + 2 * kv_hidden(); }  // of qkv
};

// Rotary position embedding (arXiv 2104.09864) in Hugging Face's layout: element i of a head and
// element i + head_size / 2 are the coordinates that one angle turns.
struct RotaryShape {
  std::int64_t length = 0;     // row r has position r mod length
  std::int64_t heads = 0;      // the first ones of a row are turned
  std::int64_t head_size = 0;  // even
  std::int64_t columns = 0;    // of a row, >= heads * head_size
  bool is_inverse = false;     // turns back: the gradient of a rotation
};

// One AdamW update. All numbers are functions of the step; none is a running product.
struct AdamWStep {
  float learning_rate = 0;
  float beta1 = 0;
  float beta2 = 0;
  float epsilon = 0;
  float weight_decay = 0;       // decoupled; zero for tensors that do not decay
  float first_correction = 1;   // 1 - beta1^t
  float second_correction = 1;  // sqrt(1 - beta2^t)
  float gradient_scale = 1;     // the clipping factor, applied to the gradient first
};

// How dither_add rounds. Element i of the gradient has J_i, 32 bits that are a hash of `key` and i
// alone; with r = J_i + offset mod 2^32 and x = gradient * scale it becomes
//   x >= 0:  floor(x) + 1 if r / 2^32 < the fraction of x, else floor(x)
//   x < 0:   minus the same of -x, with 2^32 - 1 - r in the place of r
// where the fraction is cut after 31 bits. So q falls as r rises, whatever the sign of x: what the
// proof in worker/model/exact_sum.h needs.
struct Dither {
  std::uint64_t key = 0;     // of the step
  std::uint32_t offset = 0;  // of the micro-batch
};

constexpr std::int64_t kLogitsAtATime = std::int64_t{1} << 24;               // 64 MiB
constexpr std::int64_t kLogitsAtATimeOnTensorCores = std::int64_t{1} << 26;  // 256 MiB

class Kernels {
 public:
  virtual ~Kernels() = default;

  // `bias` may be empty; with `accumulate` it must be. In bf16 (Precision) a and b are rounded, and
  // what is added to their product is not.
  virtual void gemm(Stream& stream, const GemmShape& shape, ConstBuffer a, ConstBuffer b,
                    ConstBuffer bias, Buffer c) = 0;

  // out (n, c) = token_table[tokens[i]] + position_table[i mod length]; tokens are i32 (n). An
  // empty position_table adds nothing.
  virtual void embed_forward(Stream& stream, std::int64_t length, std::int64_t hidden,
                             ConstBuffer tokens, ConstBuffer token_table,
                             ConstBuffer position_table, Buffer out) = 0;
  // Adds to token_gradient: rows of one token are summed in token order first, then added once.
  // Overwrites position_gradient (length, c), summed over sequences in order, unless it is empty.
  // `workspace` is i32, embed_workspace(n, vocabulary) elements.
  virtual void embed_backward(Stream& stream, std::int64_t length, std::int64_t hidden,
                              std::int64_t vocabulary, ConstBuffer tokens, ConstBuffer out_gradient,
                              Buffer workspace, Buffer token_gradient,
                              Buffer position_gradient) = 0;
  virtual std::int64_t embed_workspace(std::int64_t tokens, std::int64_t vocabulary) const = 0;

  // y (n, c) = (x - mean) * rstd * weight + bias, per row; mean (n) and rstd (n) are kept.
  virtual void layernorm_forward(Stream& stream, std::int64_t hidden, float epsilon, ConstBuffer x,
                                 ConstBuffer weight, ConstBuffer bias, Buffer y, Buffer mean,
                                 Buffer rstd) = 0;
  // sum (n, c) = a + b, then the layernorm of sum. `sum` may be `a`.
  virtual void add_layernorm_forward(Stream& stream, std::int64_t hidden, float epsilon,
                                     ConstBuffer a, ConstBuffer b, ConstBuffer weight,
                                     ConstBuffer bias, Buffer sum, Buffer y, Buffer mean,
                                     Buffer rstd) = 0;
  // Adds the gradient of x to x_gradient; overwrites weight_gradient and bias_gradient (c).
  virtual void layernorm_backward(Stream& stream, std::int64_t hidden, ConstBuffer x,
                                  ConstBuffer weight, ConstBuffer mean, ConstBuffer rstd,
                                  ConstBuffer y_gradient, Buffer x_gradient, Buffer weight_gradient,
                                  Buffer bias_gradient) = 0;

  // y (n, c) = x * rstd * weight with rstd = 1 / sqrt(mean(x^2) + epsilon), per row; rstd (n) is
  // kept (arXiv 1910.07467).
  virtual void rmsnorm_forward(Stream& stream, std::int64_t hidden, float epsilon, ConstBuffer x,
                               ConstBuffer weight, Buffer y, Buffer rstd) = 0;
  // sum (n, c) = a + b, then the RMSNorm of sum. `sum` may be `a`.
  virtual void add_rmsnorm_forward(Stream& stream, std::int64_t hidden, float epsilon,
                                   ConstBuffer a, ConstBuffer b, ConstBuffer weight, Buffer sum,
                                   Buffer y, Buffer rstd) = 0;
  // Adds the gradient of x to x_gradient; overwrites weight_gradient (c).
  virtual void rmsnorm_backward(Stream& stream, std::int64_t hidden, ConstBuffer x,
                                ConstBuffer weight, ConstBuffer rstd, ConstBuffer y_gradient,
                                Buffer x_gradient, Buffer weight_gradient) = 0;

  // y (n, width) = gate / (1 + e^-gate) * up, where a row of gate_up (n, 2 width) is gate, then up
  // (SwiGLU, arXiv 2002.05202).
  virtual void swiglu_forward(Stream& stream, std::int64_t width, ConstBuffer gate_up,
                              Buffer y) = 0;
  virtual void swiglu_backward(Stream& stream, std::int64_t width, ConstBuffer gate_up,
                               ConstBuffer y_gradient, Buffer gate_up_gradient) = 0;

  // x (n, columns) in place: with (c, s) = the cosine and sine of a position's angle, (a, b)
  // becomes (a c - b s, b c + a s). A row of `angles` (length, head_size) is head_size / 2 cosines,
  // then as many sines.
  virtual void rotate(Stream& stream, const RotaryShape& shape, ConstBuffer angles, Buffer x) = 0;

  // GELU with tanh ("gelu_new").
  virtual void gelu_forward(Stream& stream, ConstBuffer x, Buffer y) = 0;
  // gradient (in and out) *= gelu'(x).
  virtual void gelu_backward(Stream& stream, ConstBuffer x, Buffer gradient) = 0;

  // out = a + b, element by element; `out` may be either.
  virtual void add(Stream& stream, ConstBuffer a, ConstBuffer b, Buffer out) = 0;
  // out (columns) = sum over the rows of x (n, columns), in row order by fixed groups.
  virtual void column_sum(Stream& stream, std::int64_t columns, ConstBuffer x, Buffer out) = 0;

  // qkv (batch * length, shape.columns()) holds queries, keys and values side by side, heads inside
  // each. The gradient of a key head is summed over the query heads that use it, in their order.
  // out (batch * length, c). `saved` keeps what the backward pass needs:
  // attention_saved(shape) elements, opaque.
  virtual void attention_forward(Stream& stream, const AttentionShape& shape, ConstBuffer qkv,
                                 Buffer saved, Buffer out) = 0;
  virtual void attention_backward(Stream& stream, const AttentionShape& shape, ConstBuffer qkv,
                                  ConstBuffer saved, ConstBuffer out, ConstBuffer out_gradient,
                                  Buffer workspace, Buffer qkv_gradient) = 0;
  // Elements of logits that a model makes at a time: few lie in the cache, many read the table of
  // classes less often. A part of the arithmetic, as the gradient of that table is summed by
  // chunks.
  virtual std::int64_t logits_at_a_time() const { return kLogitsAtATime; }
  // The largest head_size that this device's attention takes.
  virtual std::int64_t attention_head_size_max() const = 0;
  virtual std::int64_t attention_saved(const AttentionShape& shape) const = 0;
  // Of these, how many at most are never touched, so that a device which gives memory page by page
  // never gives theirs.
  virtual std::int64_t attention_untouched(const AttentionShape&) const { return 0; }
  virtual std::int64_t attention_workspace(const AttentionShape& shape) const = 0;

  // Per row of logits (n, columns), of which the first `vocabulary` columns count:
  // losses[i] = -log softmax(logits)[targets[i]]; logits become their gradient times `scale`
  // (columns beyond `vocabulary`: zero). With write_gradient false the logits keep their values.
  // targets are i32 (n) in [0, vocabulary).
  virtual void softmax_cross_entropy(Stream& stream, std::int64_t columns, std::int64_t vocabulary,
                                     float scale, bool write_gradient, ConstBuffer targets,
                                     Buffer logits, Buffer losses) = 0;

  // p, m, v in place, element by element:
  //   g' = g * gradient_scale;  m = m + (1 - b1)(g' - m);  v = b2 v + (1 - b2) g'^2
  //   p -= learning_rate * weight_decay * p, then p -= (lr / c1) * m / (sqrt(v) / c2 + epsilon)
  virtual void adamw(Stream& stream, const AdamWStep& step, ConstBuffer gradient, Buffer parameters,
                     Buffer exp_avg, Buffer exp_avg_sq) = 0;

  // The exact reduction (worker/model/exact_sum.h has the mathematics). `gradient` is f32,
  // `exponents` and `guards` i32 with one element per block, `sums` i32 per element.
  // Block b: scale = 2^(fraction_bits - exponents[b]); sums += round_to_even(gradient * scale);
  // guards[b] += ceil(max |q| in the block / 2^guard_shift). A block with a value that is not
  // finite, or with |q| >= 2^31, adds nothing to sums and 2^(31 - guard_shift) to its guard.
  virtual void quantise_add(Stream& stream, int fraction_bits, int guard_shift,
                            ConstBuffer exponents, ConstBuffer gradient, Buffer sums,
                            Buffer guards) = 0;
  // The same, rounded by a dither; guards[b] += ceil(ceil(max |x| in the block) / 2^guard_shift).
  virtual void dither_add(Stream& stream, int fraction_bits, int guard_shift, const Dither& dither,
                          ConstBuffer exponents, ConstBuffer gradient, Buffer sums,
                          Buffer guards) = 0;
  // gradient = sums * 2^(exponents[b] - fraction_bits) * factor.
  virtual void dequantise(Stream& stream, int fraction_bits, float factor, ConstBuffer exponents,
                          ConstBuffer sums, Buffer gradient) = 0;
  // out[b] (i32) = the least e with max |x| in block b <= 2^e; kZeroExponent for an all-zero block.
  virtual void block_exponents(Stream& stream, ConstBuffer x, Buffer out) = 0;
  static constexpr std::int32_t kZeroExponent = -1000;

  // out[i] (f64) = sum of squares of chunk i of kNormChunkElements elements (the last may be
  // short).
  virtual void squared_norm_chunks(Stream& stream, ConstBuffer x, Buffer out) = 0;

  // to += from; i32, wraps.
  virtual void add_i32(Stream& stream, ConstBuffer from, Buffer to) = 0;

  // out[i] (i64) = sum of weight * x (i32) over chunk i of kNormChunkElements elements (the last
  // may be short), modulo 2^64. Element k of a chunk weighs a(k mod 16) + (k / 16) b(k mod 16),
  // where a are 16 odd hashes and b 16 even ones. All weights are odd: one wrong element always
  // changes the sum, also modulo 2^32, and two that changed places do modulo 2^64. Errors at three
  // or more places of one chunk that lie multiples of 16 apart can cancel (1, -2, 1); any others do
  // by chance alone, of about 2^-60.
  virtual void weighted_sums(Stream& stream, ConstBuffer x, Buffer out) = 0;
};

}  // namespace rubato::worker
