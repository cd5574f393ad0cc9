// What a SchedulingPolicy puts in force. The object named "default" is read anew in every round; it
// is taken whole or refused whole, and what was in force before then stays, under the next leader
// too: it is kept in the object's status. Without one, the operator's flags hold.
#pragma once

#include "common/clock.h"
#include "operator/api/scheduling_policy.h"
#include "operator/control/config.h"
#include "scheduler/plan.h"

#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace rubato::control {

inline constexpr std::string_view kPolicyInForce = "default";

struct Policy {
  sched::PolicyConfig plan;  // with its name
  Duration round_interval{};
  Duration gang_start{};
  Duration growth_pause{};                        // between two growths of one job; 0: none
  std::optional<api::SchedulingPolicySpec> spec;  // that it was loaded from; none: the flags
  std::string not_taken;  // what of `spec` this release refuses; "": it is taken whole
  bool operator==(const Policy&) const = default;
};

Policy policy_of(const Config& flags);
// kInvalid, with the name of the field and the mend, when something in it is not known.
Result<Policy> policy_of(const Config& flags, const api::SchedulingPolicySpec& spec);
// As an earlier leader left it; kNotFound where that left nothing. It may have been of another
// release: what this one refuses of it is left out, and all else stays.
Result<Policy> policy_left(const Config& flags, const api::SchedulingPolicyStatus& status);
std::string to_text(const Policy& policy);

// What the object's status should say. `refused`: why it was not loaded, else empty.
api::SchedulingPolicyStatus policy_status(const api::SchedulingPolicy& object,
                                          const Policy& in_force, const std::string& refused,
                                          WallTime now);

// The policy in force, between the scheduler's task, which sets it, and the others. Thread-safe.
class PolicyInForce {
 public:
  explicit PolicyInForce(Policy first)
      : policy_(std::make_shared<const Policy>(std::move(first))) {}
  std::shared_ptr<const Policy> get() const {
    const std::lock_guard lock(mutex_);
    return policy_;
  }
  void set(Policy policy) {
    const std::lock_guard lock(mutex_);
    policy_ = std::make_shared<const Policy>(std::move(policy));
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const Policy> policy_;
};

}  // namespace rubato::control
