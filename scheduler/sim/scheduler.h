// The seam between the simulator and a scheduler under test. A scheduler sees what the operator
// would see: ClusterState, what jobs declare, what they hold, what was measured of them. What is
// hidden from it cannot change its decision, because it is not in there: future arrivals, speeds
// nobody has observed, and, unless its descriptor says that it knows them, durations.
#pragma once

#include "common/result.h"
#include "scheduler/plan.h"
#include "scheduler/policy/policy.h"

#include <map>
#include <memory>
#include <optional>
#include <string>

namespace rubato::sched::sim {

// One thread; equal calls in equal order give equal plans.
class Scheduler {
 public:
  virtual ~Scheduler() = default;
  virtual const Descriptor& descriptor() const = 0;
  virtual Plan decide(const ClusterState& state) = 0;
  // When it wants to be asked again although nothing happens until then; asked after each decide().
  virtual std::optional<TimeMs> next_wake(const ClusterState&) const { return std::nullopt; }
};

// A policy, called as the operator calls it (operator/control's SchedulerLoop): make_plan, with the
// numbers of a SchedulingPolicy that says nothing. kInvalid as make_policy.
Result<std::unique_ptr<Scheduler>> scheduler_named(
    const std::string& policy, const std::map<std::string, double>& parameters = {});
// The same from one word, which is its name in results, too: "gavel:objective=1:roundSeconds=60".
Result<std::unique_ptr<Scheduler>> scheduler_of_words(const std::string& words);

// `config` with the policy of such a word in place of its own, and the parameters that it names.
Result<PolicyConfig> with_policy(PolicyConfig config, const std::string& words);

}  // namespace rubato::sched::sim
