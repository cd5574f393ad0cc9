#include "scheduler/blockers.h"

#include "common/check.h"
#include "scheduler/model/queue_tree.h"
#include "scheduler/model/sharing.h"
#include "scheduler/policy/registry.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <utility>

namespace rubato::sched {
namespace {

// Waits for GPUs that others have, or for others that come first.
bool waits_for_others(const Verdict& verdict) {
  switch (verdict.reason) {
    case Reason::kQueueLimit:
    case Reason::kWaitingForRelease:
    case Reason::kInsufficientGpus:
    case Reason::kBehind:
    case Reason::kCellsFull:
    case Reason::kLoadLimit:
    case Reason::kOthersNotPreemptible:
    case Reason::kGuaranteeFull:
      return verdict.outcome == Outcome::kNotNow;
    case Reason::kPlaced:
    case Reason::kRefused:
    case Reason::kQueueUnknown:
    case Reason::kQueueForbidden:
    case Reason::kQueueClosed:
    case Reason::kNoAllowedSize:
    case Reason::kExceedsCluster:
    case Reason::kEveryNodeAvoided:
    case Reason::kNodesAvoided:
    case Reason::kNodesUnavailable:
    case Reason::kNodeLeaves:
      return false;
  }
  check_failed(__FILE__, __LINE__, "Reason");
}

class BlockerSearch {
 public:
  BlockerSearch(const ClusterState& state, const PolicyConfig& config, const JobId& job)
      : state_(state), config_(config) {
    auto policy = make_policy(config.policy, config.parameters);
    CHECK(policy.ok());
    policy_ = std::move(*policy);
    for (const Node& node : state.nodes) nodes_[node.id] = &node;
    const auto found = std::ranges::find(state.jobs, job, &Job::id);
    CHECK(found != state.jobs.end());
    wanting_ = static_cast<std::size_t>(found - state.jobs.begin());
  }

  std::vector<JobId> run() {
    const Plan plan = make_plan(state_, *policy_, config_);
    if (!waits_for_others(plan.verdicts[wanting_])) return {};
    std::vector<std::size_t> gone = in_order_of_leaving(plan);
    if (!is_placed_without(gone)) return {};
    cut(gone);
    while (thin(gone) && plans_ < kBlockerPlansMost) {
    }
    std::vector<JobId> blockers;
    blockers.reserve(gone.size());
    for (const std::size_t i : gone) blockers.push_back(state_.jobs[i].id);
    return blockers;
  }

 private:
  // To a beginning that is enough; where more never hurts, the shortest.
  void cut(std::vector<std::size_t>& gone) {
    std::size_t too_few = 0;
    while (gone.size() - too_few > 1) {
      const std::size_t half = (too_few + gone.size()) / 2;
      std::vector<std::size_t> first(gone.begin(),
                                     gone.begin() + static_cast<std::ptrdiff_t>(half));
      if (is_placed_without(first))
        gone = std::move(first);
      else
        too_few = half;
    }
  }

  // Each one may stay without whom it is enough, too. False: there was none.
  bool thin(std::vector<std::size_t>& gone) {
    const std::size_t before = gone.size();
    for (std::size_t i = gone.size(); i-- > 0 && plans_ < kBlockerPlansMost;) {
      std::vector<std::size_t> others = gone;
      others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
      if (is_placed_without(others)) gone = std::move(others);
    }
    return gone.size() < before;
  }

  // All others: those that the verdict names, those that have or get what it could use, the rest;
  // the last that are served first.
  std::vector<std::size_t> in_order_of_leaving(const Plan& plan) const {
    const auto& named = plan.verdicts[wanting_].waits_for;
    std::set<JobId> served;
    for (const Action& action : plan.actions)
      if (std::ranges::any_of(action.add,
                              [&](const Placement& added) { return is_wanted(added.node); }))
        served.insert(action.job);
    const auto rank = [&](const Job& job) {
      if (std::ranges::find(named, job.name) != named.end()) return 0;
      return served.contains(job.id) || has_what_is_wanted(job) ? 1 : 2;
    };
    const Problem problem(state_);
    const std::vector<JobIndex> order = policy_->decide(problem).order;
    std::vector<std::tuple<int, std::size_t, std::size_t>> others;
    for (std::size_t at = 0; at < order.size(); ++at)
      if (order[at].value != wanting_)
        others.emplace_back(rank(problem.job(order[at])), order.size() - at, order[at].value);
    std::ranges::sort(others);
    std::vector<std::size_t> all;
    all.reserve(others.size());
    for (const auto& [group, back, job] : others) all.push_back(job);
    return all;
  }

  bool has_what_is_wanted(const Job& job) const {
    return std::ranges::any_of(job.held, [&](const Held& held) {
      return held.gives_room() &&
             (is_wanted(held.node) || whole_of(job.queue) == whole_of(state_.jobs[wanting_].queue));
    });
  }

  // The widest queue that it is a part of: limits of that may be in the way.
  std::string whole_of(const std::string& name) const {
    const std::vector<std::string> names = with_parents(state_.queues, name);
    return names.empty() ? name : names.back();
  }

  bool is_wanted(const NodeId& node) const {
    const auto found = nodes_.find(node);
    return found != nodes_.end() && admits(state_.jobs[wanting_], *found->second);
  }

  bool is_placed_without(const std::vector<std::size_t>& gone) {
    ++plans_;
    const std::set<std::size_t> left_out(gone.begin(), gone.end());
    ClusterState rest;
    rest.now_ms = state_.now_ms;
    rest.levels = state_.levels;
    rest.nodes = state_.nodes;
    rest.queues = state_.queues;
    std::map<NodeId, Node*> nodes;
    for (Node& node : rest.nodes) nodes[node.id] = &node;
    std::size_t position = 0;
    for (std::size_t i = 0; i < state_.jobs.size(); ++i) {
      const Job& job = state_.jobs[i];
      if (i == wanting_) position = rest.jobs.size();
      if (!left_out.contains(i)) rest.jobs.push_back(job);
    }
    for (const std::size_t i : gone) {
      const Job& job = state_.jobs[i];
      const std::vector<Resources> freed = freed_by_end(job, rest.jobs);
      for (std::size_t pod = 0; pod < freed.size(); ++pod) {
        const auto node = nodes.find(job.held[pod].node);
        if (job.held[pod].gives_room() && node != nodes.end()) node->second->free += freed[pod];
      }
    }
    return make_plan(rest, *policy_, config_).verdicts[position].outcome == Outcome::kPlaced;
  }

  const ClusterState& state_;
  const PolicyConfig& config_;
  std::unique_ptr<Policy> policy_;
  std::map<NodeId, const Node*> nodes_;
  std::size_t wanting_ = 0;
  int plans_ = 0;
};

}  // namespace

std::vector<JobId> blockers_of(const ClusterState& state, const PolicyConfig& config,
                               const JobId& job) {
  return BlockerSearch(state, config, job).run();
}

}  // namespace rubato::sched
