// How a job begins and how it ends.
#include "common/log.h"
#include "operator/coordinator/job_machine.h"

#include <algorithm>
#include <utility>

namespace rubato::coordinator {
namespace {
constexpr const char* kLog = "coordinator";
}

// The first generation pins how the arithmetic is done; who computes otherwise is refused.
void JobMachine::pin_fingerprint() {
  const auto pinned_by = [&]() -> const Worker* {
    for (const WorkerKey& key : living())
      if (!worker_of(key)->standing.fingerprint().empty()) return worker_of(key);
    return nullptr;
  }();
  if (pinned_by == nullptr) return;
  if (record_.fingerprint.empty()) {
    if (op_ || in_flight_) return;
    record_.fingerprint = pinned_by->standing.fingerprint();  // durable with the next write
  }
  for (const WorkerKey& key : living()) {
    Worker* worker = worker_of(key);
    const std::string& own = worker->standing.fingerprint();
    if (worker->refused || own.empty() || own == record_.fingerprint) continue;
    worker->refused = true;
    std::string ours = "the job's first worker";
    for (const WorkerKey& other : living())
      if (worker_of(other)->standing.fingerprint() == record_.fingerprint)
        ours = worker_of(other)->standing.cpu();
    add_failure({.pod = agents_[key.pod_uid].name,
                 .pod_uid = key.pod_uid,
                 .reason = "FingerprintMismatch",
                 .message = worker->standing.cpu() + " computes other bits than " + ours,
                 .infrastructure = false});
  }
}

std::vector<WorkerKey> JobMachine::ready_to_start() {
  std::vector<WorkerKey> ready;
  for (const WorkerKey& key : living()) {
    const Worker* worker = worker_of(key);
    const auto phase = worker->standing.phase();
    if (phase == wire::WORKER_STARTING || worker->refused || is_leaving(key.pod_uid)) continue;
    if (agents_[key.pod_uid].connected) ready.push_back(key);
  }
  return ready;
}

// Are so many enough, and was there time for the others to come? If not yet, asks to be woken.
bool JobMachine::may_start(MonoTime now, std::size_t ready) {
  std::uint32_t expected = 0;
  for (const Wish::Pod& pod : wish_.pods)
    if (!is_leaving(pod.uid)) expected += pod.slots;
  const bool enough =
      ready >= wish_.start_workers || (ready == expected && ready >= wish_.min_workers);
  if (!enough || ready == 0 || in_flight_) {
    start_since_.reset();
    return false;
  }
  if (!start_since_) start_since_ = now;
  const MonoTime settled = *start_since_ + kJoinSettle;
  const bool waits_for_more = ready < expected && now < settled;
  if (!waits_for_more && now >= start_not_before_) return true;
  wake_at(waits_for_more ? settled : start_not_before_);
  return false;
}

// The newest checkpoint that any of them can read, none if there is none. Who cannot read it is
// taken from the list: it follows one who can.
std::optional<std::uint64_t> JobMachine::newest_checkpoint(std::vector<WorkerKey>& ready) {
  std::optional<std::uint64_t> newest;
  for (const WorkerKey& key : ready) {
    const auto& s = worker_of(key)->standing;
    if (s.has_checkpoint()) newest = std::max(newest.value_or(0), s.checkpoint_step());
  }
  if (!newest) return newest;
  const std::size_t all = ready.size();
  std::erase_if(ready, [&](const WorkerKey& key) {
    const auto& s = worker_of(key)->standing;
    if (s.has_checkpoint() && s.checkpoint_step() == *newest) return false;
    note_unshared(agents_[key.pod_uid].name, agents_[key.pod_uid].node, *newest);
    return true;
  });
  if (ready.size() < all)
    LOG_WARNING(kLog, "{}: {} of {} workers cannot read the checkpoint of step {}",
                to_string(wish_.job), all - ready.size(), all, *newest);
  else if (all > 1)
    view_.checkpoint_shared = true;
  return newest;
}

void JobMachine::try_start(MonoTime now) {
  if (wish_.stop) return end(now, Phase::kStopped, wish_.stop_reason);
  std::vector<WorkerKey> ready = ready_to_start();
  if (!may_start(now, ready.size())) return;
  if (++attempts_ > kAttemptsMax) {
    view_.failure_reason = "StartFailed";
    view_.failure_message = "no step was committed in " + std::to_string(kAttemptsMax) + " starts";
    return end(now, Phase::kFailed, view_.failure_message);
  }
  start_not_before_ = now + 100ms * attempts_;
  start_since_.reset();
  const auto checkpoint = newest_checkpoint(ready);
  if (ready.size() > wish_.micro_batches) ready.resize(wish_.micro_batches);
  start(now, checkpoint, ready);
}

void JobMachine::start(MonoTime now, std::optional<std::uint64_t> checkpoint,
                       const std::vector<WorkerKey>& workers) {
  const std::uint64_t base = checkpoint.value_or(0);
  Operation op;
  op.kind = Kind::kStart;
  op.began = now;
  op.parked = workers.size() < wish_.min_workers;
  op.change.kind = "start";
  op.change.reason =
      checkpoint ? "from the checkpoint of step " + std::to_string(base) : "from the seed";
  op.change.from = static_cast<std::uint32_t>(record_.members.size());
  op.next.generation = next_generation();
  op.next.phase = name_of(Phase::kForming);
  op.next.stop_steps = wish_.stop_steps;
  if (view_.step > base) {
    const auto again = static_cast<double>(view_.step - base);
    view_.recomputed_steps += view_.step - base;
    gpu_time_.move(GpuUse::kUseful, GpuUse::kFailure,
                   again * view_.step_seconds * static_cast<double>(record_.members.size()));
  }
  view_.step = record_.step = base;
  view_.seq = 0;
  op.form.set_generation(op.next.generation);
  op.form.set_mode(wire::FORM_START);
  op.form.set_from_checkpoint(checkpoint.has_value());
  op.form.set_checkpoint_step(base);
  op.form.set_parked(op.parked);
  op.form.set_stop_steps(op.next.stop_steps);
  for (const WorkerKey& key : workers) {
    op.next.members.push_back(as_member(key));
    wire::Member& m = *op.form.add_members();
    *m.mutable_id() = worker_of(key)->standing.id();
    *m.mutable_address() = worker_of(key)->standing.listen();
    abort(key, op.next.generation);  // whatever it still does is of the past
  }
  LOG_INFO(kLog, "{}: starts generation {} with {} workers {}", to_string(wish_.job),
           op.next.generation, workers.size(), op.change.reason);
  op_ = std::move(op);
  ask_swap();
}

void JobMachine::advance_start(MonoTime now) {
  for (const Member& m : op_->next.members) {
    if (member(m) != nullptr) continue;
    LOG_INFO(kLog, "{}: {} before the start", to_string(wish_.job), why_lost(m));
    if (in_flight_) return;  // its answer belongs to this operation
    op_.reset();
    return stable(now);
  }
  ask_swap();
  if (!op_->swapped) return;
  if (!op_->told) {
    op_->told = true;
    op_->deadline = now + patience(timing_.form_deadline);
  }
  await_formed(now);
}

// The last step is committed: all who live say so, rank 0 once it has written the last checkpoint.
bool JobMachine::try_finish(MonoTime now) {
  const auto is_finished = [](const Worker* w) {
    return w != nullptr && w->standing.phase() == wire::WORKER_FINISHED;
  };
  const std::vector<Member>& members =
      op_ && op_->kind == Kind::kPlanned ? op_->next.previous : record_.members;
  if (members.empty() || !is_finished(member(members.front()))) return false;
  for (const Member& m : members)
    if (member(m) != nullptr && !is_finished(member(m))) return false;
  // A recovery that was cut short by the end of its leader: rank 0 of the record does not know yet
  // that the last checkpoint is its to write.
  if (!op_ && member(members.front())->standing.generation() != record_.generation) return false;
  end(now, Phase::kFinished, "the last step is committed");
  return true;
}

// Checkpoint, stop, and when rank 0 and all who live have stopped: retire.
void JobMachine::advance_stop(MonoTime now) {
  if (!stop_since_) stop_since_ = now;
  const std::vector<Member>& members =
      op_ && op_->kind == Kind::kPlanned ? op_->next.previous : record_.members;
  bool stopped = !members.empty() && member(members.front()) != nullptr;
  for (const Member& m : members) {
    Worker* worker = member(m);
    if (worker == nullptr) continue;
    if (worker->standing.phase() == wire::WORKER_STOPPED) continue;
    stopped = false;
    if (worker->asked_stop || !agents_[m.key.pod_uid].connected) continue;
    worker->asked_stop = true;
    wire::WorkerCommand command;
    command.mutable_request()->set_checkpoint(true);
    command.mutable_request()->set_stop(true);
    command.mutable_request()->set_reason(wish_.stop_reason);
    order(m.key, std::move(command));
  }
  if (stopped || now - *stop_since_ >= kStopDeadline)
    return end(now, Phase::kStopped, wish_.stop_reason);
  wake_at(*stop_since_ + kStopDeadline);
}

// The wish to stop is gone before all had stopped. Who was asked cannot be called back: it stops at
// its next commit, and all with it. So those who were asked begin a new generation now, whose Form
// ends the request; without it each generation would stop once more after one step.
void JobMachine::take_back_stop(MonoTime now) {
  if (ended_ != Phase::kWaiting) return;  // it is done; a new machine begins anew
  stop_since_.reset();
  bool was_asked = false;
  for (auto& [uid, agent] : agents_)
    for (auto& [slot, worker] : agent.workers)
      was_asked = std::exchange(worker.asked_stop, false) || was_asked;
  if (!was_asked || held_ || !view_.failure_reason.empty() || try_finish(now)) return;
  // A start or a recovery that is under way sends Forms of its own.
  if (!op_ || op_->kind == Kind::kPlanned) begin_recovery(now, "resumed before all had stopped");
}

void JobMachine::end(MonoTime now, Phase phase, const std::string& reason) {
  if (in_flight_) return;  // its answer first
  if (phase == Phase::kStopped && !stop_since_) stop_since_ = now;
  LOG_INFO(kLog, "{}: {}: {}", to_string(wish_.job), name_of(phase), reason);
  op_.reset();
  if (unfinished_) end_change(now, 0);  // no step comes after it
  parked_ = false;
  ended_ = phase;
  retire_since_ = now;
  retire_all(now, reason);
  write_phase(phase);
}

void JobMachine::retire_all(MonoTime now, const std::string& reason) {
  for (auto& [uid, agent] : agents_) {
    if (!agent.connected || agent.dead || wished(uid) == nullptr) continue;
    for (auto& [slot, worker] : agent.workers) {
      if (worker.retired || worker.exited) continue;
      worker.retired = true;
      wire::WorkerCommand command;
      command.mutable_retire()->set_reason(reason);
      order({uid, slot}, std::move(command));
    }
  }
  if (!retire_since_) retire_since_ = now;
}

}  // namespace rubato::coordinator
