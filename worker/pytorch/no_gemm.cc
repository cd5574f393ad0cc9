// In the place of worker/backend/cpu/gemm.cc: the script's framework multiplies matrices, so the
// library holds no oneDNN.
#include "worker/backend/cpu/gemm.h"

namespace rubato::worker::cpu {

bool limit_gemm(Isa) { return true; }

std::string gemm_version() { return "no-gemm"; }

void sgemm(bool, bool, std::int64_t, std::int64_t, std::int64_t, float, const float*, std::int64_t,
           const float*, std::int64_t, float, float*, std::int64_t) {
  check_failed(__FILE__, __LINE__, "there are no matrix products here");
}

void bf16_gemm(const GemmShape&, std::uint16_t*, std::uint16_t*, float*) {
  check_failed(__FILE__, __LINE__, "there are no matrix products here");
}

}  // namespace rubato::worker::cpu
