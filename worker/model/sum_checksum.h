// SumChecksum: what says of the integers of an exact sum, in 12 bytes, whether a reduction has
// added them rightly: that of a sum is the sum of its parts' (worker/model/exact_sum.h,
// "Checksum").
#pragma once

#include <cstdint>

namespace rubato::worker {

struct SumChecksum {
  std::uint64_t elements = 0;
  std::uint32_t guards = 0;

  bool operator==(const SumChecksum&) const = default;
  SumChecksum& operator+=(const SumChecksum& other) {
    elements += other.elements;
    guards += other.guards;
    return *this;
  }
};

}  // namespace rubato::worker
