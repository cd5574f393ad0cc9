#include "common/check.h"
#include "scheduler/admission.h"
#include "scheduler/certificate/certificate.h"
#include "scheduler/plan.h"
#include "scheduler/policy/registry.h"
#include "scheduler/queue_weights.h"
#include "scheduler/session/session.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace rubato::sched {

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

namespace {

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

constexpr std::size_t kNamedMost = 10'000;  // jobs and nodes

// Waits for GPUs that others have and, by their rights, need not give.
bool waits_for_gpus(const Verdict& verdict) {
  const bool waits = verdict.reason == Reason::kInsufficientGpus ||
                     verdict.reason == Reason::kQueueLimit || verdict.reason == Reason::kCellsFull;
  return verdict.outcome == Outcome::kNotNow && waits;
}

// The jobs that a plan stops and that are not to be stopped.
std::map<std::string, const Job*> kept_and_stopped(const ClusterState& state, const Plan& plan) {
  std::map<JobId, const Job*> kept;
  for (const Job& job : state.jobs)
    if (job.runs_on(state.now_ms)) kept[job.id] = &job;
  std::map<std::string, const Job*> stopped;  // by the name that verdicts have
  for (const Action& action : plan.actions)
    if (const auto found = kept.find(action.job);
        action.kind == ActionKind::kPreempt && found != kept.end())
      stopped[found->second->name] = found->second;
  return stopped;
}

// Whom another plan, in which all jobs may be stopped, makes room for by stopping some that are not
// to be waits for these. That plan takes as long as the first: not where that is long.
void name_those_that_run_on(const Problem& problem, const Targets& targets,
                            const PolicyConfig& config, Plan& plan) {
  const ClusterState& state = problem.state();
  const auto runs_on = [&](const Job& job) { return job.runs_on(state.now_ms); };
  if (state.jobs.size() + state.nodes.size() > kNamedMost) return;
  if (!config.preempt || std::ranges::none_of(state.jobs, runs_on) ||
      std::ranges::none_of(plan.verdicts, waits_for_gpus))
    return;
  const Plan other = Session(problem, targets, config, Session::Kept::kMayStop).run();
  const auto stopped = kept_and_stopped(state, other);
  for (std::size_t i = 0; i < plan.verdicts.size(); ++i) {
    Verdict& verdict = plan.verdicts[i];
    if (!waits_for_gpus(verdict) || other.verdicts[i].reason != Reason::kWaitingForRelease)
      continue;
    std::vector<std::string> names;
    std::optional<TimeMs> until = 0;  // of all of them
    for (const std::string& name : other.verdicts[i].waits_for) {
      const auto found = stopped.find(name);
      if (found == stopped.end()) continue;
      const Job& job = *found->second;
      names.push_back(name);
      if (!job.preemptible) until.reset();
      if (until) until = std::max(*until, job.running_since_ms + job.min_run_ms);
    }
    if (names.empty()) continue;
    verdict.reason = Reason::kOthersNotPreemptible;
    verdict.waits_for = std::move(names);
    verdict.until_ms = until;
  }
}

}  // namespace

Plan make_plan(const ClusterState& state, const Policy& policy, const PolicyConfig& config) {
  Problem problem(state);
  admit_by_load(problem, config.max_load);
  std::map<std::string, Gpus> shares;
  if (config.queue_weights) shares = guarantee_by_weight(problem);
  admit_by_guarantees(problem);
  const Targets targets = policy.decide(problem);
  Plan plan = Session(problem, targets, config).run();
  name_those_that_run_on(problem, targets, config, plan);
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
  admit_by_guarantees(problem);
  const auto values = (*policy)->values(problem);
  if (!values) return std::nullopt;
  return certify(problem, *values, plan);
}

}  // namespace rubato::sched
