// What the baselines share: they only order jobs. From an order comes a plan: jobs get their
// request, one after the other, while GPUs last; who runs and is not among them is preempted; who
// waits and is among them starts as soon as its GPUs are free, placed by the operator's own
// `place`.
#pragma once

#include "scheduler/sim/scheduler.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace rubato::sched::sim {

struct Walk {
  bool preempts = false;  // else who runs keeps what it holds, whatever the order
  bool skips = true;      // one that does not fit is passed over; else it holds up all behind it
};

// `order`: indices into state.jobs, all of them, first served first.
Plan plan_in_order(const ClusterState& state, const Hints& hints,
                   const std::vector<std::size_t>& order, const Walk& walk);

bool holds_gpus(const Job& job);  // pods that leave do not count

// Jobs by key(index), then by submission, then by id.
template <class Key>
std::vector<std::size_t> order_by(const ClusterState& state, const Hints& hints, const Key& key) {
  using Rank = decltype(key(std::size_t{0}));
  struct Ranked {
    Rank rank;
    TimeMs submit_ms;
    std::size_t index;
  };
  std::vector<Ranked> ranked;
  ranked.reserve(state.jobs.size());
  for (std::size_t i = 0; i < state.jobs.size(); ++i)
    ranked.push_back({key(i), hints.jobs[i].submit_ms, i});
  std::sort(ranked.begin(), ranked.end(), [&](const Ranked& a, const Ranked& b) {
    if (a.rank != b.rank) return a.rank < b.rank;
    if (a.submit_ms != b.submit_ms) return a.submit_ms < b.submit_ms;
    return state.jobs[a.index].id < state.jobs[b.index].id;
  });
  std::vector<std::size_t> order;
  order.reserve(ranked.size());
  for (const Ranked& one : ranked) order.push_back(one.index);
  return order;
}

}  // namespace rubato::sched::sim
