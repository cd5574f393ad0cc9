// Shortest first, at the job's minimum size; who does not fit is passed over.
//   sjf   duration, displaces nobody
//   srtf  remaining time, displaces later ones
//   srsf  remaining time times GPUs (remaining service), displaces later ones
// A job of which the time is not known comes first: where its speed is unknown because it has never
// run, that is how it becomes known.
#pragma once

#include "scheduler/policy/policy.h"

namespace rubato::sched {

class Sjf : public Policy {
 public:
  static Descriptor describe();
  Targets decide(const Problem& problem) const override;
};

class Srtf : public Policy {
 public:
  static Descriptor describe();
  Targets decide(const Problem& problem) const override;
};

class Srsf : public Policy {
 public:
  static Descriptor describe();
  Targets decide(const Problem& problem) const override;
};

}  // namespace rubato::sched
