// Each GPU type that the job could use (or all together, if it mixes them) with each size that it
// could have: what would have to change for that; the least of these.
#include "scheduler/fix.h"

#include "common/words.h"
#include "scheduler/model/confinement.h"
#include "scheduler/model/queue_tree.h"
#include "scheduler/model/quota.h"
#include "scheduler/model/sizes.h"
#include "scheduler/node_counts.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include <fmt/format.h>

namespace rubato::sched {
namespace {

constexpr Gpus kAnySize = Gpus{1} << 40;  // above every size

enum Hardness { kWords, kSelectors, kNodes };

// Changes in the making.
struct Draft {
  Hardness hardness = kWords;
  Gpus amount = 0;
  Fix changes;

  void add(Change change, Gpus by) {
    if (std::holds_alternative<UseMoreNodes>(change)) hardness = std::max(hardness, kSelectors);
    if (std::holds_alternative<AddGpus>(change)) hardness = kNodes;
    amount += by;
    changes.push_back(std::move(change));
  }
  bool operator<(const Draft& other) const {
    const auto kinds = [](const Fix& fix) {
      std::vector<std::size_t> all;
      for (const Change& change : fix) all.push_back(change.index());
      return all;
    };
    return std::tuple(hardness, changes.size(), amount, kinds(changes)) <
           std::tuple(other.hardness, other.changes.size(), other.amount, kinds(other.changes));
  }
};

// A queue, or one that it is a part of.
struct Level {
  std::string name;
  const Queue* queue;
  std::map<std::string, Gpus> of_parts;  // what its parts are guaranteed together

  Gpus parts(const std::string& type) const {
    const auto found = of_parts.find(type);
    return found == of_parts.end() ? 0 : found->second;
  }
  Gpus own(const std::string& type) const {
    const auto found = queue->quotas.find(type);
    return found == queue->quotas.end() ? 0 : found->second.guaranteed;
  }
  // As QuotaBook counts it. `more`, `more_of_all`: that its parts were guaranteed.
  Allowance allowance(const std::string& type, Gpus more = 0, Gpus more_of_all = 0) const {
    const auto found = queue->quotas.find(type);
    const Gpus of_its_parts = parts(type) + more;
    Quota quota;
    if (found != queue->quotas.end()) quota = found->second;
    quota.guaranteed = std::max(quota.guaranteed, of_its_parts);
    const bool is_said = found != queue->quotas.end() || of_its_parts > 0;
    const std::string all = QuotaBook::kAllTypes;
    const bool is_of_all =
        type == all || queue->quotas.contains(all) || parts(all) + more_of_all > 0;
    const bool borrows = queue->borrowing || !queue->cells.empty();
    return allowance_of(is_said ? &quota : nullptr, borrows, is_of_all ? kNoLimit : 0);
  }
};

// None: there is no such queue, and it says nothing.
std::vector<Level> levels_of(const Queues& queues, const std::string& name) {
  std::vector<Level> levels;
  auto to_parts = guaranteed_to_parts(queues);
  for (const std::string& one : with_parents(queues, name))
    levels.push_back({one, &queues.at(one), std::move(to_parts[one])});
  return levels;
}

Gpus most_in(const std::vector<Level>& levels, const std::string& type) {
  Gpus most = kNoLimit;
  for (const Level& level : levels) most = std::min(most, level.allowance(type).most());
  return most;
}

class FixSearch {
 public:
  FixSearch(const ClusterState& state, const Job& job, NodeCounts& nodes)
      : job_(job),
        sizes_(sizes_of(job)),
        levels_(levels_of(state.queues, job.queue)),
        alone_(alone_in_cells(state, job)),
        nodes_(nodes.all(job)),
        eligible_(nodes.eligible(job)) {
    for (const auto& [type, of_type] : nodes_.all) types_.insert(type);
    types_.insert(job.allow.begin(), job.allow.end());
    if (types_.empty()) types_.insert("");
  }

