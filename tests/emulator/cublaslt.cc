// cuBLASLt's calls (cublasLt.h): a library of its own, as matmul.cc looks it up by its name when a
// device is opened. A product is one piece of work that adds its terms in order, in f32, of factors
// that are rounded to bf16 where that is asked for. What the real library would choose is not
// imitated.
#include "tests/emulator/calls.h"
#include "tests/emulator/device_memory.h"
#include "tests/emulator/streams.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <vector>

#include <cublasLt.h>

struct EmulatedLibrary {};
struct EmulatedPreference {
  std::uint32_t alignment = 256;
};
struct EmulatedLayout {
  std::int64_t rows = 0, columns = 0, stride = 0;
  std::size_t bytes() const { return static_cast<std::size_t>(stride * columns) * sizeof(float); }
};
struct EmulatedProduct {
  bool transpose_a = false, transpose_b = false, has_bias = false, is_bf16 = false;
  const float* bias = nullptr;
};

namespace {

using namespace rubato::emulator;

template <class Do>
cublasStatus_t call(const char* name, Do work) {
  const std::lock_guard guard(lock());
  if (fails(name)) return CUBLAS_STATUS_INTERNAL_ERROR;
  return work();
}

template <class T>
cublasStatus_t made(T** out) {
  *out = new T;
  return CUBLAS_STATUS_SUCCESS;
}
template <class T>
cublasStatus_t dropped(T* thing) {
  delete thing;
  return CUBLAS_STATUS_SUCCESS;
}
template <class T>
T value_of(const void* value) {
  T out;
  std::memcpy(static_cast<void*>(&out), value, sizeof out);
  return out;
}

// The nearest bf16; to an even one in the middle. Of finite numbers.
float to_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return std::bit_cast<float>((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000);
}

// d = alpha op(a) op(b) + beta d + bias, by columns.
struct Job {
  EmulatedProduct product;
  EmulatedLayout a, b, d;
  float alpha = 1, beta = 0;
  const float* left = nullptr;
  const float* right = nullptr;
  float* out = nullptr;

  std::int64_t rows() const { return d.rows; }
  std::int64_t depth() const { return product.transpose_a ? a.rows : a.columns; }
  bool fits() const {
    return (product.transpose_a ? a.columns : a.rows) == d.rows &&
           (product.transpose_b ? b.rows : b.columns) == d.columns &&
           (product.transpose_b ? b.columns : b.rows) == depth();
  }
  void run() const;
};

void Job::run() const {
  std::vector<float> sums(static_cast<std::size_t>(rows()));
  for (std::int64_t column = 0; column < d.columns; ++column) {
    std::ranges::fill(sums, 0.0f);
    for (std::int64_t k = 0; k < depth(); ++k) {
      const float given =
          right[product.transpose_b ? column + k * b.stride : k + column * b.stride];
      const float factor = product.is_bf16 ? to_bf16(given) : given;
      const float* from = product.transpose_a ? left + k : left + k * a.stride;
      const std::int64_t step = product.transpose_a ? a.stride : 1;
      const auto add = [&](auto rounded) {
        for (std::size_t i = 0; i < sums.size(); ++i)
          sums[i] += rounded(from[static_cast<std::int64_t>(i) * step]) * factor;
      };
      if (product.is_bf16)
        add(to_bf16);
      else
        add([](float x) { return x; });
    }
    float* to = out + column * d.stride;
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const float before = beta == 0 ? 0 : beta * to[i];
      to[i] = alpha * sums[i] + before + (product.has_bias ? product.bias[i] : 0.0f);
    }
  }
}

cudaError_t run(const Job& job, void* workspace, std::size_t workspace_bytes, std::uint32_t id) {
  const std::size_t bias_bytes = static_cast<std::size_t>(job.rows()) * sizeof(float);
  if (!sweep(id, job.left, job.a.bytes(), false) || !sweep(id, job.right, job.b.bytes(), false) ||
      (job.product.has_bias && !sweep(id, job.product.bias, bias_bytes, false)) ||
      !sweep(id, job.out, job.d.bytes(), true) || !sweep(id, workspace, workspace_bytes, true))
    return cudaErrorIllegalAddress;
  const DeviceMemoryOpen open;
  job.run();
  return cudaSuccess;
}

