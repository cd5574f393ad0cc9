// Matrix products by oneDNN, on one thread. The only file that knows oneDNN.
#pragma once

#include "worker/backend/cpu/isa.h"
#include "worker/backend/kernels.h"

#include <cstdint>
#include <string>

namespace rubato::worker::cpu {

// Before the first product: it may use this instruction set at most (pin_isa). False when it is too
// late.
bool limit_gemm(Isa isa);
// "onednn-2.6.3".
std::string gemm_version();

// Row-major with leading dimensions: c (m, n) = alpha op(a) op(b) + beta c. Runs in the calling
// thread; the caller has set the floating-point mode.
void sgemm(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k,
           float alpha, const float* a, std::int64_t stride_a, const float* b,
           std::int64_t stride_b, float beta, float* c, std::int64_t stride_c);

// c (m, n) = op(a) op(b) [+ c], as GemmShape says, of factors in bf16 (the upper halves of floats),
// summed in f32. Nothing is written to a and b. The first product of a shape in a thread takes some
// 0.1 ms more.
void bf16_gemm(const GemmShape& shape, std::uint16_t* a, std::uint16_t* b, float* c);

}  // namespace rubato::worker::cpu
