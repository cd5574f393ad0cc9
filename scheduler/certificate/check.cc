// Reads the state and the plan anew: nothing here is shared with what made the plan.
#include "common/check.h"

#include "scheduler/certificate/certificate.h"
#include "scheduler/certificate/queue_limits.h"
#include "scheduler/model/sizes.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <unordered_map>
#include <utility>

namespace rubato::sched {
namespace {

using ByType = std::map<std::string, Gpus>;

std::int64_t add_up(std::int64_t a, std::int64_t b) {
  return a >= kValueMost - b ? kValueMost : a + b;
}

std::int64_t times(std::int64_t price, Gpus gpus) {
  return gpus > 0 && price > kValueMost / gpus ? kValueMost : price * gpus;
}

std::int64_t price_in(const std::map<std::string, std::int64_t>& prices, const std::string& name) {
  const auto found = prices.find(name);
  return found == prices.end() ? 0 : std::max<std::int64_t>(found->second, 0);
}

// With those of the limits that count it.
std::int64_t price_of(const QueueLimits& limits, const Prices& prices, const Job& job,
                      const std::string& type) {
  std::int64_t price = price_in(prices.types, type);
  for (const std::string& queue : limits.names_of(job.queue)) {
    const auto of_queue = prices.limits.find(queue);
    if (of_queue == prices.limits.end()) continue;
    for (const std::string& of : {type, std::string("*")})
      price = add_up(price, price_in(of_queue->second, of));
  }
  return price;
}

Gpus sum_of(const ByType& gpus) {
  Gpus all = 0;
  for (const auto& [type, some] : gpus) all += some;
  return all;
}

// What the limits let their jobs have together, at their prices. What they hold they may keep.
std::int64_t price_of_limits(const ClusterState& state, const QueueLimits& limits,
                             const Prices& prices, const ByType& capacity) {
  std::map<std::string, ByType> held;  // by queue
  for (const Job& job : state.jobs) {
    if (job.held.empty()) continue;
    for (const std::string& queue : limits.names_of(job.queue))
      for (const Held& pod : job.held) {
        held[queue][pod.gpu_type] += pod.gpus;
        held[queue]["*"] += pod.gpus;
      }
  }
  std::int64_t sum = 0;
  for (const auto& [name, by_type] : prices.limits) {
    for (const auto& [of, price] : by_type) {
      Gpus most = 0;
      if (of == "*")
        most = sum_of(capacity);
      else if (const auto there = capacity.find(of); there != capacity.end())
        most = there->second;
      most = std::min(most, limits.most_together(name, of).value_or(most));
      sum = add_up(sum, times(std::max<std::int64_t>(price, 0), std::max(most, held[name][of])));
    }
  }
  return sum;
}

// What each job holds when the plan is done, by type.
std::vector<ByType> held_after(const ClusterState& state, const Plan& plan) {
  std::vector<ByType> held(state.jobs.size());
  std::unordered_map<JobId, std::size_t> jobs;
  for (std::size_t j = 0; j < state.jobs.size(); ++j) {
    jobs.emplace(state.jobs[j].id, j);
    for (const Held& pod : state.jobs[j].held)
      if (pod.stays()) held[j][pod.gpu_type] += pod.gpus;
  }
  for (const Action& action : plan.actions) {
    const auto found = jobs.find(action.job);
    CHECK(found != jobs.end());
    ByType& own = held[found->second];
    for (const Placement& placement : action.add) own[placement.gpu_type] += placement.gpus;
    for (const Held& pod : state.jobs[found->second].held)
      if (!pod.lost && !pod.leaving && std::ranges::count(action.remove, pod.ordinal) > 0)
        own[pod.gpu_type] -= pod.gpus;
  }
  for (ByType& own : held) std::erase_if(own, [](const auto& one) { return one.second == 0; });
  return held;
}

// Of a size between two that are listed: that of the worse of them, so that V is not too high.
std::int64_t value_at(const JobValues::List& list, Gpus gpus) {
  const auto at = std::ranges::lower_bound(list, gpus, {}, &SizeValue::gpus);
  if (at != list.end() && at->gpus == gpus) return at->value;
  if (at == list.begin() || at == list.end()) return 0;  // below its minimum, above its maximum
  return std::min(at->value, (at - 1)->value);
}

struct Worth {
  std::int64_t value = 0;
  std::int64_t at_minimum = 0;  // no more than the value
};

// Of several types the slowest counts.
Worth worth_of(const Problem& problem, const JobValues& values, const ByType& held) {
  std::optional<Worth> least;
  const Gpus all = sum_of(held);
  for (const auto& one : values.types) {
    const JobValues::List& list = values.of(one);
    if (!held.contains(problem.name(one.type))) continue;
    const Worth now{value_at(list, all), list.empty() ? 0 : list.front().value};
    if (!least) least = now;
    least->value = std::min(least->value, now.value);
    least->at_minimum = std::min(least->at_minimum, now.at_minimum);
  }
  if (!least) return {};
  const std::int64_t value = std::max<std::int64_t>(least->value, 0);
  return {value, std::clamp<std::int64_t>(least->at_minimum, 0, value)};
}

// The most that one job can add to the bound. Sizes that are not listed cost more than the listed
// one below them, and are worth no more than the better neighbour.
std::int64_t surplus_of(const JobValues::List& list, std::int64_t price, Gpus capacity) {
  std::int64_t most = 0;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const auto& [gpus, value] = list[i];
    if (gpus > capacity) break;
    if (value > 0) most = std::max(most, value - times(price, gpus));
    if (i + 1 == list.size() || list[i + 1].gpus == gpus + 1 || gpus == capacity) continue;
    const std::int64_t better = std::max(value, list[i + 1].value);
    most = std::max(most, better - times(price, gpus + 1));
  }
  return most;
}

// No job gets more than its queue may have; what it holds already it may keep.
Gpus limit_of(const QueueLimits& limits, const Job& job, const std::string& type) {
  Gpus limit = std::numeric_limits<Gpus>::max();
  for (const std::string& queue : limits.names_of(job.queue))
    for (const std::string& of : {type, std::string("*")})
      limit = std::min(limit, limits.most_together(queue, of).value_or(limit));
  return std::max(limit, effective_gpus(job));
}

// Whether it mixes types, or holds several, which it may keep though it does not mix them any more.
bool may_have_several_types(const Job& job) {
  const Held* first = nullptr;
  for (const Held& pod : job.held) {
    if (!pod.stays()) continue;
    if (first == nullptr) first = &pod;
    if (pod.gpu_type != first->gpu_type) return true;
  }
  return job.mix;
}

std::int64_t surplus_of(const Problem& problem, const QueueLimits& limits, const Job& job,
                        const JobValues& values, const Prices& prices, const ByType& capacity) {
  const bool spans_types = may_have_several_types(job);
  std::optional<std::int64_t> cheapest;  // whichever of them it has
  if (spans_types)
    for (const auto& [type, gpus] : capacity) {
      const std::int64_t price = price_of(limits, prices, job, type);
      cheapest = cheapest ? std::min(*cheapest, price) : price;
    }
  std::int64_t most = 0;
  for (const auto& one : values.types) {
    const std::string& type = problem.name(one.type);
    const auto there = capacity.find(type);
    const Gpus of_type = there == capacity.end() ? 0 : there->second;
    const Gpus limit = limit_of(limits, job, spans_types ? "*" : type);
    const std::int64_t price =
        spans_types ? cheapest.value_or(0) : price_of(limits, prices, job, type);
    const Gpus all = spans_types ? sum_of(capacity) : of_type;
    most = std::max(most, surplus_of(values.of(one), price, std::min(all, limit)));
  }
  return most;
}

}  // namespace

