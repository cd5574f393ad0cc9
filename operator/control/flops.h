// What a token costs and what a GPU can do, for model FLOP utilisation. Pure.
#pragma once

#include "operator/api/job_spec.h"

#include <optional>
#include <string_view>

namespace rubato::control {

// Dense peak of one GPU, FLOP/s, by the product label (nvidia.com/gpu.product), as the maker's data
// sheet gives it; none for types that are not in the table.
std::optional<double> peak_flops(std::string_view gpu_type, api::Precision precision);

}  // namespace rubato::control
