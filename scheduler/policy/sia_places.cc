#include "scheduler/policy/sia_places.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

namespace rubato::sched {
namespace {

class NodePacking {
 public:
  NodePacking(const Problem& problem, const std::vector<ToPlace>& all,
              const Table<NodeIndex, Resources>& room)
      : problem_(problem),
        all_(all),
        room_(room),
        largest_(largest_node_by_type(problem)),
        placed_(all.size()) {}

  std::vector<std::optional<std::vector<NodeIndex>>> run() {
    for (std::size_t i = 0; i < all_.size(); ++i)
      if (all_[i].stays) take(i, nodes_held(problem_, all_[i].job));
    for (TypeIndex type; type.value < problem_.count_types(); ++type) {
      const auto missing = others_of(type);
      if (place(missing)) continue;
      const Table<NodeIndex, Resources> before = room_;
      const auto placed_before = placed_;
      if (!place(let_go(type))) {
        room_ = before;
        placed_ = placed_before;
      }
    }
    return std::move(placed_);
  }

 private:
  // The largest first; those of one size in the given order.
  std::vector<std::size_t> by_size(std::vector<std::size_t> some) const {
    std::ranges::stable_sort(some, std::greater(), [&](std::size_t i) { return all_[i].gpus; });
    return some;
  }

  std::vector<std::size_t> others_of(TypeIndex type) const {
    std::vector<std::size_t> some;
    for (std::size_t i = 0; i < all_.size(); ++i)
      if (all_[i].type == type && !all_[i].stays) some.push_back(i);
    return by_size(std::move(some));
  }

  // All of a type but those that stay on several nodes.
  std::vector<std::size_t> let_go(TypeIndex type) {
    std::vector<std::size_t> some;
    for (std::size_t i = 0; i < all_.size(); ++i) {
      if (all_[i].type != type) continue;
      if (all_[i].stays && spans_nodes(i)) continue;
      if (placed_[i])
        for (const NodeIndex n : *placed_[i]) room_[n] += per_pod(i);
      placed_[i].reset();
      some.push_back(i);
    }
    return by_size(std::move(some));
  }

  bool spans_nodes(std::size_t i) const {
    return placed_[i] && std::ranges::adjacent_find(*placed_[i], std::ranges::not_equal_to{}) !=
                             placed_[i]->end();
  }

  // False: not all of them have places.
  bool place(const std::vector<std::size_t>& some) {
    bool has_all = true;
    for (const std::size_t i : some) {
      take(i, nodes_for(i));
      has_all = has_all && placed_[i];
    }
    return has_all;
  }

  void take(std::size_t i, std::optional<std::vector<NodeIndex>> nodes) {
    placed_[i] = std::move(nodes);
    if (placed_[i])
      for (const NodeIndex n : *placed_[i]) room_[n] -= per_pod(i);
  }

  const Resources& per_pod(std::size_t i) const { return problem_.job(all_[i].job).per_pod; }

  // Those with room for so many of its pods, the best first.
  std::vector<NodeIndex> candidates(std::size_t i, std::int64_t pods) const {
    const auto held = nodes_held(problem_, all_[i].job);
    std::vector<std::tuple<std::int64_t, Gpus, NodeIndex>> found;
    for (const NodeIndex n : problem_.group(all_[i].job).admitted)
      if (problem_.type_of(n) == all_[i].type && room_[n].copies_of(per_pod(i)) >= pods)
        found.emplace_back(held ? -std::ranges::count(*held, n) : 0, room_[n].gpus, n);
    std::ranges::sort(found);
    std::vector<NodeIndex> nodes;
    nodes.reserve(found.size());
    for (const auto& [of_own, gpus, node] : found) nodes.push_back(node);
    return nodes;
  }

  // All in one domain, where they must be.
  std::optional<std::vector<NodeIndex>> nodes_for(std::size_t i) const {
    const Job& job = problem_.job(all_[i].job);
    if (!is_confined(job)) return nodes_in(i, std::nullopt);
    std::set<DomainIndex> tried;
    for (const NodeIndex n : candidates(i, 1)) {
      const DomainIndex domain = problem_.confines(job, n);
      if (!tried.insert(domain).second) continue;
      if (auto nodes = nodes_in(i, domain)) return nodes;
    }
    return std::nullopt;
  }

  std::optional<std::vector<NodeIndex>> nodes_in(std::size_t i,
                                                 std::optional<DomainIndex> domain) const {
    const Job& job = problem_.job(all_[i].job);
    const Gpus whole = largest_[all_[i].type] / per_pod(i).gpus;
    std::int64_t pods = all_[i].gpus / per_pod(i).gpus;
    std::vector<NodeIndex> nodes;
    for (const NodeIndex n : candidates(i, std::min(whole, pods))) {
      if (domain && problem_.confines(job, n) != *domain) continue;
      const std::int64_t here = std::min(whole, pods);
      nodes.insert(nodes.end(), static_cast<std::size_t>(here), n);
      pods -= here;
      if (pods == 0) return nodes;
    }
    return std::nullopt;
  }

  const Problem& problem_;
  const std::vector<ToPlace>& all_;
  Table<NodeIndex, Resources> room_;
  Table<TypeIndex, Gpus> largest_;
  std::vector<std::optional<std::vector<NodeIndex>>> placed_;
};

}  // namespace

std::vector<std::optional<std::vector<NodeIndex>>> place_configurations(
    const Problem& problem, const std::vector<ToPlace>& all,
    const Table<NodeIndex, Resources>& room) {
  return NodePacking(problem, all, room).run();
}

Table<TypeIndex, Gpus> largest_node_by_type(const Problem& problem) {
  Table<TypeIndex, Gpus> largest(problem.count_types(), 0);
  for (NodeIndex n; n < problem.end_of_nodes(); ++n) {
    Gpus& most = largest[problem.type_of(n)];
    if (problem.node(n).schedulable) most = std::max(most, problem.node(n).gpus_total);
  }
  return largest;
}

std::optional<std::vector<NodeIndex>> nodes_held(const Problem& problem, JobIndex j) {
  std::vector<NodeIndex> nodes;
  for (const Held& pod : problem.job(j).held) {
    if (!pod.stays()) continue;
    const auto node = problem.find_node(pod.node);
    if (!node) return std::nullopt;
    nodes.push_back(*node);
  }
  std::ranges::sort(nodes);
  return nodes;
}

}  // namespace rubato::sched
