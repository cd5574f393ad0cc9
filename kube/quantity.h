// Kubernetes quantities: "250m", "2", "1.5Gi", "64k", "1e3". Rounded up, as the API server rounds;
// out of range saturates. Values.
#pragma once

#include "common/result.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace rubato::kube {

// In units (bytes, devices, whole cores) and in thousandths (milli-cores).
Result<std::int64_t> parse_quantity(std::string_view text);
Result<std::int64_t> parse_quantity_milli(std::string_view text);

}  // namespace rubato::kube
