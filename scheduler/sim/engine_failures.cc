// Nodes that fail and are repaired, and what that costs the jobs on them.
#include "common/check.h"
#include "common/words.h"
#include "scheduler/sim/engine.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace rubato::sched::sim {
namespace {

constexpr std::int64_t kFailuresMost = 10'000'000;

}  // namespace

void Engine::begin_failures() {
  if (!options_.failures) return;
  CHECK(!options_.in_lockstep);
  result_.failures = 0;
  lost_gpus_.assign(state_.nodes.size(), 0);
  uptimes_.reserve(state_.nodes.size());
  for (std::size_t node = 0; node < state_.nodes.size(); ++node) {
    uptimes_.emplace_back(*options_.failures, node);
    node_events_.push({.at_ms = uptimes_.back().next(), .node = node});
  }
}

// What happens to nodes at this instant, after all else that does.
Status Engine::handle_nodes() {
  while (!node_events_.empty() && node_events_.top().at_ms == now_) {
    const std::size_t node = node_events_.top().node;
    node_events_.pop();
    if (state_.nodes[node].schedulable)
      fail(node);
    else
      repair(node);
    changed_ = changed_ || !state_.jobs.empty();
  }
  if (result_.failures.value_or(0) <= kFailuresMost) return ok();
  return Error(
      Code::kInvalid,
      fmt::format("policy {}: nodes have failed {} times until {} ms, which is the most "
                  "that can be played, and {} done: make their mtbf longer",
                  about_.name, kFailuresMost, now_, counted_of(finished_, trace_.size(), "job")));
}

Error Engine::without_progress(const std::string& what) const {
  if (!options_.failures)
    return Error(Code::kInternal, what + "; is the round interval shorter than a restart?");
  return Error(Code::kInvalid, what + "; nodes fail too often for that: make their mtbf longer");
}

void Engine::fail(std::size_t node) {
  state_.nodes[node].schedulable = false;
  state_.nodes[node].why_not = "not ready";
  ++nodes_away_;
  node_events_.push({.at_ms = now_ + options_.failures->repair_ms, .node = node});
  if (finished_ < trace_.size()) ++*result_.failures;
  for (const std::uint32_t index : index_of_job_) lose_node(index, state_.nodes[node].id);
}

void Engine::repair(std::size_t node) {
  state_.nodes[node].schedulable = true;
  state_.nodes[node].why_not.clear();
  state_.nodes[node].free.gpus += std::exchange(lost_gpus_[node], 0);
  --nodes_away_;
  node_events_.push({.at_ms = now_ + uptimes_[node].next(), .node = node});
}

// It loses its pods there. They stay among those that it holds, as lost, until a plan writes them
// off.
void Engine::lose_node(std::size_t index, const NodeId& node) {
  if (std::ranges::none_of(job_of(index).held,
                           [&](const Held& held) { return held.stays() && held.node == node; }))
    return;
  const std::vector<std::size_t> guests = runs_[index].guests;
  for (const std::size_t guest : guests) {
    lose_node(guest, node);
    if (runs_[guest].host) give_up(guest);
  }
  advance(index);
  Run& run = runs_[index];
  Job& job = job_of(index);
  const Gpus members_before = run.training;
  lose_pods(index, node);
  ++run.version;
  const bool was_starting = run.phase == Phase::kStarting;
  const bool has_state = was_starting || (options_.costs.in_place && run.training > 0);
  if (!has_state) go_back(index);
  if (run.host || (!has_state && run.held > 0 && run.held < job.min)) return give_up(index);
  if (std::exchange(run.changed_ms, now_) != now_) ++job.restarts;
  if (run.held == 0) {
    --running_;
    run.phase = Phase::kWaiting;
    run.training = 0;
    run.join_ms = run.gives_up_ms = -1;
    job.settled = true;
    return;
  }
  if (!has_state) return begin_again(index);
  if (was_starting) run.training = run.held;  // they all start together
  go_on_without(index, members_before);
}

