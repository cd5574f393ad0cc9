// Matrix products by oneDNN in f32, on one thread. The only file that knows oneDNN.
#pragma once

#include "worker/backend/cpu/isa.h"
#include "worker/backend/kernels.h"

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

}  // namespace rubato::worker::cpu
