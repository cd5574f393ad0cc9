#include "scheduler/queue_weights.h"

#include "scheduler/model/quota.h"
#include "scheduler/model/sizes.h"
#include "scheduler/type_pools.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>
#include <vector>

namespace rubato::sched {
namespace {

class Filling {
 public:
  explicit Filling(const Problem& problem)
      : problem_(problem), quota_(problem), pools_(problem, 1), of_(problem.count_queues()) {
    for (JobIndex j; j < problem.end_of_jobs(); ++j)
      if (problem.takes_part(j) && size_at_least(problem.job(j), 0)) {
        of_[problem.queue_of(j)].waiting.push_back(j);
        pools_.add(problem.group(j).types);
      }
    for (QueueIndex q; q < of_.end_key(); ++q) {
      std::ranges::sort(of_[q].waiting, [&](JobIndex a, JobIndex b) { return key(a) < key(b); });
      of_[q].guaranteed = said_of(q);
      parts_of(problem.parent_of(q)).push_back(q);
    }
    for (QueueIndex q; q < of_.end_key(); ++q)
      if (!problem.parent_of(q)) look_below(q);
  }

  void run() {
    while (const std::optional<QueueIndex> root = first_of(roots_)) {
      const JobIndex j = *of_[*root].next;
      const QueueIndex queue = problem_.queue_of(j);
      ++of_[queue].at;
      if (take(j, queue))
        for (auto one = std::optional(queue); one; one = problem_.parent_of(*one))
          of_[*one].filled += wanted_by(j);
      for (auto one = std::optional(queue); one; one = problem_.parent_of(*one)) look_at(*one);
    }
  }

  Gpus filled(QueueIndex queue) const { return of_[queue].filled; }

 private:
  // The less, the sooner it is served: whether the next one would be beyond what it is guaranteed,
  // and what it has by its weight.
  using Claim = std::tuple<bool, double>;
  struct OfQueue {
    std::vector<JobIndex> waiting;  // its own jobs, in order
    std::size_t at = 0;             // of the next one
    std::vector<QueueIndex> parts;
    Gpus guaranteed = 0;           // by itself
    Gpus filled = 0;               // its parts included
    Gpus own = 0;                  // of its own jobs
    std::optional<JobIndex> next;  // of its own, or of a part
    Claim claim;                   // while there is a next one
  };

  std::tuple<std::int64_t, double, const JobId&> key(JobIndex j) const {
    const Job& job = problem_.job(j);
    return {-job.priority, job.queued_at, job.id};
  }
  Gpus wanted_by(JobIndex j) const { return *size_at_least(problem_.job(j), 0); }

  Gpus said_of(QueueIndex queue) const {
    const auto& quotas = problem_.quotas_of(queue);
    Gpus of_types = 0, of_all = 0;
    for (const auto& [type, quota] : quotas)
      (type == QuotaBook::kAllTypes ? of_all : of_types) += quota.guaranteed;
    return std::max(of_all, of_types);
  }

  std::vector<QueueIndex>& parts_of(std::optional<QueueIndex> queue) {
    return queue ? of_[*queue].parts : roots_;
  }

  void look_below(QueueIndex queue) {
    for (const QueueIndex part : of_[queue].parts) look_below(part);
    look_at(queue);
  }

  void look_at(QueueIndex queue) {
    OfQueue& of = of_[queue];
    const std::optional<QueueIndex> part = first_of(of.parts);
    of.next = part ? of_[*part].next : std::nullopt;
    // Jobs of its own: weight 1, nothing guaranteed; before parts that have as little.
    if (of.at < of.waiting.size() &&
        (!part || Claim(true, static_cast<double>(of.own)) <= of_[*part].claim))
      of.next = of.waiting[of.at];
    if (of.next) of.claim = claim_of(queue);
  }

  Claim claim_of(QueueIndex queue) const {
    const OfQueue& of = of_[queue];
    const Queue* said = problem_.queue(queue);  // null: it was deleted, and jobs of it run
    const double weight = said == nullptr ? 1 : said->weight;
    const double share = weight > 0 ? static_cast<double>(of.filled) / weight
                                    : std::numeric_limits<double>::infinity();
    return {of.filled + wanted_by(*of.next) > of.guaranteed, share};
  }

  std::optional<QueueIndex> first_of(const std::vector<QueueIndex>& queues) const {
    std::optional<QueueIndex> first;
    for (const QueueIndex queue : queues)
      if (of_[queue].next && (!first || of_[queue].claim < of_[*first].claim)) first = queue;
    return first;
  }

  // Whether there is room for its minimum, which is taken then.
  bool take(JobIndex j, QueueIndex queue) {
    const JobGroup& group = problem_.group(j);
    const Gpus wanted = wanted_by(j);
    if (group.capacity_now.most() < wanted) return false;
    const auto type = type_with_room(quota_, problem_, j, wanted);
    if (!type) return false;
    const std::vector<TypePools::Pool*> pools = pools_.with_all(group.types);
    if (std::ranges::any_of(pools, [&](auto* pool) { return pool->wanted + wanted > pool->most; }))
      return false;
    for (auto* pool : pools) pool->wanted += wanted;
    quota_.take(queue, *type, wanted);
    of_[queue].own += wanted;
    return true;
  }

  const Problem& problem_;
  QuotaBook quota_;
  TypePools pools_;
  Table<QueueIndex, OfQueue> of_;
  std::vector<QueueIndex> roots_;
};

}  // namespace

std::map<std::string, Gpus> shares_by_weight(const Problem& problem) {
  Filling filling(problem);
  filling.run();
  std::map<std::string, Gpus> shares;
  for (const auto& [name, queue] : problem.state().queues)
    shares[name] = filling.filled(problem.queue_named(name));
  return shares;
}

std::map<std::string, Gpus> guarantee_by_weight(Problem& problem) {
  std::map<std::string, Gpus> shares = shares_by_weight(problem);
  for (const auto& [name, share] : shares) {
    const QueueIndex queue = problem.queue_named(name);
    if (!problem.queue(queue)->borrowing || share == 0) continue;
    auto quotas = problem.quotas_of(queue);
    Gpus& guaranteed = quotas[QuotaBook::kAllTypes].guaranteed;
    guaranteed = std::max(guaranteed, share);
    problem.set_quotas(queue, std::move(quotas));
  }
  return shares;
}

}  // namespace rubato::sched
