#include "worker/backend/cpu/gemm.h"

#include <exception>
#include <list>

#include <omp.h>
#include <oneapi/dnnl/dnnl.hpp>

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
    case Isa::kAvx512Bf16:
      return dnnl_cpu_isa_avx512_core_bf16;
    case Isa::kAmx:
      return dnnl_cpu_isa_avx512_core_amx;
  }
  return dnnl_cpu_isa_sse41;
}

// oneDNN splits the work over OpenMP's threads, and other splits give other bits. The setting
// belongs to the calling thread and costs a store.
void use_one_thread() {
  if (omp_get_max_threads() != 1) omp_set_num_threads(1);
}

// The products in bf16 that one thread has made. A training job has some twenty shapes, one that
// generates text as many more as its texts have lengths.
class Bf16Products {
 public:
  void run(const GemmShape& shape, std::uint16_t* a, std::uint16_t* b, float* c) {
    Product& product = product_for(shape);
    product.a.set_data_handle(a);
    product.b.set_data_handle(b);
    product.c.set_data_handle(c);
    product.run.execute(
        stream_,
        {{DNNL_ARG_SRC, product.a}, {DNNL_ARG_WEIGHTS, product.b}, {DNNL_ARG_DST, product.c}});
    stream_.wait();
  }

 private:
  static constexpr std::size_t kProductsMax = 512;

  struct Product {
    GemmShape shape;
    dnnl::matmul run;
    dnnl::memory a, b, c;
  };

  Product& product_for(const GemmShape& s) {
    for (Product& product : products_)
      if (product.shape == s) return product;
    using dnnl::memory;
    const auto stored = [](std::int64_t rows, std::int64_t columns, bool is_transposed,
                           memory::data_type type) {
      return memory::desc({rows, columns}, type,
                          is_transposed ? memory::dims{1, rows} : memory::dims{columns, 1});
    };
    const memory::desc a = stored(s.m, s.k, s.transpose_a, memory::data_type::bf16);
    const memory::desc b = stored(s.k, s.n, s.transpose_b, memory::data_type::bf16);
    const memory::desc c = stored(s.m, s.n, false, memory::data_type::f32);
    dnnl::primitive_attr attributes;
    if (s.accumulate) {
      dnnl::post_ops adds;
      adds.append_sum(1.0f);
      attributes.set_post_ops(adds);
    }
    if (products_.size() == kProductsMax) products_.pop_back();
    const dnnl::matmul::primitive_desc made(dnnl::matmul::desc(a, b, c), attributes, engine_);
    return products_.emplace_front(
        Product{s, dnnl::matmul(made), memory(a, engine_, DNNL_MEMORY_NONE),
                memory(b, engine_, DNNL_MEMORY_NONE), memory(c, engine_, DNNL_MEMORY_NONE)});
  }

  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  std::list<Product> products_;  // the newest first
};

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
  use_one_thread();
  const dnnl_status_t status = dnnl_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', m, n, k,
                                          alpha, a, stride_a, b, stride_b, beta, c, stride_c);
  CHECK_EQ(static_cast<int>(status), static_cast<int>(dnnl_success));
}

void bf16_gemm(const GemmShape& shape, std::uint16_t* a, std::uint16_t* b, float* c) {
  use_one_thread();
  try {
    thread_local Bf16Products products;
    products.run(shape, a, b, c);
  } catch (const std::exception& error) {
    check_failed(__FILE__, __LINE__, std::string("oneDNN: ") + error.what());
  }
}

}  // namespace rubato::worker::cpu
