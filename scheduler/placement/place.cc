#include "scheduler/placement/place.h"

#include "common/check.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace rubato::sched {
namespace {

constexpr std::size_t kChangesKept = std::size_t{1} << 18U;
constexpr std::size_t kGroupsRanked = 64;  // at a time; each takes some 32 bytes a node

}  // namespace

FreeNodes::FreeNodes(const Problem& problem) : problem_(problem), gpus_(problem.count_types(), 0) {
  free_.reserve(problem.state().nodes.size());
  for (NodeIndex n; n < problem.end_of_nodes(); ++n) {
    free_.push_back(problem.node(n).free);
    gpus_[problem.type_of(n)] += std::max<Gpus>(free_[n].gpus, 0);
  }
}

// After the node has changed.
void FreeNodes::note(NodeIndex node, Gpus before) {
  gpus_[problem_.type_of(node)] += std::max<Gpus>(free_[node].gpus, 0) - std::max<Gpus>(before, 0);
  if (changes_.size() == kChangesKept) {
    changes_.clear();
    ++forgotten_;
  }
  changes_.push_back(node);
}

void FreeNodes::take(NodeIndex node, const Resources& what, std::int64_t times) {
  log_.push_back({node, free_[node]});
  for (std::int64_t i = 0; i < times; ++i) free_[node] -= what;
  note(node, log_.back().before.gpus);
  CHECK_GE(free_[node].gpus, 0);
}

void FreeNodes::give_back(NodeIndex node, const Resources& what) {
  log_.push_back({node, free_[node]});
  free_[node] += what;
  note(node, log_.back().before.gpus);
}

void FreeNodes::undo_to(std::size_t mark) {
  while (log_.size() > mark) {
    const auto [node, before] = log_.back();
    log_.pop_back();
    const Gpus gpus = std::exchange(free_[node], before).gpus;
    note(node, gpus);
  }
}

Placer::Placer(const Problem& problem, FreeNodes& free, const QuotaBook& quota)
    : problem_(problem), free_(free), quota_(quota) {}

Bound Placer::bound_of(JobIndex j) const {
  const Job& job = problem_.job(j);
  Bound bound;
  bool is_first = true;
  for (std::size_t i = 0; i < job.held.size(); ++i) {
    if (job.held[i].lost) continue;
    const auto& [type, node] = problem_.held_at(j)[i];
    if (is_first && !job.mix) bound.type = type;
    if (is_first && is_confined(job)) bind(bound, job, node);
    if (node && (bound.used.empty() || bound.used.back() != *node)) bound.used.push_back(*node);
    is_first = false;
  }
  return bound;
}

// All of it where that pod is.
void Placer::bind(Bound& bound, const Job& job, std::optional<NodeIndex> to) const {
  if (job.one_node) bound.node = to;
  if (job.needs_domain() && to)
    bound.domain = problem_.domain_of(problem_.level_named(job.topology->level), *to);
  bound.is_nowhere = !(job.one_node ? bound.node.has_value() : bound.domain.has_value());
}

const RankedNodes& Placer::nodes_of(JobIndex j) {
  const GroupIndex group = problem_.group_of(j);
  auto found = ranked_.find(group.value);
  if (found == ranked_.end()) {
    if (ranked_.size() == kGroupsRanked) ranked_.clear();
    found = ranked_.try_emplace(group.value, problem_, free_, group, problem_.job(j)).first;
  }
  found->second.update();
  return found->second;
}

// The preferred one first, then the one with most room.
std::vector<TypeIndex> Placer::types_to_try(JobIndex j, const Bound& bound,
                                            const RankedNodes& nodes) {
  if (bound.type) return {*bound.type};
  const std::vector<TypeIndex>& all = problem_.group(j).types;
  if (all.size() == 1) return all;
  std::vector<std::tuple<bool, std::int64_t, TypeIndex>> order;
  for (const TypeIndex type : all)
    if (nodes.total(type) > 0)
      order.emplace_back(type != bound.preferred, -nodes.total(type), type);
  std::ranges::sort(order);
  std::vector<TypeIndex> types;
  types.reserve(order.size());
  for (const auto& [is_other, fits, type] : order) types.push_back(type);
  return types;
}

// Nodes that the job already has pods on, and room.
std::vector<Placer::Ranked> Placer::used_of(const Gang& gang, std::optional<TypeIndex> type) const {
  std::vector<Ranked> used;
  for (const NodeIndex n : gang.bound.used)
    if (gang.nodes.fits(n) > 0 && (!type || problem_.type_of(n) == *type))
      used.push_back({gang.nodes.fits(n), n});
  std::ranges::sort(used);
  const auto [first, last] = std::ranges::unique(used);
  used.erase(first, last);
  return used;
}

// As many as fit there, of those that are still to be placed.
void Placer::put(Gang& gang, const Ranked& on) {
  const std::int64_t pods = std::min(on.fits, gang.pods - std::ssize(gang.placed));
  if (pods == 0) return;
  free_.take(on.node, gang.job.per_pod, pods);
  gang.placed.insert(gang.placed.end(), static_cast<std::size_t>(pods), on.node);
}