double Certificate::gap() const {
  return bound > 0 ? static_cast<double>(bound - value) / static_cast<double>(bound) : 0;
}

double Certificate::gap_above_minimums() const {
  const std::int64_t above = bound - minimums;
  return above > 0 ? static_cast<double>(bound - value) / static_cast<double>(above) : 0;
}

ByType capacity_of(const ClusterState& state) {
  ByType gpus;
  for (const Node& node : state.nodes)
    if (node.schedulable) gpus[node.gpu_type] += std::max<Gpus>(node.free.gpus, 0);
  for (const Job& job : state.jobs)
    for (const Held& held : job.held)
      if (held.stays()) gpus[held.gpu_type] += held.gpus;
  return gpus;
}

Certificate check(const Problem& problem, const ValueTable& values, const Plan& plan,
                  const Prices& prices) {
  const ClusterState& state = problem.state();
  CHECK_EQ(values.size(), state.jobs.size());
  Certificate certificate{.prices = prices};
  const ByType there = capacity_of(state);
  const QueueLimits limits(state);
  certificate.bound = price_of_limits(state, limits, prices, there);
  for (const auto& [type, gpus] : there)
    certificate.bound = add_up(certificate.bound, times(price_in(prices.types, type), gpus));
  const std::vector<ByType> held = held_after(state, plan);
  for (JobIndex j; j < problem.end_of_jobs(); ++j) {
    const Job& job = problem.job(j);
    certificate.bound =
        add_up(certificate.bound, surplus_of(problem, limits, job, values[j], prices, there));
    const Worth worth = worth_of(problem, values[j], held[j.value]);
    certificate.value = add_up(certificate.value, worth.value);
    certificate.minimums = add_up(certificate.minimums, worth.at_minimum);
  }
  return certificate;
}

}  // namespace rubato::sched
