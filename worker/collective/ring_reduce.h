// Private to worker/collective: the all-reduce over two links of a ring.
#pragma once

#include "worker/collective/communicator.h"
#include "worker/collective/operation.h"
#include "worker/collective/ring.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace rubato::worker {

// Moves bytes until both directions are done. `staging`: between receive and add. `hops`: may be
// null.
std::optional<Failure> ring_reduce(Clock& clock, const RingPlan& plan, const Header& header,
                                   Neighbour next, Neighbour previous, const std::int32_t* in,
                                   std::int32_t* out, std::vector<std::byte>& staging,
                                   HopSums* hops = nullptr);

}  // namespace rubato::worker
