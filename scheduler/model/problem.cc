#include "scheduler/model/problem.h"

#include "common/check.h"
#include "scheduler/model/queue_tree.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <set>

namespace rubato::sched {
namespace {

constexpr std::int64_t kUnknown = std::numeric_limits<std::int64_t>::max();

void mix_in(std::size_t& hash, std::size_t value) {
  hash ^= value + 0x9e3779b97f4a7c15U + (hash << 6U) + (hash >> 2U);
}

}  // namespace

bool is_kept_out(const Job& job) {
  return !job.refused.empty() || (!job.started && !job.not_admitted.empty()) ||
         job.gets_spare_only();
}

bool may_use(const Job& job, const Node& node) {
  if (!job.allow.empty() &&
      std::find(job.allow.begin(), job.allow.end(), node.gpu_type) == job.allow.end()) {
    return false;
  }
  if (job.needs_domain() && !node.domains.contains(job.topology->level)) return false;
  return !job.eligible || job.eligible->contains(node.id);
}

bool admits(const Job& job, const Node& node) {
  return node.schedulable && !job.avoid.contains(node.id) && may_use(job, node);
}

// More may be free, in a snapshot that was written by hand, than is said to be there.
Resources whole_of(const Node& node) {
  Resources all{.gpus = node.gpus_total, .cpu = kUnknown, .memory = kUnknown};
  all.others.fill(kUnknown);
  if (!node.total) return all;
  all.cpu = std::max(node.total->cpu, node.free.cpu);
  all.memory = std::max(node.total->memory, node.free.memory);
  return all;
}

void Capacity::add(DomainIndex domain, TypeIndex type, Gpus gpus) {
  const auto of = [&](std::vector<OfType>& types) -> Gpus& {
    auto at = std::ranges::lower_bound(types, type, {}, &OfType::type);
    if (at == types.end() || at->type != type) at = types.insert(at, {.type = type});
    return at->gpus;
  };
  Gpus& all = of(by_type_);
  all = is_confined_ ? std::max(all, of(by_domain_[domain]) += gpus) : all + gpus;
}

Gpus Capacity::in(DomainIndex domain, TypeIndex type) const {
  const auto of = [&](const std::vector<OfType>& types) {
    const auto at = std::ranges::find(types, type, &OfType::type);
    return at == types.end() ? 0 : at->gpus;
  };
  if (!is_confined_) return of(by_type_);
  const auto found = by_domain_.find(domain);
  return found == by_domain_.end() ? 0 : of(found->second);
}

bool Problem::Like::operator==(const Like& other) const {
  return job->per_pod == other.job->per_pod && job->mix == other.job->mix &&
         job->one_node == other.job->one_node && job->allow == other.job->allow &&
         job->avoid == other.job->avoid && job->eligible == other.job->eligible &&
         job->topology == other.job->topology;
}

std::size_t Problem::LikeHash::operator()(const Like& like) const {
  const std::hash<std::string> of_text;
  const Job& job = *like.job;
  std::size_t hash = static_cast<std::size_t>(job.per_pod.gpus);
  mix_in(hash, static_cast<std::size_t>(job.per_pod.cpu));
  mix_in(hash, static_cast<std::size_t>(job.per_pod.memory));
  for (const std::string& type : job.allow) mix_in(hash, of_text(type));
  for (const NodeId& node : job.avoid) mix_in(hash, of_text(node));
  if (job.eligible)
    for (const NodeId& node : *job.eligible) mix_in(hash, of_text(node));
  return hash;
}

Problem::Problem(const ClusterState& state)
    : state_(state), queue_of_job_(state.jobs.size()), group_of_job_(state.jobs.size()) {
  nodes_.reserve(state.nodes.size());
  for (const Node& node : state.nodes) nodes_.push_back(&node);
  const auto by_id = [](const Node* a, const Node* b) { return a->id < b->id; };
  if (!std::is_sorted(nodes_.begin(), nodes_.end(), by_id))
    std::sort(nodes_.begin(), nodes_.end(), by_id);
  name_types();
  find_held();
  find_hosts();
  name_domains();
  for (const auto& [name, queue] : state.queues)
    queue_numbers_.emplace(name, queues_.push_back(&queue));
  for (JobIndex j; j < end_of_jobs(); ++j) {
    const auto [at, is_new] = queue_numbers_.try_emplace(job(j).queue);
    if (is_new) at->second = queues_.push_back(nullptr);
    queue_of_job_[j] = at->second;
  }
  find_parents();
}

void Problem::find_parents() {
  parents_ = Table<QueueIndex, std::optional<QueueIndex>>(queues_.size());
  for (QueueIndex q; q < queues_.end_key(); ++q)
    if (const Queue* of = queues_[q]; of != nullptr && !of->parent.empty())
      if (why_no_parent(state_.queues, *of).empty()) parents_[q] = queue_named(of->parent);
  if (std::ranges::none_of(parents_, &std::optional<QueueIndex>::has_value)) return;
  for (auto& [name, quotas] : quotas_by_parts(state_.queues))
    raised_quotas_.emplace(queue_named(name), std::move(quotas));
}

QueueIndex Problem::home_of(QueueIndex queue) const {
  const bool is_of_one = queues_[queue] != nullptr && queues_[queue]->of_one_user;
  return is_of_one ? parents_[queue].value_or(queue) : queue;
}

const std::map<std::string, Quota>& Problem::quotas_of(QueueIndex queue) const {
  static const std::map<std::string, Quota> kNothing;
  if (queues_[queue] == nullptr) return kNothing;
  const auto raised = raised_quotas_.find(queue);
  return raised == raised_quotas_.end() ? queues_[queue]->quotas : raised->second;
}

void Problem::name_types() {
  std::set<std::string_view> names;
  std::string_view last;
  const auto add = [&](const std::string& name) {
    if (names.empty() || name != last) last = *names.insert(name).first;
  };
  for (const Node* node : nodes_) add(node->gpu_type);
  for (const Job& job : state_.jobs)
    for (const Held& held : job.held) add(held.gpu_type);
  for (const auto& [name, queue] : state_.queues)
    for (const auto& [type, gpus] : queue.held_by_leavers) names.insert(type);
  for (const std::string_view name : names) types_.push_back(std::string(name));
  type_of_node_.reserve(nodes_.size());
  for (const Node* node : nodes_) type_of_node_.push_back(type_named(node->gpu_type));
}

void Problem::find_held() {
  const Held* last = nullptr;
  for (const Job& job : state_.jobs) {
    first_held_.push_back(held_at_.size());
    for (const Held& held : job.held) {
      const bool is_same =
          last != nullptr && last->node == held.node && last->gpu_type == held.gpu_type;
      const HeldAt at =
          is_same ? held_at_.back() : HeldAt{type_named(held.gpu_type), find_node(held.node)};
      held_at_.push_back(at);
      last = &held;
    }
  }
}

void Problem::find_hosts() {
  std::unordered_map<std::string_view, std::vector<JobIndex>> guests;
  for (JobIndex j; j < end_of_jobs(); ++j)
    if (!job(j).guest_of.empty()) guests[job(j).guest_of].push_back(j);
  if (guests.empty()) return;
  for (JobIndex j; j < end_of_jobs(); ++j)
    if (const auto found = guests.find(job(j).id); found != guests.end())
      for (const JobIndex guest : found->second) hosts_.emplace(guest.value, j);
}

std::optional<JobIndex> Problem::host_of(JobIndex j) const {
  const auto found = hosts_.find(j.value);
  if (found == hosts_.end()) return std::nullopt;
  return found->second;
}

// Known by the way to it: its name and the domain of the level before.
void Problem::name_domains() {
  using Way = std::pair<std::optional<DomainIndex>, std::string_view>;
  for (const std::string& level : state_.levels) {
    Table<NodeIndex, std::optional<DomainIndex>> of_nodes(nodes_.size());
    std::map<Way, DomainIndex> known;
    for (NodeIndex n; n < end_of_nodes(); ++n) {
      const auto found = node(n).domains.find(level);
      if (found == node(n).domains.end()) continue;
      const auto wider = domains_.empty() ? std::nullopt : domains_.back()[n];
      const DomainIndex next{static_cast<std::uint32_t>(known.size())};
      of_nodes[n] = known.try_emplace({wider, found->second}, next).first->second;
    }
    domains_.push_back(std::move(of_nodes));
  }
}

std::size_t Problem::level_named(std::string_view name) const {
  const auto found = std::ranges::find(state_.levels, name);
  CHECK(found != state_.levels.end());
  return static_cast<std::size_t>(found - state_.levels.begin());
}

std::optional<DomainIndex> Problem::domain_of(std::size_t level, NodeIndex node) const {
  return domains_[level][node];
}

DomainIndex Problem::confines(const Job& job, NodeIndex node) const {
  if (job.one_node) return {node.value};
  if (!job.needs_domain()) return {};
  const DomainIndex none{std::numeric_limits<std::uint32_t>::max()};
  return domain_of(level_named(job.topology->level), node).value_or(none);
}

std::optional<NodeIndex> Problem::find_node(const NodeId& id) const {
  const auto at = std::lower_bound(nodes_.begin(), nodes_.end(), id,
                                   [](const Node* node, const NodeId& x) { return node->id < x; });
  if (at == nodes_.end() || (*at)->id != id) return std::nullopt;
  return NodeIndex{static_cast<std::uint32_t>(at - nodes_.begin())};
}

std::optional<TypeIndex> Problem::find_type(std::string_view name) const {
  const auto at = std::lower_bound(types_.begin(), types_.end(), name);
  if (at == types_.end() || *at != name) return std::nullopt;
  return TypeIndex{static_cast<std::uint32_t>(at - types_.begin())};
}

const Problem::Overload* Problem::held_back(JobIndex j) const {
  const auto found = held_back_.find(j);
  return found == held_back_.end() ? nullptr : &found->second;
}

bool Problem::is_kept_out(JobIndex j) const {
  return sched::is_kept_out(job(j)) || held_back(j) != nullptr || beyond_guarantees_.contains(j);
}

bool Problem::takes_part(JobIndex j) const {
  return !is_kept_out(j) && (job(j).started || queue(queue_of(j)) != nullptr);
}

std::optional<TypeIndex> Problem::type_held(JobIndex j) const {
  const std::vector<Held>& held = job(j).held;
  const auto pod = std::ranges::find_if(held, &Held::stays);
  if (pod == held.end()) return std::nullopt;
  return held_at(j)[static_cast<std::size_t>(pod - held.begin())].type;
}

TypeIndex Problem::type_named(std::string_view name) const {
  const auto type = find_type(name);
  CHECK(type.has_value());
  return *type;
}

GroupIndex Problem::group_of(JobIndex j) const {
  std::optional<GroupIndex>& known = group_of_job_[j];
  if (!known) {
    const auto [at, is_new] = group_numbers_.try_emplace(Like{&job(j)});
    if (is_new) at->second = groups_.push_back(make_group(job(j)));
    known = at->second;
  }
  return *known;
}

JobGroup Problem::make_group(const Job& job) const {
  JobGroup group{{}, {}, Capacity(job), Capacity(job)};
  Capacity by_gpus(job);
  for (NodeIndex n; n < end_of_nodes(); ++n) {
    const Node& node = this->node(n);
    if (!may_use(job, node)) continue;
    const DomainIndex domain = confines(job, n);
    const Gpus whole = whole_of(node).copies_of(job.per_pod) * job.per_pod.gpus;
    // A cordoned or silent node may come back.
    group.capacity.add(domain, type_of(n), whole);
    by_gpus.add(domain, type_of(n), node.gpus_total / job.per_pod.gpus * job.per_pod.gpus);
    if (!admits(job, node)) continue;
    group.capacity_now.add(domain, type_of(n), whole);
    group.admitted.push_back(n);
  }
  group.most_gpus = by_gpus.most();
  for (const auto& [type, gpus] : group.capacity.by_type())
    if (gpus > 0) group.types.push_back(type);
  return group;
}

}  // namespace rubato::sched