  Fix best() {
    if (job_.needs_domain()) look_at_pools(true);
    look_at_pools(false);
    return best_ ? std::move(best_->changes) : Fix{};
  }

 private:
  using Pool = std::vector<std::string>;  // types whose GPUs the job has together
  // How a pool could be used.
  struct Use {
    const Pool& pool;
    bool in_domain = false;  // all pods in one
    bool all_nodes = false;
    Job sizes;                     // what of the job says which sizes it may have
    std::vector<Gpus> capacities;  // of each type, in whole pods
  };

  static Job sizes_of(const Job& job) {
    Job sizes;
    sizes.min = job.min;
    sizes.max = job.max;
    sizes.shape = job.shape;
    sizes.per_pod.gpus = job.per_pod.gpus;
    return sizes;
  }

  bool is_allowed(const std::string& type) const {
    return job_.allow.empty() || std::ranges::find(job_.allow, type) != job_.allow.end();
  }

  void look_at_pools(bool in_domain) {
    for (const Pool& pool : pools(in_domain)) {
      look_at(pool, in_domain, false);
      if (job_.eligible) look_at(pool, in_domain, true);
    }
  }

  std::vector<Pool> pools(bool in_domain) const {
    std::vector<Pool> pools;
    Pool allowed;
    for (const std::string& type : types_)
      if (is_allowed(type)) allowed.push_back(type);
    const bool spans_types = job_.mix && !job_.one_node && !in_domain && !alone_;
    if (spans_types) pools.push_back(allowed);
    for (const std::string& type : types_) {
      if (spans_types && is_allowed(type)) continue;
      pools.push_back(spans_types ? allowed : Pool{});
      pools.back().push_back(type);
    }
    return pools;
  }

  void look_at(const Pool& pool, bool in_domain, bool all_nodes) {
    Use use{pool, in_domain, all_nodes, sizes_, {}};
    look_at_shapes(use);
    for (const Gpus per_pod : smaller_pods(all_nodes)) {
      use.sizes.per_pod.gpus = per_pod;
      look_at_shapes(use);
    }
  }

  // As large as a node, or as what the queue lets it have, and as powers of two.
  std::set<Gpus> smaller_pods(bool all_nodes) const {
    std::set<Gpus> all;
    const Gpus most = most_in(levels_, QuotaBook::kAllTypes);
    for (const auto& [type, of_type] : of(all_nodes).all) {
      const Gpus largest = of_type.rbegin()->first.gpus;
      for (const Gpus gpus : {largest, std::min({largest, most, most_in(levels_, type)})}) {
        if (gpus <= 0 || gpus >= job_.per_pod.gpus) continue;
        all.insert(gpus);
        all.insert(static_cast<Gpus>(std::bit_floor(static_cast<std::uint64_t>(gpus))));
      }
    }
    return all;
  }

  void look_at_shapes(Use use) {
    use.capacities.clear();
    for (const std::string& type : use.pool) use.capacities.push_back(capacity_of(type, use));
    look_at_sizes(use);
    if (job_.shape != Shape::kPowersOfTwo) return;
    use.sizes.shape = Shape::kAny;
    look_at_sizes(use);
  }

  void look_at_sizes(const Use& use) {
    const auto offer = [&](std::optional<Gpus> size) {
      if (!size) return;
      for (std::size_t grown = 0; grown < use.pool.size(); ++grown) look_at(use, *size, grown);
    };
    Job smaller = use.sizes;
    smaller.min = 1;
    offer(size_at_most(smaller, most_of(use)));
    const auto smallest = size_at_least(use.sizes, 0);
    if (smallest) return offer(smallest);
    offer(size_at_most(smaller, smaller.max));
    Job larger = use.sizes;
    larger.max = kAnySize;
    offer(size_at_least(larger, 0));
  }

