// On which nodes jobs are whose speed depends on how many these are (Job::goodput).
#include "scheduler/policy/room.h"
#include "scheduler/policy/rubato_claim.h"
#include "scheduler/policy/sia_places.h"

#include <algorithm>
#include <functional>
#include <set>
#include <tuple>
#include <utility>

namespace rubato::sched {
namespace {

using PodNodes = std::vector<NodeIndex>;

bool takes_pods(const Node& node) { return node.schedulable && !node.leaving; }

std::int64_t count_nodes(const PodNodes& nodes) {
  return std::ssize(std::set<NodeIndex>(nodes.begin(), nodes.end()));
}

// Nodes for so many pods of the job, as few as hold them; none: not so few have room. Those that it
// holds come first, then the fullest.
std::optional<PodNodes> fewest_nodes(const Problem& problem, JobIndex j, const PodNodes& held,
                                     const Table<NodeIndex, Resources>& room, std::int64_t pods,
                                     std::int64_t a_node) {
  const Resources& per_pod = problem.job(j).per_pod;
  std::vector<std::tuple<std::int64_t, Gpus, NodeIndex>> by_use;
  for (const NodeIndex n : problem.group(j).admitted)
    if (takes_pods(problem.node(n)))
      by_use.emplace_back(-std::ranges::count(held, n), room[n].gpus, n);
  std::ranges::sort(by_use);
  PodNodes nodes;
  const auto take = [&](std::int64_t count, std::int64_t of_each) {
    for (const auto& [own, gpus, n] : by_use) {
      if (count == 0) return;
      if (room[n].copies_of(per_pod) < of_each || std::ranges::count(nodes, n) > 0) continue;
      nodes.insert(nodes.end(), static_cast<std::size_t>(of_each), n);
      --count;
    }
  };
  take(pods / a_node, a_node);
  if (pods % a_node > 0) take(1, pods % a_node);
  return std::ssize(nodes) == pods ? std::optional(std::move(nodes)) : std::nullopt;
}

}  // namespace

// Where it is, if what it saves by fewer nodes does not pay for the way there.
bool RubatoPolicy::stays(const Claim& claim, std::int64_t nodes) const {
  if (claim.size != claim.held) return false;
  const Speed& speed = claim.curves.front();
  const double here = claim.work / speed.at(claim.size, nodes);
  const double there = claim.work / speed.at(claim.size) + std::max(claim.stall_ms, claim.start_ms);
  return !(there * (1 + switching_margin_) < here);
}

// Who stays is where it is; the others come the largest first, equals in order. Who finds not so
// few nodes is let be where it is, and any will do for what it lacks. Cost: jobs that change, times
// nodes, once more for each of those.
void RubatoPolicy::choose_places(const Problem& problem, const View& view, Targets& targets) const {
  const Gpus of_node = view.cluster.largest[TypeIndex(0)];
  Table<NodeIndex, Resources> room = room_on_nodes(problem);
  const auto take = [](const Claim& claim, const PodNodes& nodes, Table<NodeIndex, Resources>& of) {
    for (const NodeIndex n : nodes) of[n] -= claim.job->per_pod;
  };
  std::vector<std::pair<const Claim*, PodNodes>> to_place;
  targets.places.assign(view.claims.size(), std::nullopt);
  for (const JobIndex j : targets.order) {
    const Claim& claim = view.claims[j.value];
    auto held = nodes_held(problem, j);
    if (!held || !problem.takes_part(j)) continue;
    const bool may_change = (claim.job->settled || claim.held == 0) && !is_confined(*claim.job);
    const auto is_going = [&](NodeIndex n) { return !takes_pods(problem.node(n)); };
    if (!may_change || claim.size == 0 || std::ranges::any_of(*held, is_going)) {
      take(claim, *held, room);
    } else if (stays(claim, count_nodes(*held))) {
      take(claim, *held, room);
      targets.places[j.value] = std::move(held);
    } else {
      to_place.emplace_back(&claim, std::move(*held));
    }
  }
  std::ranges::stable_sort(to_place, std::greater{},
                           [](const auto& one) { return one.first->size; });
  for (std::size_t before = to_place.size() + 1; to_place.size() < before;) {
    before = to_place.size();
    Table<NodeIndex, Resources> left = room;
    std::erase_if(to_place, [&](const auto& one) {
      const auto& [claim, held] = one;
      const Gpus per_pod = claim->job->per_pod.gpus;
      auto nodes = fewest_nodes(problem, claim->index, held, left, claim->size / per_pod,
                                std::max<std::int64_t>(of_node / per_pod, 1));
      take(*claim, nodes ? *nodes : held, nodes ? left : room);
      targets.places[claim->index.value] = std::move(nodes);
      return !targets.places[claim->index.value].has_value();
    });
  }
}

}  // namespace rubato::sched
