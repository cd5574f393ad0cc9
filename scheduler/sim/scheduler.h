// The seam between the simulator and a scheduler under test. A scheduler sees what the operator
// would see (ClusterState: what jobs declare, what they hold, what was measured of them) and Hints.
// What is hidden from it cannot change its decision, because it is not in here: future arrivals,
// speeds nobody has observed, and, unless its descriptor says that it knows them, durations.
#pragma once

#include "scheduler/plan.h"
#include "scheduler/sim/trace.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace rubato::sched::sim {

enum class Knows {
  kNothing,    // beyond what was observed: GPU time attained, throughput where it ran
  kDuration,   // the true duration at the requested size, as an oracle gives it
  kRemaining,  // the true time left at the requested size
};
const char* name_of(Knows knows);

struct Descriptor {
  std::string name;
  std::string about;  // one line
  Knows knows = Knows::kNothing;
  bool elastic = false;  // gives min to max GPUs; otherwise the request
  // Decides differently as time passes although nothing happens: a round every round interval.
  bool timed = false;
  bool uses_throughput = false;  // is called again once a speed was observed
};

// Of the job at the same place in ClusterState::jobs.
struct JobHint {
  Gpus request = 0;
  TimeMs submit_ms = 0;
  GpuMs attained_gpu_ms = 0;           // held, start-up and stalls included
  TimeMs started_ms = -1;              // the last time; -1: never
  std::optional<TimeMs> duration_ms;   // Knows::kDuration
  std::optional<TimeMs> remaining_ms;  // Knows::kRemaining
};

struct Hints {
  TimeMs now_ms = 0;
  std::vector<JobHint> jobs;
};

// One thread; equal calls in equal order give equal plans. Verdicts of a Plan may be left out.
class Scheduler {
 public:
  virtual ~Scheduler() = default;
  virtual const Descriptor& descriptor() const = 0;
  virtual Plan decide(const ClusterState& state, const Hints& hints) = 0;
  // When it wants to be asked again although nothing happens until then; asked after each decide().
  virtual std::optional<TimeMs> next_wake(const ClusterState& state, const Hints& hints) const;
};

}  // namespace rubato::sched::sim
