// PlanCheck: of the policy in force the first plan and one a minute are looked at anew: whether
// they can be done, and, where it maximises something, how far they are, at most, from the best
// plan that there could be (scheduler/certificate). What checks it shares no code with what made
// the plan, so a plan that breaks a rule, or is worth more than the bound, is a bug of either: it
// is counted, and said in the log. On the scheduler's task.
#pragma once

#include "common/clock.h"
#include "common/metrics.h"
#include "scheduler/snapshot/snapshot.h"

#include <optional>
#include <string>

namespace rubato::control {

class PlanCheck {
 public:
  explicit PlanCheck(Metrics& metrics) : metrics_(metrics) {}
  // Cost: as that of the decision itself, once a minute.
  void look_at(const sched::Snapshot& decided_on, const sched::Plan& plan, MonoTime now);

 private:
  void count(const std::string& result);

  Metrics& metrics_;
  std::optional<MonoTime> last_;
  std::string policy_;  // then
};

}  // namespace rubato::control
