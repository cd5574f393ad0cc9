#include "scheduler/placement/place.h"

#include "common/check.h"

#include <algorithm>
#include <tuple>

namespace rubato::sched {

FreeNodes::FreeNodes(const Problem& problem) {
  free_.reserve(problem.state().nodes.size());
  for (NodeIndex n; n < problem.end_of_nodes(); ++n) free_.push_back(problem.node(n).free);
}

void FreeNodes::take(NodeIndex node, const Resources& what) {
  log_.push_back({node, free_[node]});
  ++version_;
  free_[node] -= what;
  CHECK_GE(free_[node].gpus, 0);
}

void FreeNodes::give_back(NodeIndex node, const Resources& what) {
  log_.push_back({node, free_[node]});
  ++version_;
  free_[node] += what;
}

void FreeNodes::undo_to(std::size_t mark) {
  if (log_.size() == mark) return;
  while (log_.size() > mark) {
    free_[log_.back().node] = log_.back().before;
    log_.pop_back();
  }
  ++version_;
}

Placer::Placer(const Problem& problem, FreeNodes& free, const QuotaBook& quota)
    : problem_(problem),
      free_(free),
      quota_(quota),
      is_used_(problem.state().nodes.size()),
      left_(problem.count_types()) {}

Bound Placer::bound_of(JobIndex j) const {
  const Job& job = problem_.job(j);
  Bound bound;
  bool is_first = true;
  for (const Held& held : job.held) {
    if (held.lost) continue;
    const auto node = problem_.find_node(held.node);
    if (is_first && !job.mix) bound.type = problem_.type_named(held.gpu_type);
    if (is_first && job.one_node) {
      bound.node = node;
      bound.is_nowhere = !node;
    }
    if (node && (bound.used.empty() || bound.used.back() != *node)) bound.used.push_back(*node);
    is_first = false;
  }
  return bound;
}

void Placer::find_candidates(JobIndex j, const Bound& bound, std::optional<TypeIndex> type) {
  const Job& job = problem_.job(j);
  found_.clear();
  if (bound.is_nowhere) return;
  for (const NodeIndex n : bound.used) is_used_[n] = 1;
  for (const NodeIndex n : problem_.group(j).admitted) {
    if (free_[n].gpus < job.per_pod.gpus) continue;
    if (type && problem_.type_of(n) != *type) continue;
    if (bound.node && n != *bound.node) continue;
    const std::int64_t fits = free_[n].copies_of(job.per_pod);
    if (fits > 0) found_.push_back({n, fits, is_used_[n] != 0});
  }
  for (const NodeIndex n : bound.used) is_used_[n] = 0;
  std::sort(found_.begin(), found_.end(), [](const Candidate& a, const Candidate& b) {
    if (a.used != b.used) return a.used;
    if (a.fits != b.fits) return a.fits < b.fits;
    return a.node < b.node;
  });
}

// The types to try, the preferred one first, then the one with most room; one null entry stands for
// "any".
std::vector<std::optional<TypeIndex>> Placer::types_to_try(JobIndex j, const Bound& bound) {
  if (problem_.job(j).mix) return {std::nullopt};
  if (bound.type) return {bound.type};
  const std::vector<TypeIndex>& types = problem_.group(j).types;
  if (types.size() == 1) return {types.front()};
  Bound anywhere;
  anywhere.used = bound.used;
  find_candidates(j, anywhere, std::nullopt);
  for (const Candidate& c : found_) left_[problem_.type_of(c.node)] += c.fits;
  std::vector<std::tuple<bool, std::int64_t, TypeIndex>> order;
  for (const TypeIndex type : types) {
    if (left_[type] > 0) order.emplace_back(type != bound.preferred, -left_[type], type);
    left_[type] = 0;
  }
  std::sort(order.begin(), order.end());
  std::vector<std::optional<TypeIndex>> tried;
  tried.reserve(order.size());
  for (const auto& [is_other, fits, type] : order) tried.emplace_back(type);
  return tried;
}

// Takes from the last what the queue may not have of a type.
void Placer::keep_within_quota(JobIndex j) {
  const Gpus per_pod = problem_.job(j).per_pod.gpus;
  const QueueIndex queue = problem_.queue_of(j);
  for (const TypeIndex type : problem_.group(j).types)
    left_[type] = quota_.room(queue, type) / per_pod;
  for (Candidate& c : found_) {
    std::int64_t& left = left_[problem_.type_of(c.node)];
    c.fits = std::min(c.fits, left);
    left -= c.fits;
  }
  for (const TypeIndex type : problem_.group(j).types) left_[type] = 0;
}

std::optional<std::vector<NodeIndex>> Placer::place(JobIndex j, std::int64_t pods,
                                                    const Bound& bound) {
  const Job& job = problem_.job(j);
  const QueueIndex queue = problem_.queue_of(j);
  const Gpus per_pod = job.per_pod.gpus;
  if (quota_.room(queue) / per_pod < pods) return std::nullopt;
  for (const auto& type : types_to_try(j, bound)) {
    find_candidates(j, bound, type);
    if (job.one_node)  // each has the whole of what the queue allows
      std::erase_if(found_, [&](const Candidate& c) {
        return c.fits < pods || quota_.room(queue, problem_.type_of(c.node)) / per_pod < pods;
      });
    keep_within_quota(j);
    std::int64_t fits = 0;
    for (const Candidate& c : found_) fits += c.fits;
    if (fits < pods) continue;
    // A node that holds the whole gang beats two that share it.
    const auto whole = std::find_if(found_.begin(), found_.end(),
                                    [&](const Candidate& c) { return c.fits >= pods; });
    if (whole != found_.end()) std::rotate(found_.begin(), whole, whole + 1);
    std::vector<NodeIndex> placed;
    placed.reserve(static_cast<std::size_t>(pods));
    for (const Candidate& c : found_) {
      for (std::int64_t i = 0; i < c.fits && std::ssize(placed) < pods; ++i) {
        free_.take(c.node, job.per_pod);
        placed.push_back(c.node);
      }
    }
    return placed;
  }
  return std::nullopt;
}

std::int64_t Placer::pods_that_fit(JobIndex j, const Bound& bound) {
  std::int64_t best = 0;
  for (const auto& type : types_to_try(j, bound)) {
    find_candidates(j, bound, type);
    std::int64_t room = 0;
    for (const Candidate& c : found_)
      room = problem_.job(j).one_node ? std::max(room, c.fits) : room + c.fits;
    best = std::max(best, room);
  }
  return best;
}

}  // namespace rubato::sched
