#include "scheduler/policy/drf.h"

#include "scheduler/policy/order.h"

#include <algorithm>
#include <set>
#include <utility>

namespace rubato::sched {
namespace {

// What is free on nodes that take jobs, and what jobs hold there.
Resources whole_of(const Problem& problem) {
  Resources whole;
  for (NodeIndex n; n < problem.end_of_nodes(); ++n) {
    if (!problem.node(n).schedulable) continue;
    Resources free = problem.node(n).free;
    free.raise_to_zero();
    whole += free;
  }
  for (const Job& job : problem.state().jobs) {
    for (const Held& pod : job.held) {
      const auto node = problem.find_node(pod.node);
      if (node && problem.node(*node).schedulable) whole += job.per_pod;
    }
  }
  return whole;
}

Resources minimum_of(const Job& job) {
  const std::int64_t pods = (job.min + job.per_pod.gpus - 1) / job.per_pod.gpus;
  return {.gpus = pods * job.per_pod.gpus,
          .cpu = pods * job.per_pod.cpu,
          .memory = pods * job.per_pod.memory};
}

double share(std::int64_t used, std::int64_t whole) {
  return whole > 0 ? static_cast<double>(used) / static_cast<double>(whole) : 0;
}

}  // namespace

Descriptor Drf::describe() {
  return {
      .name = "drf",
      .about = "the queue with the least share of GPUs, CPU or memory first, preempts",
      .rule =
          "Each queue is judged by its dominant share: the largest part of the cluster's GPUs, CPU "
          "or memory that its jobs take, divided by the queue's weight. The queue with the least "
          "dominant share is served next, with its oldest job; later ones are preempted. A job "
          "that does not fit into what is left comes last.",
      .choose =
          "Where queues are teams that should have equal parts, or parts by weight, and jobs ask "
          "for CPU and memory in different measure. It needs requests of CPU and memory that are "
          "true; it knows nothing of durations and does not shorten completion times.",
      .source =
          "Ghodsi et al., NSDI'11, Algorithm 1 and section 4.3; the example of its section 4.1 is "
          "reproduced. Counting from nothing in each round, with preemption, is a *reconstruction*",
      .parameters = {{.name = "hostWeight",
                      .least = 0,
                      .most = 1,
                      .standard = 1,
                      .about = "what a share of CPU or memory counts against an equal share of "
                               "GPUs; 0: GPUs alone"}},
      .uses_weights = true};
}

Drf::Drf(const std::vector<double>& parameters) : host_weight_(parameters.at(0)) {}

double Drf::dominant_share(const Resources& used, const Resources& whole) const {
  return std::max({share(used.gpus, whole.gpus), host_weight_ * share(used.cpu, whole.cpu),
                   host_weight_ * share(used.memory, whole.memory)});
}

Targets Drf::decide(const Problem& problem) const {
  const std::vector<JobIndex> by_age = order_by(problem, [](JobIndex) { return 0; });
  const Resources whole = whole_of(problem);
  Resources left = whole;
  Table<QueueIndex, Resources> used(problem.count_queues());
  // Of one priority at a time.
  Table<QueueIndex, std::vector<JobIndex>> waiting(problem.count_queues());
  const auto share_of = [&](QueueIndex q) {
    const Queue* queue = problem.queue(q);
    return dominant_share(used[q], whole) / std::max(queue ? queue->weight : 1, 1e-9);
  };
  Targets targets{.displaces = Displaces::kLaterInOrder};
  std::vector<JobIndex> last;
  for (std::size_t from = 0, to = 0; from < by_age.size(); from = to) {
    const std::int64_t priority = problem.job(by_age[from]).priority;
    last.clear();
    std::set<std::pair<double, QueueIndex>> queues;
    for (; to < by_age.size() && problem.job(by_age[to]).priority == priority; ++to)
      waiting[problem.home_of(problem.queue_of(by_age[to]))].push_back(by_age[to]);
    for (QueueIndex q; q < waiting.end_key(); ++q) {
      std::ranges::reverse(waiting[q]);
      if (!waiting[q].empty()) queues.emplace(share_of(q), q);
    }
    while (!queues.empty()) {
      const QueueIndex q = queues.begin()->second;
      queues.erase(queues.begin());
      const JobIndex j = waiting[q].back();
      waiting[q].pop_back();
      const Resources wanted = minimum_of(problem.job(j));
      if (problem.is_kept_out(j) || !left.fits(wanted)) {
        last.push_back(j);
      } else {
        left -= wanted;
        used[q] += wanted;
        targets.order.push_back(j);
      }
      if (!waiting[q].empty()) queues.emplace(share_of(q), q);
    }
    targets.order.insert(targets.order.end(), last.begin(), last.end());
  }
  return targets;
}

}  // namespace rubato::sched
