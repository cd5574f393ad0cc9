// First in, first out: in order of arrival; displaces nobody. `fifo` waits with all others behind
// the first that does not fit; `fifoBackfill` lets any later job that fits now pass it (first fit,
// without a reservation: a large job may wait long).
#pragma once

#include "scheduler/policy/policy.h"

namespace rubato::sched {

class Fifo : public Policy {
 public:
  static Descriptor describe();
  Targets decide(const Problem& problem) const override;
};

class FifoBackfill : public Policy {
 public:
  static Descriptor describe();
  Targets decide(const Problem& problem) const override;
};

}  // namespace rubato::sched