void Engine::lose_pods(std::size_t index, const NodeId& node) {
  Run& run = runs_[index];
  const Gpus members = run.training;
  Gpus before = 0;  // newcomers are behind those that train
  for (Held& held : job_of(index).held) {
    if (!held.stays()) continue;
    const bool is_member = before < members;
    before += held.gpus;
    if (held.node != node) continue;
    held.lost = true;
    run.held -= held.gpus;
    if (is_member) run.training -= held.gpus;
    if (run.host) continue;
    held_ -= held.gpus;
    result_.freed_ms = now_;
    lost_gpus_[node_of_.at(node)] += held.gpus;
  }
}

// Those that are left have the state, or begin with it as they would have.
void Engine::go_on_without(std::size_t index, Gpus members_before) {
  Run& run = runs_[index];
  Job& job = job_of(index);
  if (run.training == run.held) run.join_ms = -1;
  if (run.held < job.min && run.gives_up_ms < 0) {
    run.gives_up_ms = now_ + options_.costs.park_ms;
    push(EventKind::kGivesUp, index, run.gives_up_ms);
  }
  if (run.phase != Phase::kStarting) {
    job.allocated_ms = now_;
    if (run.phase == Phase::kTraining && run.training == members_before)
      return change_speed(index);  // newcomers were lost, and nobody waited for them
    if (run.training < members_before) {
      job.settled = !about_.elastic;
      stall(run, options_.costs.loss_ms);
    }
  }
  if (run.phase != Phase::kParked) push(EventKind::kReady, index, run.until_ms);
  if (run.join_ms >= 0) push(EventKind::kJoin, index, run.join_ms);
}

// From the last checkpoint, on what is left.
void Engine::begin_again(std::size_t index) {
  Run& run = runs_[index];
  Job& job = job_of(index);
  ++result_.jobs[index].restarts;
  job.allocated_ms = now_;
  job.settled = !about_.elastic;
  run.phase = Phase::kStarting;
  run.training = run.held;
  run.join_ms = -1;
  run.until_ms = now_ + options_.costs.restart_ms;
  push(EventKind::kReady, index, run.until_ms);
}

void Engine::go_back(std::size_t index) {
  Run& run = runs_[index];
  run.left = run.saved_left;
  result_.jobs[index].lost_gpu_ms += run.unsaved_gpu_ms;
  save(index);
  tell_times(index);
}

// Gives back what it has left, and waits.
void Engine::give_up(std::size_t index) {
  const std::vector<std::size_t> guests = runs_[index].guests;
  for (const std::size_t guest : guests) give_up(guest);
  advance(index);
  Run& run = runs_[index];
  std::vector<Held>& pods = job_of(index).held;
  for (Held& held : pods) {
    if (!held.stays()) continue;
    release(index, held);
    held.leaving = true;
  }
  const bool is_free_at_once = options_.costs.release_ms == 0 || run.host;
  std::erase_if(pods,
                [&](const Held& held) { return held.lost || (held.leaving && is_free_at_once); });
  ++run.version;
  run.held = 0;
  --running_;
  save(index);
  wait_again(index);
}

// Its state is written.
void Engine::save(std::size_t index) {
  Run& run = runs_[index];
  run.saved_left = run.left;
  run.unsaved_ms = 0;
  run.unsaved_gpu_ms = 0;
}

// It has trained for so long, at its rate, up to now.
void Engine::count_unsaved(Run& run, TimeMs passed) const {
  if (!options_.failures) return;
  const TimeMs every_ms = options_.failures->checkpoint_ms;
  const Gpus gpus = run.host ? 0 : run.training;  // those of a guest are its host's
  run.unsaved_ms += passed;
  run.unsaved_gpu_ms += gpus * passed;
  if (run.unsaved_ms < every_ms) return;
  run.unsaved_ms %= every_ms;
  run.unsaved_gpu_ms = gpus * run.unsaved_ms;
  run.saved_left = run.left + run.rate * run.unsaved_ms;
}

}  // namespace rubato::sched::sim
