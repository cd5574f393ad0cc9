// Jobs whose workers hold no state: a person's program is ended and started again, with its new
// ranks, whenever members are lost, come or leave. All programs of a generation are gone before one
// of the next begins, so that no two write what only one may.
#include "common/log.h"
#include "common/words.h"
#include "operator/coordinator/job_machine.h"

#include <algorithm>
#include <utility>

namespace rubato::coordinator {

// Whoever stays starts again at once; below min_workers all stand still until others come. Where
// nobody stays, programs of leavers end all the same, and the job begins as it did at first.
void JobMachine::restart_programs(MonoTime now, const std::string& kind,
                                  const std::string& reason) {
  if (in_flight_) return;  // its answer first
  std::vector<WorkerKey> workers = ready_workers();
  if (workers.empty()) {
    op_.reset();
    for (const WorkerKey& key : living()) abort(key, record_.generation + 1);
    return try_start(now);
  }
  // Whose process ended and is on its way back is taken along.
  if (!start_since_) start_since_ = now;
  const MonoTime due =
      std::max(start_not_before_, more_soon() ? *start_since_ + kRestartSettle : now);
  if (now < due) return wake_at(due);
  start_programs(now, kind, reason, std::move(workers));
}

// Is there a pod with us whose workers are not all ready?
bool JobMachine::more_soon() {
  return std::ranges::any_of(wish_.pods, [&](const Wish::Pod& pod) {
    const Agent* agent = agent_of(pod.uid);
    if (agent == nullptr || !agent->connected || is_leaving(pod.uid)) return false;
    const auto count = std::ranges::count_if(agent->workers, [](const auto& entry) {
      const Worker& worker = entry.second;
      return worker.refusal || (!worker.exited && worker.standing.phase() != wire::WORKER_STARTING);
    });
    return count < pod.slots;
  });
}

void JobMachine::start_programs(MonoTime now, const std::string& kind, const std::string& reason,
                                std::vector<WorkerKey> workers) {
  outputs_.changed = true;
  if (++attempts_ > kAttemptsMax) {
    view_.failure_reason = "StartFailed";
    view_.failure_message = "no program ran for a while in " + std::to_string(kAttemptsMax) +
                            " starts, the last one because " + reason;
    return end(now, Phase::kFailed, view_.failure_message);
  }
  start_not_before_ = now + 100ms * attempts_;
  start_since_.reset();
  join_since_.reset();
  suspect_since_.reset();
  program_failed_.reset();
  if (workers.size() > wish_.micro_batches) workers.resize(wish_.micro_batches);
  Operation op;
  op.kind = Kind::kStart;
  op.began = now;
  op.deadline = now + kProgramEndLimit;
  op.parked = workers.size() < wish_.min_workers;
  op.change.kind = kind;
  op.change.reason = reason;
  op.change.from = static_cast<std::uint32_t>(record_.members.size());
  op.next.generation = next_generation();
  op.next.phase = name_of(Phase::kForming);
  op.form.set_generation(op.next.generation);
  op.form.set_mode(wire::FORM_START);
  op.form.set_parked(op.parked);
  for (const WorkerKey& key : workers) op.next.members.push_back(as_member(key));
  view_.seq = 0;  // counted anew by each generation
  LOG_INFO(kLog, "{}: generation {} with {}: {}", to_string(wish_.job), op.next.generation,
           counted(workers.size(), "worker"), reason);
  op_ = std::move(op);
  for (const WorkerKey& key : living()) abort(key, op_->next.generation);
  ask_swap();
}

// Has everybody who lives answered the Abort, which it does when its program is gone? Then the Form
// can be made: each generation has an address of its own to meet at.
bool JobMachine::programs_are_gone(MonoTime now) {
  bool all = true;
  for (const WorkerKey& key : living()) {
    Worker* worker = worker_of(key);
    if (worker->refusal || worker->standing.phase() == wire::WORKER_STARTING) continue;
    abort(key, op_->next.generation);  // who has come back meanwhile
    if (worker->settled_below >= op_->next.generation) continue;
    all = false;
    if (now < op_->deadline || !agents_[key.pod_uid].connected) continue;
    restart(key, "its program did not end");
    worker->exited = true;  // until it says hello anew
  }
  if (!all) {
    wake_at(op_->deadline);
    return false;
  }
  for (const Member& m : op_->next.members) add_member(op_->form, member(m)->standing);
  return true;
}

// A program fails a moment after a member of its group was lost, and before we know of that. So a
// failure is charged once all members were heard since, and never where one is lost.
bool JobMachine::await_all_heard(MonoTime now) {
  if (program_failed_->generation != record_.generation) {
    program_failed_.reset();
    return true;
  }
  for (const Member& m : record_.members) {
    const Agent* agent = agent_of(m.key.pod_uid);
    const bool is_lost = member(m) == nullptr || agent == nullptr;
    if (is_lost) {
      program_failed_.reset();
      return true;
    }
    if (agent->connected && agent->last_seen > program_failed_->at) continue;
    wake_at(now + timing_.heartbeat / 4);
    return false;
  }
  const PodFailure failure = std::exchange(program_failed_, std::nullopt)->failure;
  add_failure(failure);
  begin_recovery(now, failure.reason, "pod " + failure.pod + ": " + failure.message);
  return false;
}

// Newcomers are taken along, and leavers left behind.
void JobMachine::change_programs(MonoTime now) {
  std::vector<WorkerKey> joiners;
  for (const WorkerKey& key : ready_workers()) {
    const bool has_room = record_.members.size() + joiners.size() < wish_.micro_batches;
    if (has_room && !is_member(key)) joiners.push_back(key);
  }
  std::vector<Member> leavers;
  for (const Member& m : record_.members)
    if (is_leaving(m.key.pod_uid)) leavers.push_back(m);
  const std::size_t size = record_.members.size() - leavers.size() + joiners.size();
  if (joiners.empty()) join_since_.reset();
  if (joiners.empty() && leavers.empty()) return;
  if (parked_ && size < wish_.min_workers) return;
  if (!joiners.empty() && leavers.empty()) {
    if (!join_since_) join_since_ = now;
    const Duration settle = more_soon() ? 4 * kRestartSettle : kRestartSettle;
    if (now < *join_since_ + settle) return wake_at(*join_since_ + settle);
  }
  restart_programs(now, joiners.empty() ? "leave" : "join",
                   joiners.empty() ? "pod " + leavers.front().pod + " leaves"
                                   : "pod " + as_member(joiners.front()).pod + " joins");
}

}  // namespace rubato::coordinator
