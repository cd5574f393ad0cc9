#include "common/check.h"
#include "scheduler/admission.h"
#include "scheduler/certificate/certificate.h"
#include "scheduler/plan.h"
#include "scheduler/policy/registry.h"
#include "scheduler/queue_weights.h"
#include "scheduler/session/session.h"

#include <algorithm>
#include <unordered_map>

namespace rubato::sched {
namespace {

// By job: where it holds GPUs once the plan is done.
std::vector<GpusOnNodes> places_once_done(const ClusterState& state, const Plan& plan) {
  std::unordered_map<JobId, const Action*> action_of;
  for (const Action& action : plan.actions) action_of[action.job] = &action;
  std::vector<GpusOnNodes> places;
  places.reserve(state.jobs.size());
  for (const Job& job : state.jobs) {
    GpusOnNodes& of = places.emplace_back();
    const auto found = action_of.find(job.id);
    const Action* action = found == action_of.end() ? nullptr : found->second;
    for (const Held& held : job.held) {
      const bool leaves = action != nullptr && std::ranges::count(action->remove, held.ordinal) > 0;
      if (held.stays() && !leaves) of[held.node] += held.gpus;
    }
    if (action == nullptr) continue;
    for (const Placement& add : action->add) of[add.node] += add.gpus;
  }
  return places;
}

std::vector<Gpus> gpus_of(const std::vector<GpusOnNodes>& places) {
  std::vector<Gpus> gpus;
  gpus.reserve(places.size());
  for (const GpusOnNodes& of : places) {
    gpus.push_back(0);
    for (const auto& [node, here] : of) gpus.back() += here;
  }
  return gpus;
}

void share_beside_gpus(const ClusterState& state, const Policy& policy, const PolicyConfig& config,
                       Plan& plan) {
  const bool has_storage = config.storage_shares && state.storage;
  if (!has_storage && !config.cpu_memory_shares) return;
  const std::vector<GpusOnNodes> places = places_once_done(state, plan);
  if (has_storage) plan.storage = policy.share_storage(state, gpus_of(places));
  CHECK(!plan.storage || are_within(*plan.storage, *state.storage));
  if (config.cpu_memory_shares) plan.cpu_memory = policy.share_cpu_memory(state, places);
  CHECK(!plan.cpu_memory || are_within(*plan.cpu_memory, state, places));
}

}  // namespace

Plan make_plan(const ClusterState& state, const Policy& policy, const PolicyConfig& config) {
  Problem problem(state);
  admit_by_load(problem, config.max_load);
  std::map<std::string, Gpus> shares;
  if (config.queue_weights) shares = guarantee_by_weight(problem);
  const Targets targets = policy.decide(problem);
  Plan plan = Session(problem, targets, config).run();
  plan.queue_shares = std::move(shares);
  share_beside_gpus(state, policy, config, plan);
  return plan;
}

Plan make_plan(const ClusterState& state, const PolicyConfig& config) {
  const auto policy = make_policy(config.policy, config.parameters);
  CHECK(policy.ok());
  return make_plan(state, **policy, config);
}

std::optional<Certificate> certify(const ClusterState& state, const PolicyConfig& config,
                                   const Plan& plan) {
  const auto policy = make_policy(config.policy, config.parameters);
  CHECK(policy.ok());
  Problem problem(state);
  admit_by_load(problem, config.max_load);
  if (config.queue_weights) guarantee_by_weight(problem);
  const auto values = (*policy)->values(problem);
  if (!values) return std::nullopt;
  return certify(problem, *values, plan);
}

}  // namespace rubato::sched
