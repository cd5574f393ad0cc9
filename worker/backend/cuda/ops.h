// Our own CUDA kernels as plain functions that enqueue on a stream. Nothing is checked here: the
// caller (cuda_kernels.cc) has checked the shapes, and reads launch errors off the runtime.
//
// Bits. What is marked "as the CPU" gives the bits of the CPU's own kernels (worker/backend/cpu):
// one order of arithmetic, no contraction (-fmad=false), subnormals flushed (-ftz=true). The others
// sum in another fixed order, a function of the shapes alone. No atomics anywhere.
#pragma once

#include <cstdint>

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace rubato::worker::cuda {

using RawStream = CUstream_st*;

// ---- elementwise.cu: as the CPU ----
struct AdamWOp {
  float keep, rate, weight1, weight2, beta2, epsilon, correction, scale;
};
void gelu_forward(RawStream stream, std::int64_t n, const float* x, float* y);
void gelu_backward(RawStream stream, std::int64_t n, const float* x, float* gradient);
void swiglu_forward(RawStream stream, std::int64_t rows, std::int64_t width, const float* gate_up,
                    float* y);
void swiglu_backward(RawStream stream, std::int64_t rows, std::int64_t width, const float* gate_up,
                     const float* dy, float* dgate_up);
struct RotaryOp {
  std::int64_t rows, length, heads, head_size, columns;
  bool is_inverse;
};
void rotate(RawStream stream, const RotaryOp& op, const float* angles, float* x);
void add(RawStream stream, std::int64_t n, const float* a, const float* b, float* out);
void add_i32(RawStream stream, std::int64_t n, const std::int32_t* from, std::int32_t* to);
void adamw(RawStream stream, std::int64_t n, const AdamWOp& op, const float* g, float* p, float* m,
           float* v);

// ---- exact.cu: as the CPU; n is a multiple of 256 ----
struct DitherOp {
  int fraction_bits, guard_shift;
  std::uint64_t key;
  std::uint32_t offset;
};
void quantise_add(RawStream stream, std::int64_t n, int fraction_bits, int guard_shift,
                  const std::int32_t* exponents, const float* gradient, std::int32_t* sums,
                  std::int32_t* guards);
void dither_add(RawStream stream, std::int64_t n, const DitherOp& op, const std::int32_t* exponents,
                const float* gradient, std::int32_t* sums, std::int32_t* guards);
void dequantise(RawStream stream, std::int64_t n, int fraction_bits, float factor,
                const std::int32_t* exponents, const std::int32_t* sums, float* gradient);
void block_exponents(RawStream stream, std::int64_t n, std::int32_t zero, const float* x,
                     std::int32_t* out);
void squared_norm_chunks(RawStream stream, std::int64_t n, std::int64_t chunk, const float* x,
                         double* out);
// Any n.
void weighted_sums(RawStream stream, std::int64_t n, std::int64_t chunk, const std::int32_t* x,
                   std::int64_t* out);

// ---- embedding.cu: as the CPU ----
// `position_table` and `dpositions` may be null.
void embed_forward(RawStream stream, std::int64_t rows, std::int64_t length, std::int64_t c,
                   const std::int32_t* tokens, const float* token_table,
                   const float* position_table, float* out);
// `workspace`: 2 rows elements.
void embed_backward(RawStream stream, std::int64_t rows, std::int64_t length, std::int64_t c,
                    const std::int32_t* tokens, const float* dout, std::int32_t* workspace,
                    float* dtokens, float* dpositions);

// ---- rowwise.cu ----
// The norms' forward passes are as the CPU. `addend` and `sum` may be null, together.
void layernorm_forward(RawStream stream, std::int64_t rows, std::int64_t c, float epsilon,
                       const float* x, const float* addend, const float* weight, const float* bias,
                       float* sum, float* y, float* mean, float* rstd);
// dx as the CPU; dweight and dbias not.
void layernorm_backward(RawStream stream, std::int64_t rows, std::int64_t c, const float* x,
                        const float* weight, const float* mean, const float* rstd, const float* dy,
                        float* dx, float* dweight, float* dbias);
void rmsnorm_forward(RawStream stream, std::int64_t rows, std::int64_t c, float epsilon,
                     const float* x, const float* addend, const float* weight, float* sum, float* y,
                     float* rstd);
// dx as the CPU; dweight not.
void rmsnorm_backward(RawStream stream, std::int64_t rows, std::int64_t c, const float* x,
                      const float* weight, const float* rstd, const float* dy, float* dx,
                      float* dweight);
void column_sum(RawStream stream, std::int64_t rows, std::int64_t columns, const float* x,
                float* out);
void softmax_cross_entropy(RawStream stream, std::int64_t rows, std::int64_t columns,
                           std::int64_t vocabulary, float scale, bool write_gradient,
                           const std::int32_t* targets, float* logits, float* losses);

// ---- attention_forward.cu, attention_backward.cu; attention_bf16_*.cu ----
struct AttentionOp {
  std::int64_t batch, length, heads, head_size;  // batch and heads at most 65 535
  std::int64_t kv_heads;                         // divides heads
  bool is_wide;  // head_size is a multiple of four, and all matrices are aligned to 16 bytes
};
constexpr std::int64_t kHeadSizeMax = 128;
// Bytes of shared memory that a block needs for that size of a head.
std::int64_t attention_shared_bytes(std::int64_t head_size);
// `lse` (batch, heads, length): the logarithm of each row's sum of exponentials of its scores.
void attention_forward(RawStream stream, const AttentionOp& op, const float* qkv, float* lse,
                       float* out);
// `dots`: as many elements as lse. dqkv is overwritten.
void attention_backward(RawStream stream, const AttentionOp& op, const float* qkv, const float* lse,
                        const float* out, const float* dout, float* dots, float* dqkv);
// Its first part: dots[row] = dout . out over a head.
void attention_dots(RawStream stream, const AttentionOp& op, const float* out, const float* dout,
                    bool is_bf16, float* dots);
// On tensor cores: factors are rounded to bf16, sums are f32 (attention_bf16.cuh).
void attention_forward_bf16(RawStream stream, const AttentionOp& op, const float* qkv, float* lse,
                            float* out);
void attention_backward_bf16(RawStream stream, const AttentionOp& op, const float* qkv,
                             const float* lse, const float* out, const float* dout, float* dots,
                             float* dqkv);

}  // namespace rubato::worker::cuda
