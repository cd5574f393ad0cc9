// Compiled with -O3 in every preset (CMakeLists.txt), so that the loop uses vector instructions.
#include "worker/collective/ring.h"

namespace rubato::worker {

void add_int32(std::int32_t* __restrict out, const std::int32_t* __restrict in,
               const std::int32_t* __restrict part, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    out[i] = static_cast<std::int32_t>(static_cast<std::uint32_t>(in[i]) +
                                       static_cast<std::uint32_t>(part[i]));
  }
}

}  // namespace rubato::worker
