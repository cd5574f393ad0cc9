// Chronus (Gao et al., SoCC'21), a reconstruction: jobs hold leases of one length. Jobs with a
// deadline are promised that they meet it, as many as can be; what they do not need now goes to
// best-effort jobs, the least time left first.
//
// Who is promised: jobs with a deadline, the nearest first, are planned into leases, each at its
// minimum, earlier ones before later ones wherever they fit. Where one would be late, the one of
// those planned that needs most GPU time, and has not started, is dropped (Moore and Hodgson's
// rule, which is optimal on one machine and stands for the paper's integer program). A job that has
// started keeps its promise as long as it can be kept. Who is dropped, or of whom the work left is
// not known, is best effort.
//
// Plans reach kLeasesMost leases far. A job with a later deadline must have until then what it
// cannot do between then and its deadline; what more it needs it is planned for where that is left.
// So a far deadline makes no lease longer, nor takes one from a near deadline.
//
// GPUs are counted all together, types one by one as Gavel's rounds fill them. O(D² · T) for D jobs
// with a deadline (kDeadlinesMost) and T leases (kLeasesMost).
#pragma once

#include "scheduler/policy/policy.h"

namespace rubato::sched {

class Chronus : public Policy {
 public:
  static Descriptor describe();
  explicit Chronus(const std::vector<double>& parameters);
  Targets decide(const Problem& problem) const override;
  std::optional<TimeMs> next_wake(const ClusterState& state) const override;

  static constexpr std::int64_t kLeasesMost = 240;
  static constexpr std::size_t kDeadlinesMost = 256;

 private:
  TimeMs lease_ms_;
};

}  // namespace rubato::sched
