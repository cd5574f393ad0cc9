#include "scheduler/model/queue_tree.h"

#include <algorithm>

#include <fmt/format.h>

namespace rubato::sched {
namespace {

// As it is written; null: none, or no such queue.
const Queue* parent_named(const Queues& queues, const Queue& queue) {
  if (queue.parent.empty()) return nullptr;
  const auto found = queues.find(queue.parent);
  return found == queues.end() ? nullptr : &found->second;
}

}  // namespace

std::string why_no_parent(const Queues& queues, const Queue& queue) {
  if (queue.parent.empty()) return "";
  const Queue* above = parent_named(queues, queue);
  if (above == nullptr) return fmt::format("there is no queue \"{}\"", queue.parent);
  for (std::size_t level = 1; above != nullptr; ++level) {
    if (above == &queue) return fmt::format("\"{}\" is a part of this queue", queue.parent);
    if (level == kQueueLevelsMost + (queue.of_one_user ? 1 : 0))
      return fmt::format("it would be on a level below the {}th, which is the last",
                         kQueueLevelsMost);
    above = parent_named(queues, *above);
  }
  return "";
}

std::vector<std::string> with_parents(const Queues& queues, const std::string& name) {
  std::vector<std::string> names;
  for (auto one = queues.find(name); one != queues.end(); one = queues.find(one->second.parent)) {
    names.push_back(one->first);
    if (one->second.parent.empty() || !why_no_parent(queues, one->second).empty()) break;
  }
  return names;
}

std::map<std::string, std::map<std::string, Gpus>> guaranteed_to_parts(const Queues& queues) {
  std::vector<std::vector<Queues::const_iterator>> levels;
  for (auto at = queues.begin(); at != queues.end(); ++at) {
    const std::size_t level = with_parents(queues, at->first).size();
    if (levels.size() < level) levels.resize(level);
    levels[level - 1].push_back(at);
  }
  std::map<std::string, std::map<std::string, Gpus>> of_parts;
  for (std::size_t level = levels.size(); level-- > 1;)  // those above are parts of nothing
    for (const auto& at : levels[level]) {
      const auto& [name, queue] = *at;
      const auto own_parts = of_parts.find(name);
      std::map<std::string, Gpus> guaranteed;
      if (own_parts != of_parts.end()) guaranteed = own_parts->second;
      for (const auto& [type, quota] : queue.quotas)
        guaranteed[type] = std::max(guaranteed[type], quota.guaranteed);
      auto& above = of_parts[queue.parent];
      for (const auto& [type, gpus] : guaranteed)
        if (gpus > 0) above[type] += gpus;
    }
  return of_parts;
}

std::map<std::string, std::map<std::string, Quota>> quotas_by_parts(const Queues& queues) {
  std::map<std::string, std::map<std::string, Quota>> raised;
  for (const auto& [name, of_parts] : guaranteed_to_parts(queues)) {
    const Queue& queue = queues.at(name);
    if (queue.borrowing) continue;
    auto& quotas = raised[name] = queue.quotas;
    for (const auto& [type, gpus] : of_parts)
      quotas[type].guaranteed = std::max(quotas[type].guaranteed, gpus);
  }
  return raised;
}

}  // namespace rubato::sched
