// Matrix products by oneDNN in f32, on one thread. The only file that knows oneDNN.
#pragma once

#include "common/result.h"
#include "worker/backend/kernels.h"

#include <string>

namespace rubato::worker::cpu {

// The instruction sets, weakest first, as oneDNN names them.
enum class Isa { kSse41, kAvx2, kAvx512 };
const char* name_of(Isa isa);
// The best this machine has; kInvalid when it lacks SSE4.1.
Result<Isa> best_isa();
Result<Isa> parse_isa(const std::string& text);  // "auto" and the names; kInvalid

// Pins the instruction set of oneDNN for this process. oneDNN decides once, so a second call with
// another one is kConflict.
Status pin_isa(Isa isa);
// "onednn-2.6.3".
std::string gemm_version();

// Row-major with leading dimensions: c (m, n) = alpha op(a) op(b) + beta c. Runs in the calling
// thread; the caller has set the floating-point mode.
void sgemm(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k,
           float alpha, const float* a, std::int64_t stride_a, const float* b,
           std::int64_t stride_b, float beta, float* c, std::int64_t stride_c);

}  // namespace rubato::worker::cpu
