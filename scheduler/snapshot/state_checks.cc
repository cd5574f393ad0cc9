#include "scheduler/snapshot/state_checks.h"

#include "scheduler/snapshot/snapshot.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

namespace rubato::sched {

void HeldSums::add(const Job& job, const Path& path, Trouble& trouble) {
  __extension__ using Wide = __int128;
  const auto pods = static_cast<Wide>(job.held.size());
  const auto add = [&](std::size_t kind, std::int64_t amount) {
    if (pods * amount > kAmountMost - sums_[kind]) {
      const Path where{&path, "perPod"};
      return trouble.note(where, "with the pods of the jobs before it too much of one kind is held",
                          fmt::format("at most {} of each", kAmountMost));
    }
    sums_[kind] += static_cast<std::int64_t>(pods * amount);
  };
  add(0, job.per_pod.gpus);
  add(1, job.per_pod.cpu);
  add(2, job.per_pod.memory);
  for (std::size_t i = 0; i < Resources::kOthers; ++i) add(3 + i, job.per_pod.others[i]);
}

void check_guests(const ClusterState& state, const Path& jobs, Trouble& trouble) {
  std::unordered_map<std::string_view, const Job*> by_id;
  std::map<std::pair<std::string_view, NodeId>, std::int64_t> room;
  if (std::ranges::all_of(state.jobs, [](const Job& job) { return job.guest_of.empty(); })) return;
  for (const Job& job : state.jobs) {
    by_id[job.id] = &job;
    for (const Held& held : job.held)
      if (held.stays()) ++room[{job.id, held.node}];
  }
  for (std::size_t i = 0; i < state.jobs.size(); ++i) {
    const Job& guest = state.jobs[i];
    if (guest.guest_of.empty()) continue;
    const Path of_job{&jobs, {}, static_cast<std::int64_t>(i)};
    const Path at{&of_job, "guestOf"};
    const auto host = by_id.find(guest.guest_of);
    if (host == by_id.end() || !host->second->guest_of.empty())
      return trouble.note(at, shown(guest.guest_of), "the id of a job that is no guest itself");
    for (const Held& held : guest.held)
      if (held.stays() && --room[{guest.guest_of, held.node}] < 0)
        return trouble.note(at, "with other guests more pods on " + shown(held.node),
                            "at most as many as its host has there");
  }
}

void check_free(const ClusterState& state, const Path& nodes, Trouble& trouble) {
  if (trouble.error) return;
  std::unordered_map<std::string_view, Gpus> held;
  for (const Job& job : state.jobs) {
    if (!job.guest_of.empty()) continue;
    for (const Held& pod : job.held)
      if (pod.stays()) held[pod.node] += pod.gpus;
  }
  for (std::size_t i = 0; i < state.nodes.size(); ++i) {
    const Node& node = state.nodes[i];
    const auto taken = held.find(node.id);
    if (taken == held.end()) continue;
    const Gpus most = std::max<Gpus>(node.gpus_total - taken->second, 0);
    if (node.free.gpus <= most) continue;
    const Path of_node{&nodes, {}, static_cast<std::int64_t>(i)};
    const Path free{&of_node, "free"};
    return trouble.note({&free, "gpus"}, fmt::format("{}", node.free.gpus),
                        fmt::format("at most {}, for pods of jobs hold {} of its {}", most,
                                    taken->second, node.gpus_total));
  }
}

}  // namespace rubato::sched
