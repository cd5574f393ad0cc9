#include "worker/backend/cuda/matmul.h"

#include "worker/backend/cuda/dynamic_library.h"

#include <cstdint>
#include <list>
#include <mutex>
#include <utility>

#include <cublasLt.h>

namespace rubato::worker::cuda {

namespace {

constexpr const char* kLibrary = "libcublasLt.so.13";
constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;  // what NVIDIA advises for Hopper
constexpr std::uint32_t kWideAlignment = 16;                    // of operands, in bytes

// The functions of the library that we use.
struct Library {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtGetVersion) version = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&cublasLtMatmulDescCreate) make_product = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) set_product = nullptr;
  decltype(&cublasLtMatmulDescDestroy) drop_product = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) make_layout = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) drop_layout = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) make_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) drop_preference = nullptr;
};

Result<Library> load_library() {
  TRY(DynamicLibrary file, DynamicLibrary::open(kLibrary, "cuBLAS"));
  Library library;
  file.find(library.create, "cublasLtCreate");
  file.find(library.destroy, "cublasLtDestroy");
  file.find(library.version, "cublasLtGetVersion");
  file.find(library.matmul, "cublasLtMatmul");
  file.find(library.heuristic, "cublasLtMatmulAlgoGetHeuristic");
  file.find(library.make_product, "cublasLtMatmulDescCreate");
  file.find(library.set_product, "cublasLtMatmulDescSetAttribute");
  file.find(library.drop_product, "cublasLtMatmulDescDestroy");
  file.find(library.make_layout, "cublasLtMatrixLayoutCreate");
  file.find(library.drop_layout, "cublasLtMatrixLayoutDestroy");
  file.find(library.make_preference, "cublasLtMatmulPreferenceCreate");
  file.find(library.set_preference, "cublasLtMatmulPreferenceSetAttribute");
  file.find(library.drop_preference, "cublasLtMatmulPreferenceDestroy");
  TRY_OK(file.has_all());
  return library;
}

struct Key {
  GemmShape shape;
  bool has_bias = false;
  std::uint32_t alignment = kWideAlignment;
  bool operator==(const Key&) const = default;
};

// One shape, ready to run. Matrices are told to the library by columns: c = a b by rows is
// c' = b' a' by columns, where what is stored stays as it is.
struct Product {
  Key key;
  cublasLtMatmulDesc_t description = nullptr;
  cublasLtMatrixLayout_t left = nullptr, right = nullptr, out = nullptr;
  cublasLtMatmulAlgo_t algorithm = {};
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;  // of making it
};

// Calls until one of them fails; those after it are not made.
class Steps {
 public:
  explicit Steps(cublasStatus_t before = CUBLAS_STATUS_SUCCESS) : status_(before) {}
  template <class Function, class... Arguments>
  void then(Function function, Arguments... arguments) {
    if (ok()) status_ = function(arguments...);
  }
  void fail(cublasStatus_t status) { status_ = status; }
  bool ok() const { return status_ == CUBLAS_STATUS_SUCCESS; }
  cublasStatus_t status() const { return status_; }

 private:
  cublasStatus_t status_;
};

std::uint32_t common_alignment(std::initializer_list<const void*> pointers) {
  for (const void* pointer : pointers)
    if (reinterpret_cast<std::uintptr_t>(pointer) % kWideAlignment != 0) return sizeof(float);
  return kWideAlignment;
}

Error product_error(const GemmShape& s, cublasStatus_t status) {
  return Error(Code::kInternal, "a matrix product of " + std::to_string(s.m) + " x " +
                                    std::to_string(s.n) + " x " + std::to_string(s.k) +
                                    " failed: cuBLAS status " + std::to_string(status))
      .set_reason(kDeviceLost);
}

}  // namespace

struct Matmul::Impl {
  Library library;
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F_PEDANTIC;
  cublasLtHandle_t handle = nullptr;
  std::mutex mutex;             // of products
  std::list<Product> products;  // a training job has some twenty

  ~Impl();
  Product& product_for(const Key& key);
  void describe(Product& product, Steps& steps) const;
  void choose(Product& product, Steps& steps) const;
};

Matmul::Impl::~Impl() {
  for (const Product& product : products) {
    for (cublasLtMatrixLayout_t layout : {product.left, product.right, product.out})
      if (layout != nullptr) library.drop_layout(layout);
    if (product.description != nullptr) library.drop_product(product.description);
  }
  if (handle != nullptr) library.destroy(handle);
}

