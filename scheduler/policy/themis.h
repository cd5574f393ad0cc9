// Themis (Mahajan et al., NSDI'20), a reconstruction: finish-time fairness by partial allocation
// auctions. A job's rho with g GPUs is what it takes in all, over what it would take alone on its
// share of the cluster:
//   rho(g) = (time since its arrival + time left on g GPUs) / time alone on 1/N of all GPUs
// N is the number of jobs that are there now (the paper: the mean over its life). A share below the
// minimum means the minimum for that part of the time. With no GPUs it waits for a lease and then
// goes on at its minimum, so that every rho is finite.
//
// Who has held what it holds for less than a lease keeps it; all other GPUs are offered. The part
// 1 - f of the jobs with the greatest rho bid 1 / rho(g) for each size. The arbiter takes the split
// of the greatest product of values: sizes are looked for by dynamic programming, over logarithms
// as integers of 2^-32, which is exact up to kUnitsMost GPUs. Of more a size takes whole units of
// so many that these are kUnitsMost at most. A winner keeps the part c of what it won:
//   c = product of the others' values / what that would be if it had not bid
// which in the paper makes lying useless; here nobody lies, but the part is what the paper gives
// out. Nobody pays below its minimum, since a gang is worth nothing there. What is left over goes
// to those that did not bid, who hold GPUs first, and then to bidders: minimums, then a step each
// in turn.
//
// One auction a GPU type, priorities one after the other. Placement is the session's business, so
// speed depends on counts alone. O(B · U · S) for B bidders (kBiddersMost), U units offered and S
// sizes a job (about 120 at most).
#pragma once

#include "scheduler/policy/policy.h"

namespace rubato::sched {

class Themis : public Policy {
 public:
  static Descriptor describe();
  explicit Themis(const std::vector<double>& parameters);
  Targets decide(const Problem& problem) const override;
  std::optional<TimeMs> next_wake(const ClusterState& state) const override;

  static constexpr std::size_t kBiddersMost = 256;
  static constexpr Gpus kUnitsMost = 4096;

 private:
  double fairness_;
  TimeMs lease_ms_;
};

}  // namespace rubato::sched
