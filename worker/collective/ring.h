// Private to worker/collective: the arithmetic of a ring all-reduce, apart from sockets.
//
// n members cut the buffer into n segments. In step k (0 … 2(n-1)-1) rank r sends segment
// (r - k) mod n and receives segment (r - k - 1) mod n: first n-1 steps of reduce-scatter, then n-1
// of all-gather. What is sent in step k > 0 is what was received in step k-1.
#pragma once

#include <cstdint>

namespace rubato::worker {

struct Segment {
  std::int64_t first = 0;  // elements
  std::int64_t count = 0;
};

class RingPlan {
 public:
  RingPlan(std::int64_t count, std::uint32_t size, std::uint32_t rank)
      : count_(count), size_(size), rank_(rank) {}
  std::int64_t count() const { return count_; }
  std::uint32_t steps() const { return 2 * (size_ - 1); }
  bool is_reduce(std::uint32_t step) const { return step < size_ - 1; }
  Segment sent(std::uint32_t step) const { return segment(rank_ + 2 * size_ - step); }
  Segment received(std::uint32_t step) const { return segment(rank_ + 2 * size_ - step - 1); }

 private:
  Segment segment(std::uint32_t index) const {
    const std::int64_t i = index % size_;
    const std::int64_t first = count_ * i / size_;
    return {first, count_ * (i + 1) / size_ - first};
  }
  std::int64_t count_;
  std::uint32_t size_;
  std::uint32_t rank_;
};

// out[i] = in[i] + part[i], modulo 2^32. `out` may not overlap the others.
void add_int32(std::int32_t* out, const std::int32_t* in, const std::int32_t* part,
               std::int64_t count);

}  // namespace rubato::worker