  const CountedNodes& of(bool all_nodes) const { return all_nodes ? nodes_ : eligible_; }
  Gpus capacity_of(const std::string& type, const Use& use) const {
    const Gpus of_nodes = capacity_of_nodes(type, use);
    return alone_ ? capacity_in_cells(type, use, of_nodes) : of_nodes;
  }
  Gpus capacity_of_nodes(const std::string& type, const Use& use) const {
    const CountedNodes& counted = of(use.all_nodes);
    if (!use.in_domain) return capacity_of(counted.all, type, use);
    Gpus most = 0;
    for (const NodesByType& domain : counted.domains)
      most = std::max(most, capacity_of(domain, type, use));
    return most;
  }
  Gpus capacity_of(const NodesByType& nodes, const std::string& type, const Use& use) const {
    const auto found = nodes.find(type);
    if (found == nodes.end()) return 0;
    Gpus sum = 0;
    for (const auto& [whole, count] : found->second) {
      const Gpus of_one = pods_on(whole, use) * use.sizes.per_pod.gpus;
      sum = job_.one_node ? std::max(sum, of_one) : sum + of_one * count;
    }
    return sum;
  }
  std::int64_t pods_on(const WholeNode& whole, const Use& use) const {
    Resources pod{.gpus = use.sizes.per_pod.gpus};
    pod.cpu = job_.per_pod.cpu;
    pod.memory = job_.per_pod.memory;
    return Resources{whole.gpus, whole.cpu, whole.memory}.copies_of(pod);
  }
  // The state with nothing in it but the queue's cells, and with room for one job: none, where the
  // queue is not bound to them.
  static std::optional<ClusterState> alone_in_cells(const ClusterState& state, const Job& job) {
    const auto own = state.queues.find(job.queue);
    if (own == state.queues.end() || !is_confined_to_cells(own->second)) return std::nullopt;
    ClusterState alone{.levels = state.levels, .nodes = state.nodes, .queues = state.queues};
    for (auto& [name, queue] : alone.queues) {
      queue.quotas.clear();
      queue.held_by_leavers.clear();
      queue.closed = false;
    }
    for (Node& node : alone.nodes) {
      node.free = whole_of(node);
      node.schedulable = true;
      node.leaving = false;
    }
    return alone;
  }
  // Found by trying: where more fit, fewer do.
  Gpus capacity_in_cells(const std::string& type, const Use& use, Gpus of_nodes) const {
    const Gpus per_pod = use.sizes.per_pod.gpus;
    std::int64_t fit = 0;
    for (std::int64_t most = of_nodes / per_pod; fit < most;) {
      const std::int64_t middle = fit + (most - fit + 1) / 2;
      if (fits_in_cells(type, use, middle * per_pod))
        fit = middle;
      else
        most = middle - 1;
    }
    return fit * per_pod;
  }
  bool fits_in_cells(const std::string& type, const Use& use, Gpus size) const {
    alone_->jobs.clear();
    Job& job = alone_->jobs.emplace_back();
    job.id = job_.id;
    job.queue = job_.queue;
    job.min = job.max = size;
    job.per_pod = job_.per_pod;
    job.per_pod.gpus = use.sizes.per_pod.gpus;
    job.allow = {type};
    job.one_node = job_.one_node;
    if (use.in_domain) job.topology = job_.topology;
    if (!use.all_nodes) job.eligible = job_.eligible;
    return make_plan(*alone_, {}).verdicts.front().outcome == Outcome::kPlaced;
  }
  static Gpus in_pods(Gpus gpus, const Use& use) {
    return gpus / use.sizes.per_pod.gpus * use.sizes.per_pod.gpus;
  }
  // That it could have now of a type.
  Gpus most_of(std::size_t type, const Use& use) const {
    return std::min(use.capacities[type], in_pods(most_in(levels_, use.pool[type]), use));
  }
  Gpus most_of(const Use& use) const {
    Gpus sum = 0;
    for (std::size_t type = 0; type < use.pool.size(); ++type) sum += most_of(type, use);
    return std::min(sum, in_pods(most_in(levels_, QuotaBook::kAllTypes), use));
  }

