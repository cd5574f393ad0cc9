// What queues may have, by their names: for what looks at a plan anew (certificate.h, feasible.h).
// Made in the time of the queues' levels and quotas. It refers to the state, which outlives it.
#pragma once

#include "scheduler/model/queue_tree.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace rubato::sched {

class QueueLimits {
 public:
  explicit QueueLimits(const ClusterState& state) : quotas_(quotas_by_parts(state.queues)) {
    for (const auto& [name, queue] : state.queues) {
      with_parents_[name] = with_parents(state.queues, name);
      queues_[name] = &queue;
    }
  }

  // And of those that it is a part of; none: there is no such queue.
  const std::vector<std::string>& names_of(const std::string& queue) const {
    static const std::vector<std::string> kNone;
    const auto found = with_parents_.find(queue);
    return found == with_parents_.end() ? kNone : found->second;
  }

  // By its limits, and where it may not borrow by its guarantees; none: as many as there are.
  std::optional<Gpus> most_together(const std::string& name, const std::string& of) const {
    const auto found = queues_.find(name);
    if (found == queues_.end()) return std::nullopt;
    const Queue& queue = *found->second;
    const auto by_parts = quotas_.find(name);
    const auto& quotas = by_parts == quotas_.end() ? queue.quotas : by_parts->second;
    const auto said = quotas.find(of);
    const bool is_said = said != quotas.end();
    std::optional<Gpus> most;
    if (is_said) most = said->second.limit;
    if (queue.borrowing || !queue.cells.empty()) return most;
    if (is_said) return std::min(most.value_or(said->second.guaranteed), said->second.guaranteed);
    return of == "*" || quotas.contains("*") ? most : std::optional<Gpus>(0);
  }

 private:
  std::map<std::string, std::map<std::string, Quota>> quotas_;
  std::unordered_map<std::string, std::vector<std::string>> with_parents_;
  std::unordered_map<std::string, const Queue*> queues_;
};

}  // namespace rubato::sched
