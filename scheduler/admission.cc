#include "scheduler/admission.h"

#include "scheduler/model/quota.h"
#include "scheduler/model/sizes.h"

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

namespace rubato::sched {
namespace {

using Types = std::vector<TypeIndex>;  // in order

class LoadAdmission {
 public:
  LoadAdmission(Problem& problem, double max_load)
      : problem_(problem), max_load_(max_load), quota_(problem) {
    Types all;
    for (TypeIndex t; t.value < problem.count_types(); ++t) all.push_back(t);
    pools_[std::move(all)];
    for (JobIndex j; j < problem.end_of_jobs(); ++j)
      if (problem.takes_part(j)) pools_[problem.group(j).types];
    for (auto& [types, pool] : pools_) pool.most = most_of(types);
    for (const auto& [name, queue] : problem.state().queues)
      for (const auto& [type, gpus] : queue.held_by_leavers)
        quota_.take(problem.queue_named(name), problem.type_named(type), gpus);
  }

  void run() {
    std::vector<JobIndex> waiting;
    for (JobIndex j; j < problem_.end_of_jobs(); ++j) {
      if (!problem_.takes_part(j)) continue;
      if (!has_run(problem_.job(j))) {
        waiting.push_back(j);
        continue;
      }
      for (const Held& held : problem_.job(j).held)
        if (held.stays())
          quota_.take(problem_.queue_of(j), problem_.type_named(held.gpu_type), held.gpus);
      add(pools_above(j), size_at_least(problem_.job(j), 0).value_or(0));
    }
    std::ranges::sort(waiting, [&](JobIndex a, JobIndex b) {
      const Job& one = problem_.job(a);
      const Job& other = problem_.job(b);
      return one.queued_at != other.queued_at ? one.queued_at < other.queued_at : one.id < other.id;
    });
    for (const JobIndex j : waiting) look_at(j);
  }

 private:
  struct Pool {
    Gpus most = 0;
    Gpus wanted = 0;  // by all that were looked at
  };

  static bool has_run(const Job& job) { return job.started || job.attained_gpu_ms > 0; }

  Gpus most_of(const Types& types) const {
    Gpus healthy = 0;
    for (NodeIndex n; n < problem_.end_of_nodes(); ++n)
      if (problem_.node(n).schedulable && std::ranges::binary_search(types, problem_.type_of(n)))
        healthy += problem_.node(n).gpus_total;
    return static_cast<Gpus>(max_load_ * static_cast<double>(healthy));
  }

  std::vector<Pool*> pools_above(JobIndex j) {
    std::vector<Pool*> above;
    for (auto& [types, pool] : pools_)
      if (std::ranges::includes(types, problem_.group(j).types)) above.push_back(&pool);
    return above;
  }

  static void add(const std::vector<Pool*>& pools, Gpus gpus) {
    for (Pool* pool : pools) pool->wanted += gpus;
  }

  void look_at(JobIndex j) {
    const Job& job = problem_.job(j);
    const JobGroup& group = problem_.group(j);
    const QueueIndex queue = problem_.queue_of(j);
    const auto wanted = size_at_least(job, 0);
    if (!wanted || group.capacity_now.most() < *wanted || problem_.queue(queue)->closed) return;
    const auto type_that = [&](auto has_room) -> std::optional<TypeIndex> {
      const auto found = std::ranges::find_if(group.types, has_room);
      return found == group.types.end() ? std::nullopt : std::optional(*found);
    };
    const auto guaranteed =
        type_that([&](TypeIndex type) { return quota_.is_guaranteed(queue, type, *wanted); });
    const auto type = guaranteed ? guaranteed : type_that([&](TypeIndex one) {
      return job.mix ? quota_.room(queue) >= *wanted : quota_.room(queue, one) >= *wanted;
    });
    if (!type) return;  // its queue is full
    const std::vector<Pool*> pools = pools_above(j);
    if (!guaranteed && is_held_back(j, pools, *wanted)) return;
    quota_.take(queue, *type, *wanted);
    add(pools, *wanted);
  }

  // Later ones wait for it where it waits itself.
  bool is_held_back(JobIndex j, const std::vector<Pool*>& pools, Gpus wanted) {
    std::vector<Pool*> full;
    for (Pool* pool : pools)
      if (pool->wanted > 0 && pool->wanted + wanted > pool->most) full.push_back(pool);
    if (full.empty()) return false;
    problem_.hold_back(j, {.wanted_before = full.front()->wanted, .most = full.front()->most});
    add(full, wanted);
    return true;
  }

  Problem& problem_;
  const double max_load_;
  QuotaBook quota_;
  std::map<Types, Pool> pools_;
};

}  // namespace

void admit_by_load(Problem& problem, double max_load) {
  if (max_load > 0) LoadAdmission(problem, max_load).run();
}

}  // namespace rubato::sched
