// Two jobs on the same GPUs: how fast each is, and who has the GPUs once one ends.
#include "common/check.h"
#include "scheduler/model/sharing.h"
#include "scheduler/sim/engine.h"

#include <algorithm>

#include <fmt/format.h>

namespace rubato::sched::sim {
namespace {

constexpr double kLeast = 0.01;  // of its speed alone: whoever shares gets on

// Part of its speed alone that `job` keeps.
double beside(const SharingProfile& job, const SharingProfile& other, const std::string& other_name,
              const std::string& type) {
  if (job.measured) {
    const auto found = job.measured->find({other_name, type});
    if (found != job.measured->end()) return std::clamp(found->second, kLeast, 1.0);
  }
  return std::min(1.0, 1.0 / (job.use.busy + other.use.busy));
}

}  // namespace

// 1: it has its GPUs alone.
double Engine::part_of_speed(std::size_t index) const {
  const Run& run = runs_[index];
  const auto pair = [&](std::size_t host, std::size_t guest, std::size_t of) {
    const std::size_t other = of == host ? guest : host;
    const SharingProfile& own = *trace_[of].sharing;
    const SharingProfile& others = *trace_[other].sharing;
    if (about_.shares == Sharing::kEqual)
      return beside(own, others, trace_[other].profile, types_[run.type]);
    if (of == host) return 1.0;
    return std::clamp((1 - others.use.busy) / own.use.busy, kLeast, 1.0);
  };
  if (run.host) return pair(*run.host, index, index);
  double least = 1;  // its workers wait for the slowest
  for (const std::size_t guest : run.guests) least = std::min(least, pair(index, guest, index));
  return least;
}

// The pods of `action` are on GPUs of another job.
Status Engine::become_guest(std::size_t index, const Action& action) {
  const auto found = index_of_.find(action.shares_with);
  const bool is_there = found != index_of_.end() && runs_[found->second].held > 0;
  if (!is_there || runs_[found->second].host || runs_[index].held > 0)
    return Error(Code::kInternal, fmt::format("cannot share with {}", action.shares_with));
  if (!trace_[index].sharing || !trace_[found->second].sharing)
    return Error(Code::kInternal, "nothing is known of how it shares");
  Run& host = runs_[found->second];
  std::map<NodeId, Gpus> room;
  for (const Held& held : job_of(found->second).held)
    if (held.stays()) room[held.node] += held.gpus;
  for (const std::size_t guest : host.guests)
    for (const Held& held : job_of(guest).held) room[held.node] -= held.gpus;
  for (const Placement& placement : action.add) {
    room[placement.node] -= placement.gpus;
    if (room[placement.node] < 0)
      return Error(Code::kInternal, fmt::format("{} has no GPU on node {} for it",
                                                action.shares_with, placement.node));
  }
  runs_[index].host = found->second;
  host.guests.push_back(index);
  job_of(index).guest_of = action.shares_with;
  return ok();
}

void Engine::leave_host(std::size_t index) {
  Run& run = runs_[index];
  if (!run.host) return;
  const std::size_t host = *std::exchange(run.host, std::nullopt);
  std::erase(runs_[host].guests, index);
  job_of(index).guest_of.clear();
  if (runs_[host].phase != Phase::kDone) change_speed(host);
}

// Its guests have its GPUs from now on. By position of its pods: whether one has that one's.
std::vector<bool> Engine::hand_over_to_guests(std::size_t index) {
  if (runs_[index].guests.empty()) return std::vector<bool>(job_of(index).held.size(), false);
  const std::vector<bool> is_handed_over = hand_over(job_of(index), state_.jobs);
  for (const std::size_t guest : std::exchange(runs_[index].guests, {})) {
    advance(guest);  // until now it held none
    runs_[guest].host.reset();
    change_speed(guest);
  }
  return is_handed_over;
}

// It trains on, beside others than before, or alone.
void Engine::change_speed(std::size_t index) {
  Run& run = runs_[index];
  if (run.phase != Phase::kTraining) return;
  advance(index);
  ++run.version;  // its end at the old pace is void
  train(index);
  if (run.join_ms >= 0) push(EventKind::kJoin, index, run.join_ms);
}

// How fast a guest and its host are is known once the guest has trained for a while.
void Engine::observe_sharing(std::size_t index) {
  const auto tell = [&](std::size_t of, std::size_t other) {
    const double part = part_of_speed(of);
    std::vector<SpeedBeside>& known = job_of(of).beside;
    const auto found = std::ranges::find(known, trace_[other].id, &SpeedBeside::job);
    changed_ = changed_ || found == known.end() || found->part != part;
    if (found != known.end())
      found->part = part;
    else
      known.push_back({trace_[other].id, part});
  };
  const auto host = runs_[index].host;
  if (!host) return;
  tell(*host, index);
  tell(index, *host);
}

}  // namespace rubato::sched::sim
