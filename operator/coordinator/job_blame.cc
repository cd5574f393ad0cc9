// Who hangs: whom to restart when a generation brings no step. Links: job_links.cc.
#include "operator/coordinator/job_machine.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace rubato::coordinator {
namespace {

constexpr int kPatienceDoublings = 4;
// Places of a step at which a worker may be waiting for any of the others.
constexpr std::array<std::string_view, 4> kWaitsAt = {"form", "compare", "reduce", "commit"};

Duration seconds(double s) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(s));
}

}  // namespace

// Its process ended by itself, or its pod is gone: no deadline of ours has said so.
bool JobMachine::has_ended(const Member& m) {
  if (member(m) != nullptr) return false;
  if (wished(m.key.pod_uid) == nullptr) return true;
  const Agent* agent = agent_of(m.key.pod_uid);
  if (agent == nullptr || agent->dead) return false;
  const auto worker = agent->workers.find(m.key.slot);
  return worker != agent->workers.end() && worker->second.exited && !worker->second.restart_sent;
}

// How long a worker may take: longer where steps are long, and twice as long after each alarm since
// the last step. A false one can cost the job its only copy of the state; it must not repeat
// itself.
Duration JobMachine::patience(Duration floor) const {
  const Duration by_step = seconds(timing_.progress_factor * view_.step_seconds);
  return std::max(floor, by_step) * (1 << std::min(alarms_, kPatienceDoublings));
}

// Heartbeats come, and it does not get ready: nobody waits for it, but its GPU is idle.
void JobMachine::restart_unready(MonoTime now) {
  for (const WorkerKey& key : living()) {
    const Worker* worker = worker_of(key);
    if (worker->standing.phase() != wire::WORKER_STARTING || worker->refusal) continue;
    const MonoTime due = worker->progress_at + timing_.start_deadline;
    if (now < due)
      wake_at(due);
    else
      restart(key, "did not get ready");
  }
}

// Heartbeats come, and it does not answer what no operation waits for: the same.
void JobMachine::restart_unanswering(MonoTime now, const WorkerKey& key,
                                     const std::string& reason) {
  const MonoTime due = worker_of(key)->asked_at + timing_.start_deadline;
  if (now < due)
    wake_at(due);
  else
    restart(key, reason);
}

// Heartbeats come, steps do not: the worker that is not waiting for another is the one that hangs.
void JobMachine::blame_the_stuck(MonoTime now) {
  if (parked_) return;
  bool stepped = false;  // has anybody finished a step in its present process?
  for (const Member& m : record_.members) {
    const Worker* worker = member(m);
    stepped = stepped || worker->standing.step_seconds() > 0;
    quiet_since_ = std::max(quiet_since_, worker->progress_at);
  }
  const Duration limit = patience(stepped ? timing_.progress_floor : timing_.first_step);
  if (now - quiet_since_ < limit) return wake_at(quiet_since_ + limit);
  quiet_since_ = now;
  std::vector<WorkerKey> laggards;
  for (const Member& m : record_.members) {
    const std::string& at = member(m)->standing.phase_name();
    if (std::ranges::find(kWaitsAt, at) == kWaitsAt.end()) laggards.push_back(m.key);
  }
  const bool some = !laggards.empty() && laggards.size() < record_.members.size();
  if (some) {
    for (const WorkerKey& key : laggards) restart(key, "no progress while the others wait for it");
  } else if (!stuck_once_) {
    stuck_once_ = true;  // links that lose all without a word, perhaps
    suspect_since_ = now - kSuspectSettle;
    suspect_cause_ = "Stuck";
    suspect_why_ = "no progress in generation " + std::to_string(record_.generation);
    recover_links(now);
  } else {
    // Nothing tells who hangs. Never all who hold the state, but the only one: half of them at a
    // time, so that a hang among many is found in few attempts.
    stuck_once_ = false;
    const std::size_t size = record_.members.size();
    for (std::size_t i = size == 1 ? 0 : (size + 1) / 2; i < size; ++i)
      restart(record_.members[i].key, "no progress, twice");
  }
}

}  // namespace rubato::coordinator
