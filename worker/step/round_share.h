// RoundShare: what the accumulators of this worker hold of one round: which micro-batches, and
// their parts of the vote. Kept through an abort, so that finished work is salvaged.
#pragma once

#include "worker/protocol/shares.h"
#include "worker/step/replica.h"

#include <cstdint>
#include <set>
#include <vector>

namespace rubato::worker {

class RoundShare {
 public:
  // Nothing held, for round `seq`.
  void reset(std::uint64_t seq);
  void add(std::uint32_t micro, const MicroPart& part);

  std::uint64_t seq() const { return seq_; }
  bool holds(std::uint32_t micro) const { return held_.contains(micro); }
  // True when all that is held lies in `ranges`.
  bool fits(const std::vector<wire::MicroRange>& ranges) const;
  std::vector<wire::MicroRange> ranges() const;
  std::vector<std::uint32_t> micros() const { return {held_.begin(), held_.end()}; }
  std::uint32_t size() const { return static_cast<std::uint32_t>(held_.size()); }
  const MicroPart& sum() const { return sum_; }

 private:
  std::uint64_t seq_ = 0;
  std::set<std::uint32_t> held_;
  MicroPart sum_;
};

}  // namespace rubato::worker
