// The queues of a simulation, and who is in which.
#include "common/json.h"
#include "common/rng.h"
#include "scheduler/snapshot/snapshot.h"
#include "tools/rubatoctl/simulate/simulate.h"

#include <algorithm>

#include <fmt/format.h>

namespace rubato::ctl {
namespace {

constexpr std::size_t kQueuesBytes = 16u << 20;

// By weight, of which one at least is above 0.
const std::string& draw(const std::map<std::string, sched::Queue>& queues, Rng& rng) {
  double left = 0;
  for (const auto& [name, queue] : queues) left += queue.weight;
  left *= rng.unit();
  for (const auto& [name, queue] : queues) {
    left -= queue.weight;
    if (left < 0) return name;
  }
  return queues.rbegin()->first;
}

}  // namespace

Result<std::map<std::string, sched::Queue>> load_queues(const SimulateOptions& options) {
  if (options.queues.empty()) return std::map<std::string, sched::Queue>{};
  TRY(const std::string text, read_input(options.queues, kQueuesBytes));
  const auto list = json::parse(text, {.refuses_duplicates = true});
  if (!list.ok()) return list.error().in(options.queues);
  // A snapshot of nothing else.
  auto snapshot = sched::decode_snapshot(json::Value::object({{"version", sched::kSnapshotVersion},
                                                              {"nodes", json::Value::array()},
                                                              {"jobs", json::Value::array()},
                                                              {"queues", *list}}));
  if (!snapshot.ok()) return snapshot.error().in(options.queues);
  return std::move(snapshot->state.queues);
}

Status put_into_queues(std::vector<sched::sim::TraceJob>& jobs,
                       const std::map<std::string, sched::Queue>& queues,
                       const sched::sim::SimCluster& cluster, const SimulateOptions& options) {
  if (options.draw_queues != 0 && queues.empty())
    return Error(Code::kInvalid, "--draw-queues: there are none; name them with --queues FILE");
  if (options.draw_queues != 0 &&
      std::ranges::none_of(queues, [](const auto& one) { return one.second.weight > 0; }))
    return Error(Code::kInvalid,
                 "--draw-queues: by their weights, which are all 0; expected one above 0");
  Rng rng(static_cast<std::uint64_t>(options.draw_queues));
  const auto of_node = cluster.largest_node_by_type();
  for (auto& job : jobs) {
    if (options.draw_queues != 0) job.queue = draw(queues, rng);
    job.one_node = options.one_node && std::ranges::any_of(of_node, [&](const auto& one) {
                     return job.may_use(one.first) && job.request <= one.second;
                   });
  }
  if (!options.only_queue.empty())
    std::erase_if(jobs, [&](const auto& job) { return job.queue != options.only_queue; });
  if (jobs.empty())
    return Error(Code::kInvalid,
                 fmt::format("--only-queue {}: no job is in it", options.only_queue));
  return ok();
}

}  // namespace rubato::ctl
