#include "worker/agent/worker_slot.h"

#include "worker/agent/agent.h"

#include <algorithm>
#include <csignal>

namespace rubato::worker {

void WorkerSlot::begin(const std::string& pod_uid, std::uint32_t index, bool is_alive) {
  ++incarnation;
  start_at.reset();
  alive = is_alive;
  ordered = is_to_retire = false;
  lasting_failure.reset();
  last_failure.clear();
  standing = wire::WorkerStanding();
  standing.mutable_id()->set_pod_uid(pod_uid);
  standing.mutable_id()->set_slot(index);
  standing.mutable_id()->set_incarnation(incarnation);
  standing.set_phase(wire::WORKER_STARTING);
}

void WorkerSlot::end() {
  alive = false;
  wire::WorkerId id = standing.id();
  standing = wire::WorkerStanding();
  *standing.mutable_id() = std::move(id);
  standing.set_phase(wire::WORKER_STARTING);
}

// One that lives may have gone on to another generation since.
bool WorkerSlot::has_lasting_failure() const {
  return lasting_failure &&
         (!alive || lasting_failure->standing().generation() == standing.generation());
}

void WorkerSlot::plan_restart(MonoTime now) {
  ++restarts;
  Duration wait = 0ms;
  for (int i = 1; i < restarts && wait < kRestartBackoffMost; ++i)
    wait = std::max<Duration>(wait * 2, kRestartBackoffFirst);
  start_at = now + std::min<Duration>(wait, kRestartBackoffMost);
}

bool WorkerSlot::may_restart() const { return !failed && restarts < kRestartsMax; }

wire::WorkerEvent WorkerSlot::missing_program(const std::string& why) const {
  wire::WorkerEvent event;
  *event.mutable_standing() = standing;
  wire::Failure& failure = *event.mutable_failure();
  failure.set_reason("InvalidCommand");
  failure.set_message(why);
  failure.set_permanent(true);
  failure.set_scope(wire::FAILURE_SCOPE_WORKER);
  return event;
}

wire::Exited WorkerSlot::exited(const HostEvent& end, bool is_restarted) const {
  wire::Exited exited;
  *exited.mutable_id() = standing.id();
  exited.set_exit_code(end.exit_code);
  exited.set_signal(end.signal);
  exited.set_reason(reason_of(end));
  exited.set_restarting(is_restarted);
  // Of one that was killed the last line says nothing of why.
  const bool is_by_itself = end.exit_code > 0 || end.signal == SIGABRT;
  exited.set_message(last_failure.empty() && is_by_itself ? end.last_words : last_failure);
  return exited;
}

const char* reason_of(const HostEvent& end) {
  if (end.signal == SIGKILL) return "Killed";
  if (end.signal != 0) return "Crash";
  return end.exit_code == 0 ? "Retired" : "Error";
}

}  // namespace rubato::worker
