#include "scheduler/placement/place.h"

#include "common/check.h"

#include <algorithm>
#include <set>

namespace rubato::sched {

FreeMap::FreeMap(const ClusterState& state) {
  for (const Node& node : state.nodes) {
    free_[node.id] = node.free;
    nodes_[node.id] = &node;
  }
}

void FreeMap::take(const NodeId& node, const Resources& what) {
  Resources& left = free_.at(node);
  left -= what;
  CHECK_GE(left.gpus, 0);
}

void FreeMap::give_back(const NodeId& node, const Resources& what) { free_.at(node) += what; }

bool may_use(const Job& job, const Node& node) {
  if (!job.allow.empty() &&
      std::find(job.allow.begin(), job.allow.end(), node.gpu_type) == job.allow.end()) {
    return false;
  }
  return !job.eligible || job.eligible->contains(node.id);
}

bool admits(const Job& job, const Node& node) {
  return node.schedulable && !job.avoid.contains(node.id) && may_use(job, node);
}

namespace {

// The type that the job is bound to, if it already holds GPUs and may not mix.
std::optional<std::string> bound_type(const Job& job) {
  if (job.mix) return std::nullopt;
  for (const Held& held : job.held) {
    if (!held.lost) return held.gpu_type;
  }
  return std::nullopt;
}

struct Candidate {
  const Node* node;
  std::int64_t fits;
  bool used;  // the job already has a pod here
};

// Where the rest of a job must go that has its pods on one node; "": anywhere yet.
NodeId bound_node(const Job& job, const NodeId& so_far) {
  if (!job.one_node) return "";
  for (const Held& held : job.held)
    if (!held.lost) return held.node;
  return so_far;
}

std::vector<Candidate> candidates(const Job& job, const FreeMap& free, const std::string* type) {
  std::set<NodeId> used;
  for (const Held& held : job.held) {
    if (!held.lost) used.insert(held.node);
  }
  std::vector<Candidate> found;
  for (const auto& [id, node] : free.nodes()) {
    if (!admits(job, *node) || (type && node->gpu_type != *type)) continue;
    const std::int64_t fits = free.free().at(id).copies_of(job.per_pod);
    if (fits > 0) found.push_back({node, fits, used.contains(id)});
  }
  std::sort(found.begin(), found.end(), [](const Candidate& a, const Candidate& b) {
    if (a.used != b.used) return a.used;
    if (a.fits != b.fits) return a.fits < b.fits;
    return a.node->id < b.node->id;
  });
  return found;
}

// The types to try, the one with most room first; one null entry stands for "any".
std::vector<std::optional<std::string>> types_to_try(const Job& job, const FreeMap& free,
                                                     const std::string& bound_to) {
  if (job.mix) return {std::nullopt};
  if (!bound_to.empty()) return {bound_to};
  if (const auto type = bound_type(job)) return {type};
  std::map<std::string, std::int64_t> room;
  for (const Candidate& c : candidates(job, free, nullptr)) room[c.node->gpu_type] += c.fits;
  std::vector<std::pair<std::int64_t, std::string>> order;
  order.reserve(room.size());
  for (const auto& [type, fits] : room) order.emplace_back(-fits, type);
  std::sort(order.begin(), order.end());
  std::vector<std::optional<std::string>> types;
  types.reserve(order.size());
  for (const auto& [fits, type] : order) types.emplace_back(type);
  return types;
}

// Takes from the last what the queue may not have of a type.
void keep_within(std::vector<Candidate>& nodes, const Job& job, const TypeRoom& room) {
  std::map<std::string, std::int64_t> left;
  for (Candidate& c : nodes) {
    const auto [of_type, is_new] = left.try_emplace(c.node->gpu_type, 0);
    if (is_new) of_type->second = room(c.node->gpu_type) / job.per_pod.gpus;
    c.fits = std::min(c.fits, of_type->second);
    of_type->second -= c.fits;
  }
}

}  // namespace

std::optional<std::vector<Placement>> place(const Job& job, std::int64_t pods, FreeMap& free,
                                            const TypeRoom& room, const PlacedSoFar& so_far) {
  if (room("*") / job.per_pod.gpus < pods) return std::nullopt;
  for (const auto& type : types_to_try(job, free, so_far.gpu_type)) {
    std::vector<Candidate> nodes = candidates(job, free, type ? &*type : nullptr);
    if (const NodeId only = bound_node(job, so_far.node); !only.empty())
      std::erase_if(nodes, [&](const Candidate& c) { return c.node->id != only; });
    if (job.one_node)  // each has the whole of what the queue allows
      std::erase_if(nodes, [&](const Candidate& c) {
        return c.fits < pods || room(c.node->gpu_type) / job.per_pod.gpus < pods;
      });
    keep_within(nodes, job, room);
    std::int64_t fits = 0;
    for (const Candidate& c : nodes) fits += c.fits;
    if (fits < pods) continue;
    // A node that holds the whole gang beats two that share it.
    const auto whole = std::find_if(nodes.begin(), nodes.end(),
                                    [&](const Candidate& c) { return c.fits >= pods; });
    if (whole != nodes.end()) std::rotate(nodes.begin(), whole, whole + 1);
    std::vector<Placement> placed;
    for (const Candidate& c : nodes) {
      for (std::int64_t i = 0; i < c.fits && std::ssize(placed) < pods; ++i) {
        free.take(c.node->id, job.per_pod);
        placed.push_back({c.node->id, c.node->gpu_type, job.per_pod.gpus});
      }
    }
    return placed;
  }
  return std::nullopt;
}

std::int64_t pods_that_fit(const Job& job, const FreeMap& free) {
  std::int64_t best = 0;
  for (const auto& type : types_to_try(job, free, "")) {
    std::int64_t room = 0;
    const NodeId only = bound_node(job, "");
    for (const Candidate& c : candidates(job, free, type ? &*type : nullptr)) {
      if (!only.empty() && c.node->id != only) continue;
      room = job.one_node ? std::max(room, c.fits) : room + c.fits;
    }
    best = std::max(best, room);
  }
  return best;
}

}  // namespace rubato::sched
