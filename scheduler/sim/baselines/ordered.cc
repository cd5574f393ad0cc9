#include "scheduler/sim/baselines/ordered.h"

#include "scheduler/placement/place.h"

#include <limits>
#include <optional>

namespace rubato::sched::sim {
namespace {

constexpr const char* kAllTypes = "*";

struct TypeGpus {
  std::string type;
  Gpus left = 0;  // of all its GPUs, after those served before
  Gpus free = 0;  // now
};

// One plan, made from the first to the last of the order.
class Walker {
 public:
  Walker(const ClusterState& state, const Hints& hints, const Walk& walk)
      : state_(state), hints_(hints), walk_(walk) {
    for (const Node& node : state_.nodes) {
      TypeGpus& of_type = gpus_of(node.gpu_type);
      of_type.left += node.gpus_total;
      of_type.free += node.free.gpus;
    }
  }

  Plan run(const std::vector<std::size_t>& order) {
    if (!walk_.preempts)
      for (const std::size_t index : order) keep(state_.jobs[index]);
    for (const std::size_t index : order)
      if (!serve(state_.jobs[index], hints_.jobs[index].request) && !walk_.skips) break;
    // Releases before takes.
    std::stable_partition(plan_.actions.begin(), plan_.actions.end(),
                          [](const Action& action) { return !action.remove.empty(); });
    return std::move(plan_);
  }

 private:
  TypeGpus& gpus_of(const std::string& type) {
    for (TypeGpus& known : types_)
      if (known.type == type) return known;
    types_.push_back({.type = type});
    return types_.back();
  }

  static const Held* first_pod(const Job& job) {
    for (const Held& held : job.held)
      if (!held.leaving) return &held;
    return nullptr;
  }

  void keep(const Job& job) {
    for (const Held& held : job.held)
      if (!held.leaving) gpus_of(held.gpu_type).left -= held.gpus;
  }

  // False: it does not fit behind those before it.
  bool serve(const Job& job, Gpus request) {
    if (const Held* pod = first_pod(job)) {
      if (!walk_.preempts) return true;  // kept
      TypeGpus& of_type = gpus_of(pod->gpu_type);
      if (of_type.left >= request) {
        of_type.left -= request;
        return true;
      }
      preempt(job);
      return false;
    }
    TypeGpus* best = choose(job, request);
    if (best == nullptr) return false;
    best->left -= request;
    if (best->free >= request) start(job, request, *best);
    return true;  // or it waits for those who leave
  }

  // Of the types it may use and whose GPUs last: one where they are free now, else the emptiest.
  TypeGpus* choose(const Job& job, Gpus request) {
    TypeGpus* best = nullptr;
    const auto is_now = [&](const TypeGpus& t) { return t.free >= request; };
    for (TypeGpus& t : types_) {
      if (t.left < request) continue;
      if (!job.allow.empty() &&
          std::find(job.allow.begin(), job.allow.end(), t.type) == job.allow.end())
        continue;
      if (best == nullptr || is_now(t) > is_now(*best) ||
          (is_now(t) == is_now(*best) && t.left > best->left))
        best = &t;
    }
    return best;
  }

  void start(const Job& job, Gpus request, TypeGpus& on) {
    if (!free_) free_.emplace(state_);
    const TypeRoom only = [&](const std::string& type) {
      return type == kAllTypes || type == on.type ? std::numeric_limits<Gpus>::max() : 0;
    };
    auto placed = place(job, request / job.per_pod.gpus, *free_, only);
    if (!placed) return;
    on.free -= request;
    plan_.actions.push_back({.kind = ActionKind::kStart, .job = job.id, .add = std::move(*placed)});
  }

  void preempt(const Job& job) {
    Action action{.kind = ActionKind::kPreempt, .job = job.id};
    for (const Held& held : job.held)
      if (!held.leaving) action.remove.push_back(held.ordinal);
    plan_.actions.push_back(std::move(action));
  }

  const ClusterState& state_;
  const Hints& hints_;
  const Walk& walk_;
  std::vector<TypeGpus> types_;
  std::optional<FreeMap> free_;  // made once somebody starts
  Plan plan_;
};

}  // namespace

bool holds_gpus(const Job& job) {
  return std::any_of(job.held.begin(), job.held.end(),
                     [](const Held& held) { return !held.leaving; });
}

Plan plan_in_order(const ClusterState& state, const Hints& hints,
                   const std::vector<std::size_t>& order, const Walk& walk) {
  return Walker(state, hints, walk).run(order);
}

}  // namespace rubato::sched::sim
