// Our own CPU kernels as plain functions on pointers. Their sources are compiled once per
// instruction set (CMakeLists.txt) and must give equal bits on each: element-wise arithmetic in one
// order, sums in 16 fixed lanes (lanes.h), no fused multiply-add, no call into libm.
//
// No memory is allocated, nothing is checked: the caller (cpu_kernels.cc) has checked the shapes
// and set the floating-point mode. No type of the standard library may appear in these sources: an
// inline function of it, compiled for AVX-512, could be the copy that the linker keeps for all.
#pragma once

#include <cstdint>

namespace rubato::worker::cpu {

struct AdamWOp {
  float learning_rate, beta1, beta2, epsilon, weight_decay;
  float first_correction, second_correction, gradient_scale;
};

struct DitherOp {
  int fraction_bits, guard_shift;
  std::uint64_t key;
  std::uint32_t offset;
};

struct RotaryOp {
  std::int64_t rows, length, heads, head_size, columns;
  bool is_inverse;
};

struct Ops {
  // rowwise.cc
  void (*layernorm_forward)(std::int64_t rows, std::int64_t c, float epsilon, const float* x,
                            const float* addend, const float* weight, const float* bias, float* sum,
                            float* y, float* mean, float* rstd);
  void (*layernorm_backward)(std::int64_t rows, std::int64_t c, const float* x, const float* weight,
                             const float* mean, const float* rstd, const float* dy, float* dx,
                             float* dweight, float* dbias);
  void (*rmsnorm_forward)(std::int64_t rows, std::int64_t c, float epsilon, const float* x,
                          const float* addend, const float* weight, float* sum, float* y,
                          float* rstd);
  void (*rmsnorm_backward)(std::int64_t rows, std::int64_t c, const float* x, const float* weight,
                           const float* rstd, const float* dy, float* dx, float* dweight);
  void (*column_sum)(std::int64_t rows, std::int64_t columns, const float* x, float* out);
  void (*broadcast_row)(std::int64_t rows, std::int64_t columns, const float* row, float* out);
  void (*softmax_cross_entropy)(std::int64_t rows, std::int64_t columns, std::int64_t vocabulary,
                                float scale, bool write_gradient, const std::int32_t* targets,
                                float* logits, float* losses);
  // attention_rows.cc: `rows` rows of scores, row r valid up to column first + r, width columns
  void (*causal_softmax)(std::int64_t rows, std::int64_t width, std::int64_t first,
                         std::int64_t stride, float* scores);
  void (*causal_softmax_backward)(std::int64_t rows, std::int64_t width, std::int64_t first,
                                  std::int64_t stride, std::int64_t head_size, float scale,
                                  std::int64_t out_stride, const float* out, const float* dout,
                                  const float* probabilities, float* dscores);
  // elementwise.cc
  void (*gelu_forward)(std::int64_t n, const float* x, float* y);
  void (*gelu_backward)(std::int64_t n, const float* x, float* gradient);
  void (*swiglu_forward)(std::int64_t rows, std::int64_t width, const float* gate_up, float* y);
  void (*swiglu_backward)(std::int64_t rows, std::int64_t width, const float* gate_up,
                          const float* dy, float* dgate_up);
  void (*rotate)(const RotaryOp& op, const float* angles, float* x);
  void (*to_bf16)(std::int64_t n, const float* x, std::uint16_t* y);  // to nearest even
  void (*add)(std::int64_t n, const float* a, const float* b, float* out);
  void (*adamw)(std::int64_t n, const AdamWOp& op, const float* g, float* p, float* m, float* v);
  // embedding.cc
  void (*embed_forward)(std::int64_t rows, std::int64_t length, std::int64_t c,
                        const std::int32_t* tokens, const float* token_table,
                        const float* position_table, float* out);
  void (*embed_backward)(std::int64_t rows, std::int64_t length, std::int64_t c,
                         std::int64_t vocabulary, const std::int32_t* tokens, const float* dout,
                         std::int32_t* workspace, float* dtokens, float* dpositions);
  // exact.cc: n is a multiple of 256
  void (*quantise_add)(std::int64_t n, int fraction_bits, int guard_shift,
                       const std::int32_t* exponents, const float* gradient, std::int32_t* sums,
                       std::int32_t* guards);
  void (*dither_add)(std::int64_t n, const DitherOp& op, const std::int32_t* exponents,
                     const float* gradient, std::int32_t* sums, std::int32_t* guards);
  void (*dequantise)(std::int64_t n, int fraction_bits, float factor, const std::int32_t* exponents,
                     const std::int32_t* sums, float* gradient);
  void (*block_exponents)(std::int64_t n, std::int32_t zero, const float* x, std::int32_t* out);
  void (*squared_norm_chunks)(std::int64_t n, std::int64_t chunk, const float* x, double* out);
  void (*add_i32)(std::int64_t n, const std::int32_t* from, std::int32_t* to);
  void (*weighted_sums)(std::int64_t n, std::int64_t chunk, const std::int32_t* x,
                        std::int64_t* out);
};

const Ops& ops_sse41();
const Ops& ops_avx2();
const Ops& ops_avx512();

}  // namespace rubato::worker::cpu