  // Its having this size; GPUs that lack are added to the type `grown`.
  void look_at(const Use& use, Gpus size, std::size_t grown) {
    Draft draft;
    if (size < job_.min) draft.add(LowerMin{size}, job_.min - size);
    if (size > job_.max) draft.add(RaiseMax{size}, size - job_.max);
    if (use.sizes.shape != job_.shape) draft.add(AnyShape{}, 1);
    const Gpus per_pod = use.sizes.per_pod.gpus;
    if (per_pod != job_.per_pod.gpus) draft.add(LowerPerPod{per_pod}, job_.per_pod.gpus - per_pod);
    for (const std::string& type : use.pool)
      if (!is_allowed(type)) draft.add(AllowType{type}, 1);
    if (job_.needs_domain() && !use.in_domain) draft.add(PreferTopology{}, 1);
    if (use.all_nodes) draft.add(UseMoreNodes{}, 1);
    if (!share_out(use, size, grown, draft)) return;
    if (!best_ || draft < *best_) best_ = std::move(draft);
  }

  // First what its queue lets it have, then what nodes have, then what they would have to get.
  // False: more than a domain has, or the queue's cells, and no nodes are added to these.
  bool share_out(const Use& use, Gpus size, std::size_t grown, Draft& draft) const {
    std::vector<Gpus> shares;
    Gpus missing = size;
    const auto give = [&](Gpus& share, Gpus at_most) {
      const Gpus more = std::clamp<Gpus>(missing, 0, at_most - share);
      share += more;
      missing -= more;
    };
    for (std::size_t i = 0; i < use.pool.size(); ++i) give(shares.emplace_back(0), most_of(i, use));
    for (std::size_t i = 0; i < use.pool.size(); ++i) give(shares[i], use.capacities[i]);
    if (missing > 0 && (use.in_domain || alone_)) return false;
    const std::vector<Gpus> of_all = raise(QuotaBook::kAllTypes, size, {}, draft);
    shares[grown] += missing;
    for (std::size_t i = 0; i < use.pool.size(); ++i) raise(use.pool[i], shares[i], of_all, draft);
    if (missing > 0)
      draft.add(AddGpus{use.pool[grown], job_.one_node ? size : missing, job_.one_node}, missing);
    return true;
  }

  // Returns how many more of the type the parts of each level are guaranteed then; `of_all`: of all
  // types together, once these are raised.
  std::vector<Gpus> raise(const std::string& type, Gpus to, const std::vector<Gpus>& of_all,
                          Draft& draft) const {
    std::vector<Gpus> more;
    Gpus grown = 0;  // what the level below is guaranteed
    for (std::size_t i = 0; i < levels_.size(); ++i) {
      const Level& level = levels_[i];
      more.push_back(grown);
      const Allowance now = level.allowance(type, grown, of_all.empty() ? 0 : of_all[i]);
      if (now.limit < to) draft.add(RaiseLimit{level.name, type, to}, to - now.limit);
      const Gpus before = std::max(level.own(type), level.parts(type));
      const bool is_raised = now.guarantee < to;
      if (is_raised)  // of a type that is not there: of all
        draft.add(RaiseGuarantee{level.name, type.empty() ? QuotaBook::kAllTypes : type, to},
                  to - now.guarantee);
      grown = std::max(is_raised ? to : level.own(type), level.parts(type) + grown) - before;
    }
    return more;
  }