bool are_aligned(const cublasLtMatmulAlgo_t& algorithm, std::initializer_list<const void*> all) {
  for (const void* pointer : all)
    if (reinterpret_cast<std::uintptr_t>(pointer) % algorithm.alignment != 0) return false;
  return true;
}

}  // namespace

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  return call("cublasLtCreate", [&] { return made(handle); });
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  return call("cublasLtDestroy", [&] { return dropped(handle); });
}
std::size_t cublasLtGetVersion() { return 130100; }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* out, cublasComputeType_t compute,
                                        cudaDataType_t) {
  return call("cublasLtMatmulDescCreate", [&] {
    const cublasStatus_t status = made(out);
    (*out)->is_bf16 = compute == CUBLAS_COMPUTE_32F_FAST_16BF;
    return status;
  });
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product,
                                              cublasLtMatmulDescAttributes_t which,
                                              const void* value, std::size_t) {
  return call("cublasLtMatmulDescSetAttribute", [&] {
    switch (which) {
      case CUBLASLT_MATMUL_DESC_TRANSA:
        product->transpose_a = value_of<cublasOperation_t>(value) == CUBLAS_OP_T;
        break;
      case CUBLASLT_MATMUL_DESC_TRANSB:
        product->transpose_b = value_of<cublasOperation_t>(value) == CUBLAS_OP_T;
        break;
      case CUBLASLT_MATMUL_DESC_EPILOGUE:
        product->has_bias = value_of<cublasLtEpilogue_t>(value) == CUBLASLT_EPILOGUE_BIAS;
        break;
      case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        product->bias = value_of<const float*>(value);
        break;
    }
    return CUBLAS_STATUS_SUCCESS;
  });
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product) {
  return call("cublasLtMatmulDescDestroy", [&] { return dropped(product); });
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* out, cudaDataType_t,
                                          std::uint64_t rows, std::uint64_t columns,
                                          std::int64_t stride) {
  return call("cublasLtMatrixLayoutCreate", [&] {
    *out = new EmulatedLayout{static_cast<std::int64_t>(rows), static_cast<std::int64_t>(columns),
                              stride};
    return CUBLAS_STATUS_SUCCESS;
  });
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return call("cublasLtMatrixLayoutDestroy", [&] { return dropped(layout); });
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* out) {
  return call("cublasLtMatmulPreferenceCreate", [&] { return made(out); });
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t which,
                                                    const void* value, std::size_t) {
  return call("cublasLtMatmulPreferenceSetAttribute", [&] {
    if (which >= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES)
      preference->alignment = std::min(preference->alignment, value_of<std::uint32_t>(value));
    return CUBLAS_STATUS_SUCCESS;
  });
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return call("cublasLtMatmulPreferenceDestroy", [&] { return dropped(preference); });
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t preference, int,
                                              cublasLtMatmulHeuristicResult_t* found, int* count) {
  return call("cublasLtMatmulAlgoGetHeuristic", [&] {
    found->algo.alignment = preference->alignment;
    *count = 1;
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t product, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              std::size_t workspace_bytes, cudaStream_t stream) {
  return call("cublasLtMatmul", [&] {
    const Job job{*product,
                  *a_layout,
                  *b_layout,
                  *d_layout,
                  value_of<float>(alpha),
                  value_of<float>(beta),
                  static_cast<const float*>(a),
                  static_cast<const float*>(b),
                  static_cast<float*>(d)};
    if (!job.fits() || c != d || (job.product.has_bias && job.product.bias == nullptr) ||
        !are_aligned(*algorithm, {a, b, d, job.product.bias}))
      return CUBLAS_STATUS_INVALID_VALUE;
    const cudaError_t error = enqueue(stream, {"a matrix product"}, [=](std::uint32_t id) {
      return run(job, workspace, workspace_bytes, id);
    });
    return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INTERNAL_ERROR;
  });
}
