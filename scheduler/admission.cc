#include "scheduler/admission.h"

#include "scheduler/model/quota.h"
#include "scheduler/model/sizes.h"
#include "scheduler/type_pools.h"

#include <algorithm>
#include <optional>
#include <vector>

namespace rubato::sched {
namespace {

class LoadAdmission {
 public:
  LoadAdmission(Problem& problem, double max_load)
      : problem_(problem), quota_(problem), pools_(problem, max_load) {
    TypePools::Types all;
    for (TypeIndex t; t.value < problem.count_types(); ++t) all.push_back(t);
    pools_.add(all);
    for (JobIndex j; j < problem.end_of_jobs(); ++j)
      if (problem.takes_part(j)) pools_.add(problem.group(j).types);
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
      add(pools_.with_all(problem_.group(j).types), size_at_least(problem_.job(j), 0).value_or(0));
    }
    std::ranges::sort(waiting, [&](JobIndex a, JobIndex b) {
      const Job& one = problem_.job(a);
      const Job& other = problem_.job(b);
      return one.queued_at != other.queued_at ? one.queued_at < other.queued_at : one.id < other.id;
    });
    for (const JobIndex j : waiting) look_at(j);
  }

 private:
  using Pool = TypePools::Pool;  // wanted by all that were looked at

  static bool has_run(const Job& job) { return job.started || job.attained_gpu_ms > 0; }

  static void add(const std::vector<Pool*>& pools, Gpus gpus) {
    for (Pool* pool : pools) pool->wanted += gpus;
  }

  void look_at(JobIndex j) {
    const Job& job = problem_.job(j);
    const JobGroup& group = problem_.group(j);
    const QueueIndex queue = problem_.queue_of(j);
    const auto wanted = size_at_least(job, 0);
    const Queue* home = problem_.queue(problem_.home_of(queue));
    if (!wanted || group.capacity_now.most() < *wanted || home->closed) return;
    const auto inside = std::ranges::find_if(
        group.types, [&](TypeIndex type) { return quota_.is_guaranteed(queue, type, *wanted); });
    const bool guaranteed = inside != group.types.end();
    const auto type =
        guaranteed ? std::optional(*inside) : type_with_room(quota_, problem_, j, *wanted);
    if (!type) return;  // its queue is full
    const std::vector<Pool*> pools = pools_.with_all(group.types);
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
  QuotaBook quota_;
  TypePools pools_;
};

}  // namespace

void admit_by_load(Problem& problem, double max_load) {
  if (max_load > 0) LoadAdmission(problem, max_load).run();
}

void admit_by_guarantees(Problem& problem) {
  const auto may_wait = [](const Job& job) { return !job.preemptible && !job.started; };
  if (std::ranges::none_of(problem.state().jobs, may_wait)) return;
  QuotaBook lasting(problem);
  if (!lasting.has_guarantees()) return;
  for (JobIndex j; j < problem.end_of_jobs(); ++j) {
    const Job& job = problem.job(j);
    if (job.preemptible || !job.guest_of.empty()) continue;
    Gpus left = job.min;
    for (std::size_t i = 0; i < job.held.size() && left > 0; ++i) {
      if (!job.held[i].stays()) continue;
      lasting.take(problem.queue_of(j), problem.held_at(j)[i].type, job.held[i].gpus);
      left -= job.held[i].gpus;
    }
  }
  for (JobIndex j; j < problem.end_of_jobs(); ++j) {
    const Queue* queue = problem.queue(problem.queue_of(j));
    if (!may_wait(problem.job(j)) || queue == nullptr || !queue->cells.empty()) continue;
    if (types_guaranteed(lasting, problem, j, problem.group(j).types).empty()) problem.keep_out(j);
  }
}

}  // namespace rubato::sched