void Matmul::Impl::describe(Product& product, Steps& steps) const {
  const GemmShape& s = product.key.shape;
  const auto operation = [&](cublasLtMatmulDescAttributes_t which, bool transposed) {
    const cublasOperation_t value = transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    steps.then(library.set_product, product.description, which, &value, sizeof value);
  };
  // Rows and columns of what is stored, by columns.
  const auto layout = [&](cublasLtMatrixLayout_t& made, std::int64_t rows, std::int64_t columns) {
    steps.then(library.make_layout, &made, CUDA_R_32F, static_cast<std::uint64_t>(rows),
               static_cast<std::uint64_t>(columns), rows);
  };
  steps.then(library.make_product, &product.description, compute, CUDA_R_32F);
  operation(CUBLASLT_MATMUL_DESC_TRANSA, s.transpose_b);
  operation(CUBLASLT_MATMUL_DESC_TRANSB, s.transpose_a);
  if (product.key.has_bias) {
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    steps.then(library.set_product, product.description, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
               sizeof epilogue);
  }
  layout(product.left, s.transpose_b ? s.k : s.n, s.transpose_b ? s.n : s.k);
  layout(product.right, s.transpose_a ? s.m : s.k, s.transpose_a ? s.k : s.m);
  layout(product.out, s.n, s.m);
}

void Matmul::Impl::choose(Product& product, Steps& steps) const {
  cublasLtMatmulPreference_t preference = nullptr;
  steps.then(library.make_preference, &preference);
  if (!steps.ok()) return;
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t which, const auto& value) {
    steps.then(library.set_preference, preference, which, &value, sizeof value);
  };
  const std::uint64_t workspace = kWorkspaceBytes;
  const std::uint32_t reductions =
      CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions);
  for (const auto which :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    prefer(which, product.key.alignment);
  cublasLtMatmulHeuristicResult_t found = {};
  int count = 0;
  steps.then(library.heuristic, handle, product.description, product.left, product.right,
             product.out, product.out, preference, 1, &found, &count);
  if (steps.ok() && count == 0) steps.fail(CUBLAS_STATUS_NOT_SUPPORTED);
  product.algorithm = found.algo;
  (void)library.drop_preference(preference);
}

Product& Matmul::Impl::product_for(const Key& key) {
  const std::lock_guard lock(mutex);
  for (Product& product : products)
    if (product.key == key) return product;
  Product& product = products.emplace_back();
  product.key = key;
  Steps steps;
  describe(product, steps);
  if (steps.ok()) choose(product, steps);
  product.status = steps.status();
  return product;
}

Matmul::Matmul(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Matmul::~Matmul() = default;

Result<std::unique_ptr<Matmul>> Matmul::open(Precision precision) {
  auto impl = std::make_unique<Impl>();
  if (precision == Precision::kBf16) impl->compute = CUBLAS_COMPUTE_32F_FAST_16BF;
  TRY(impl->library, load_library());
  if (const cublasStatus_t status = impl->library.create(&impl->handle);
      status != CUBLAS_STATUS_SUCCESS)
    return Error(Code::kInternal, "cuBLAS does not start: status " + std::to_string(status));
  return std::unique_ptr<Matmul>(new Matmul(std::move(impl)));
}

std::string Matmul::version() const {
  const std::size_t version = impl_->library.version();
  return "cublaslt-" + std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) +
         "." + std::to_string(version % 100);
}

void Matmul::run(CudaStream& stream, const GemmShape& shape, const float* a, const float* b,
                 const float* bias, float* c) {
  const cudaStream_t raw = stream.enter();
  const Library& library = impl_->library;
  Product& product =
      impl_->product_for({shape, bias != nullptr, common_alignment({a, b, c, bias})});
  Steps steps(product.status);
  void* workspace = stream.product_workspace(kWorkspaceBytes);
  if (steps.ok() && workspace != nullptr) {
    // The bias is an attribute of the description: set and used under the lock.
    const std::lock_guard lock(impl_->mutex);
    if (bias != nullptr)
      steps.then(library.set_product, product.description, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                 static_cast<const void*>(&bias), sizeof bias);
    const float one = 1.0f;
    const float kept = shape.accumulate ? 1.0f : 0.0f;
    steps.then(library.matmul, impl_->handle, product.description, &one, b, product.left, a,
               product.right, &kept, c, product.out, c, product.out, &product.algorithm, workspace,
               kWorkspaceBytes, raw);
  }
  if (!steps.ok()) stream.note(product_error(shape, steps.status()));
}

}  // namespace rubato::worker::cuda