bool Placer::place_on(TypeIndex type, Gang& gang) {
  const QueueIndex queue = problem_.queue_of(gang.index);
  if (gang.nodes.total(type) < gang.pods) return false;
  const std::int64_t most = quota_.room(queue, type) / gang.job.per_pod.gpus;
  if (most < gang.pods) return false;
  if (most < gang.nodes.total(type)) return place_within_quota({type}, gang);
  const auto place_whole = [&](const Ranked& node) {
    if (node.fits < gang.pods) return false;
    put(gang, node);
    return true;
  };
  if (const auto node = gang.bound.node)
    return problem_.type_of(*node) == type && place_whole({gang.nodes.fits(*node), *node});
  const std::vector<Ranked> used = used_of(gang, type);
  if (std::ranges::any_of(used, place_whole)) return true;
  const std::vector<Ranked>& all = gang.nodes.of(type);
  const auto whole = std::ranges::lower_bound(all, gang.pods, {}, &Ranked::fits);
  if (whole != all.end()) return place_whole(*whole);
  if (gang.job.one_node) return false;
  for (const Ranked& node : used) put(gang, node);
  for (auto node = all.begin(); std::ssize(gang.placed) < gang.pods; ++node)
    if (!std::ranges::binary_search(used, *node)) put(gang, *node);
  return true;
}

// Those it already uses first.
std::vector<Placer::Ranked> Placer::fitting_of(const std::vector<TypeIndex>& types,
                                               const Gang& gang) const {
  std::vector<Ranked> all =
      used_of(gang, types.size() == 1 ? std::optional(types.front()) : std::nullopt);
  const std::ptrdiff_t used = std::ssize(all);
  for (const TypeIndex type : types)
    for (const Ranked& node : gang.nodes.of(type))
      if (!std::binary_search(all.begin(), all.begin() + used, node)) all.push_back(node);
  std::sort(all.begin() + used, all.end());
  return all;
}

// Of each type no more than its queue may have.
void Placer::cap_by_quota(std::vector<Ranked>& nodes, const Gang& gang) const {
  Table<TypeIndex, std::optional<std::int64_t>> left(problem_.count_types());
  for (Ranked& node : nodes) {
    const TypeIndex type = problem_.type_of(node.node);
    std::optional<std::int64_t>& own = left[type];
    if (!own) own = quota_.room(problem_.queue_of(gang.index), type) / gang.job.per_pod.gpus;
    node.fits = std::min(node.fits, *own);
    if (!gang.job.one_node) *own -= node.fits;
  }
}

bool Placer::place_within_quota(const std::vector<TypeIndex>& types, Gang& gang) {
  std::int64_t fits = 0;
  for (const TypeIndex type : types) fits += gang.nodes.total(type);
  if (fits < gang.pods) return false;
  return put_all(gang, fitting_of(types, gang));
}

// On one of the nodes, if one holds them all; else on the first of them. False: it does not fit.
bool Placer::put_all(Gang& gang, std::vector<Ranked> nodes) {
  if (const auto node = gang.bound.node)
    std::erase_if(nodes, [&](const Ranked& one) { return one.node != *node; });
  cap_by_quota(nodes, gang);
  const auto whole =
      std::ranges::find_if(nodes, [&](const Ranked& n) { return n.fits >= gang.pods; });
  if (whole != nodes.end()) {
    put(gang, *whole);
    return true;
  }
  std::int64_t fits = 0;
  for (const Ranked& node : nodes) fits += node.fits;
  if (gang.job.one_node || fits < gang.pods) return false;
  for (const Ranked& node : nodes) put(gang, node);
  return true;
}

std::optional<std::vector<NodeIndex>> Placer::place(JobIndex j, std::int64_t pods,
                                                    const Bound& bound) {
  const Job& job = problem_.job(j);
  if (bound.is_nowhere) return std::nullopt;
  if (quota_.room(problem_.queue_of(j)) / job.per_pod.gpus < pods) return std::nullopt;
  Gang gang{.index = j, .job = job, .bound = bound, .nodes = nodes_of(j), .pods = pods};
  gang.placed.reserve(static_cast<std::size_t>(pods));
  const auto place_on_one = [&](TypeIndex type) {
    return job.topology ? place_near({type}, gang) : place_on(type, gang);
  };
  const auto place_on_all = [&](const std::vector<TypeIndex>& types) {
    return job.topology ? place_near(types, gang) : place_within_quota(types, gang);
  };
  const bool is_placed =
      job.mix ? place_on_all(problem_.group(j).types)
              : std::ranges::any_of(types_to_try(j, bound, gang.nodes), place_on_one);
  if (!is_placed) return std::nullopt;
  return std::move(gang.placed);
}

std::int64_t Placer::pods_that_fit(JobIndex j, const Bound& bound) {
  if (bound.is_nowhere) return 0;
  const Job& job = problem_.job(j);
  const RankedNodes& nodes = nodes_of(j);
  const Gang gang{.index = j, .job = job, .bound = bound, .nodes = nodes};
  const bool in_domain = job.needs_domain();
  if (in_domain && job.mix) return fit_in_one_domain(problem_.group(j).types, gang);
  const auto of_type = [&](TypeIndex type) -> std::int64_t {
    if (in_domain) return fit_in_one_domain({type}, gang);
    if (!job.one_node) return nodes.total(type);
    if (bound.node) return problem_.type_of(*bound.node) == type ? nodes.fits(*bound.node) : 0;
    return nodes.of(type).empty() ? 0 : nodes.of(type).back().fits;
  };
  std::int64_t best = 0;
  std::int64_t all = 0;
  for (const TypeIndex type : job.mix ? problem_.group(j).types : types_to_try(j, bound, nodes)) {
    best = std::max(best, of_type(type));
    all += of_type(type);
  }
  return job.mix && !job.one_node ? all : best;
}

}  // namespace rubato::sched
