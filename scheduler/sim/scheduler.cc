#include "scheduler/sim/scheduler.h"

#include "scheduler/policy/registry.h"

#include <algorithm>
#include <utility>

namespace rubato::sched::sim {
namespace {

constexpr std::int64_t kGrownPerRound = 100;  // rescaleBudget.jobsPerRound

class ByPolicy : public Scheduler {
 public:
  ByPolicy(Descriptor about, std::unique_ptr<Policy> policy)
      : about_(std::move(about)), policy_(std::move(policy)) {
    config_.policy = about_.name;
    config_.grown_per_round = kGrownPerRound;
  }
  const Descriptor& descriptor() const override { return about_; }
  Plan decide(const ClusterState& state) override { return make_plan(state, *policy_, config_); }
  std::optional<TimeMs> next_wake(const ClusterState& state) const override {
    return policy_->next_wake(state);
  }

 private:
  const Descriptor about_;
  const std::unique_ptr<Policy> policy_;
  PolicyConfig config_;
};

}  // namespace

Result<std::unique_ptr<Scheduler>> scheduler_named(
    const std::string& policy, const std::map<std::string, double>& parameters) {
  TRY(auto made, make_policy(policy, parameters));
  const std::vector<Descriptor> all = all_policies();
  const auto about = std::ranges::find(all, policy, &Descriptor::name);
  return std::unique_ptr<Scheduler>(std::make_unique<ByPolicy>(*about, std::move(made)));
}

}  // namespace rubato::sched::sim
