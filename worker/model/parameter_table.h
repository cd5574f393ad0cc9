// Where each tensor of a model lies in the one flat f32 buffer that parameters, gradients and
// optimizer moments all use.
//
// Tensors stand in the order of the table. Each starts on a block border (kBlockElements = 256) and
// owns a slot of whole blocks, so no block is shared by two tensors. What a slot has beyond the
// tensor's elements (padding rows of the vocabulary, the tail of the last block) is zero in
// parameters, gradients and moments, and stays zero.
#pragma once

#include "worker/backend/kernels.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace rubato::worker {

struct Parameter {
  std::string name;                 // as Hugging Face names it, e.g. "transformer.h.0.ln_1.weight"
  std::vector<std::int64_t> shape;  // as Hugging Face stores it (Conv1D: [in, out])
  std::int64_t offset = 0;          // first element in the flat buffer; a multiple of 256
  std::int64_t count = 0;           // elements of the tensor: the product of shape
  std::int64_t slot = 0;            // elements owned, >= count; a multiple of 256
  bool decays = false;              // weight decay applies (matrices and embeddings)
};

class ParameterTable {
 public:
  // Appends a tensor. `padded_rows`: rows of the first dimension to make room for (>= shape[0]).
  const Parameter& add(std::string name, std::vector<std::int64_t> shape, bool decays,
                       std::int64_t padded_rows = 0);

  const std::vector<Parameter>& entries() const { return entries_; }
  const Parameter* find(std::string_view name) const;
  // Elements of the flat buffer, padding included; a multiple of 256.
  std::int64_t flat_count() const { return flat_count_; }
  std::int64_t block_count() const { return flat_count_ / kBlockElements; }
  // Elements of the tensors alone: the model's parameter count.
  std::int64_t parameter_count() const;
  std::int64_t largest_count() const;  // elements of the largest tensor
  // Equal for tables that lay out equal names and shapes equally.
  std::uint64_t digest() const;

 private:
  std::vector<Parameter> entries_;
  std::int64_t flat_count_ = 0;
};

}  // namespace rubato::worker
