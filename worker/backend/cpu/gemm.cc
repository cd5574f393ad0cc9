#include "worker/backend/cpu/gemm.h"

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>

namespace rubato::worker::cpu {

namespace {

dnnl_cpu_isa_t onednn_name(Isa isa) {
  switch (isa) {
    case Isa::kSse41:
      return dnnl_cpu_isa_sse41;
    case Isa::kAvx2:
      return dnnl_cpu_isa_avx2;
    case Isa::kAvx512:
      return dnnl_cpu_isa_avx512_core;
  }
  return dnnl_cpu_isa_sse41;
}

}  // namespace

bool limit_gemm(Isa isa) { return dnnl_set_max_cpu_isa(onednn_name(isa)) == dnnl_success; }

std::string gemm_version() {
  const dnnl_version_t* version = dnnl_version();
  return "onednn-" + std::to_string(version->major) + "." + std::to_string(version->minor) + "." +
         std::to_string(version->patch);
}

void sgemm(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k,
           float alpha, const float* a, std::int64_t stride_a, const float* b,
           std::int64_t stride_b, float beta, float* c, std::int64_t stride_c) {
  // oneDNN splits the work over OpenMP's threads, and other splits give other bits. The setting
  // belongs to the calling thread and costs a store.
  if (omp_get_max_threads() != 1) omp_set_num_threads(1);
  const dnnl_status_t status = dnnl_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', m, n, k,
                                          alpha, a, stride_a, b, stride_b, beta, c, stride_c);
  CHECK_EQ(static_cast<int>(status), static_cast<int>(dnnl_success));
}

}  // namespace rubato::worker::cpu