  const Job& job_;
  const Job sizes_;
  const std::vector<Level> levels_;
  // Where the queue has its cells and nothing else. Its jobs are those of the trial under way.
  mutable std::optional<ClusterState> alone_;
  const CountedNodes& nodes_;
  const CountedNodes eligible_;
  std::set<std::string> types_;
  std::optional<Draft> best_;
};

// By all that a fix depends on; what takes longest to compare is the last.
struct AsksForLess {
  bool operator()(const Job* a, const Job* b) const {
    const auto asks = [](const Job& job) {
      return std::tie(job.min, job.max, job.shape, job.mix, job.one_node, job.per_pod.gpus,
                      job.per_pod.cpu, job.per_pod.memory, job.per_pod.others, job.queue,
                      job.allow);
    };
    return std::tuple(asks(*a), level_needed(*a), std::tie(a->eligible)) <
           std::tuple(asks(*b), level_needed(*b), std::tie(b->eligible));
  }
};

std::string of_type(const std::string& type) {
  return type.empty() || type == QuotaBook::kAllTypes ? "" : fmt::format(" of type \"{}\"", type);
}

struct ChangeText {
  std::string operator()(const LowerMin& c) const {
    return fmt::format("lower spec.gpus.min to {}", c.to);
  }
  std::string operator()(const RaiseMax& c) const {
    return fmt::format("raise spec.gpus.max to {}", c.to);
  }
  std::string operator()(const AnyShape&) const { return "set spec.gpus.shape to any"; }
  std::string operator()(const LowerPerPod& c) const {
    return fmt::format("lower spec.gpus.perPod to {}", c.to);
  }
  std::string operator()(const AllowType& c) const {
    return fmt::format("allow GPU type \"{}\"", c.gpu_type);
  }
  std::string operator()(const PreferTopology&) const {
    return "set spec.topology.mode to preferred";
  }
  std::string operator()(const UseMoreNodes&) const {
    return "let it use more nodes (its selectors, tolerations and volumes leave it few)";
  }
  std::string operator()(const RaiseLimit& c) const {
    return fmt::format("raise the limit of queue \"{}\" to {}{}", c.queue, counted(c.to, "GPU"),
                       of_type(c.gpu_type));
  }
  std::string operator()(const RaiseGuarantee& c) const {
    return fmt::format("raise what queue \"{}\" is guaranteed to {}{}", c.queue,
                       counted(c.to, "GPU"), of_type(c.gpu_type));
  }
  std::string operator()(const AddGpus& c) const {
    return c.on_one_node
               ? fmt::format("add a node with {}{}", counted(c.gpus, "GPU"), of_type(c.gpu_type))
               : fmt::format("add nodes with {}{}", counted(c.gpus, "more GPU"),
                             of_type(c.gpu_type));
  }
};

struct ChangeName {
  const char* operator()(const LowerMin&) const { return "lowerMin"; }
  const char* operator()(const RaiseMax&) const { return "raiseMax"; }
  const char* operator()(const AnyShape&) const { return "anyShape"; }
  const char* operator()(const LowerPerPod&) const { return "lowerPerPod"; }
  const char* operator()(const AllowType&) const { return "allowType"; }
  const char* operator()(const PreferTopology&) const { return "preferTopology"; }
  const char* operator()(const UseMoreNodes&) const { return "useMoreNodes"; }
  const char* operator()(const RaiseLimit&) const { return "raiseLimit"; }
  const char* operator()(const RaiseGuarantee&) const { return "raiseGuarantee"; }
  const char* operator()(const AddGpus&) const { return "addGpus"; }
};

}  // namespace

Fix fix_of(const ClusterState& state, const Job& job) {
  NodeCounts nodes(state);
  return FixSearch(state, job, nodes).best();
}

std::vector<Fix> fixes_of(const ClusterState& state, const Plan& plan) {
  NodeCounts nodes(state);
  std::map<const Job*, Fix, AsksForLess> known;
  std::vector<Fix> fixes(plan.verdicts.size());
  for (std::size_t i = 0; i < fixes.size(); ++i) {
    if (plan.verdicts[i].outcome != Outcome::kNever) continue;
    const Job& job = state.jobs[i];
    const auto [at, is_new] = known.try_emplace(&job);
    if (is_new) at->second = FixSearch(state, job, nodes).best();
    fixes[i] = at->second;
  }
  return fixes;
}

const char* name_of(const Change& change) { return std::visit(ChangeName{}, change); }

std::string to_text(const Change& change) { return std::visit(ChangeText{}, change); }

std::string to_text(const Fix& fix) {
  std::string text;
  for (const Change& change : fix) text += (text.empty() ? "" : " and ") + to_text(change);
  return text;
}

}  // namespace rubato::sched
