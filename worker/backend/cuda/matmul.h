// Matrix products by cuBLASLt, of matrices in f32: in f32 throughout (no TF32, no emulation), or in
// bf16, where the library rounds both factors and sums in f32. It is looked up when a device is
// opened, so that a program with this backend starts on machines without it.
//
// Deterministic: one algorithm a shape, the first of the library's own heuristics, which look at
// the shape, the alignment of the operands, the GPU and the library's version and never at a clock;
// of the ways to split a long sum only the one that keeps partial sums apart and adds them in order
// is allowed; and each stream has a workspace of its own.
#pragma once

#include "worker/backend/cuda/runtime.h"
#include "worker/backend/kernels.h"

#include <memory>
#include <string>

namespace rubato::worker::cuda {

class Matmul {
 public:
  // kNotFound: the library is not on this machine; kInternal: it does not start.
  static Result<std::unique_ptr<Matmul>> open(Precision precision);
  ~Matmul();
  Matmul(const Matmul&) = delete;
  Matmul& operator=(const Matmul&) = delete;

  std::string version() const;  // "cublaslt-13.1.0"
  // As Kernels::gemm, on device addresses; `bias` may be null. Thread-safe. Errors are noted on the
  // stream. The first product of a shape takes some 0.1 ms more.
  void run(CudaStream& stream, const GemmShape& shape, const float* a, const float* b,
           const float* bias, float* c);

 private:
  struct Impl;
  explicit Matmul(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace rubato::worker::cuda
