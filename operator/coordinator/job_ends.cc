// How a job begins and how it ends.
#include "common/log.h"
#include "common/planted.h"
#include "common/words.h"
#include "operator/coordinator/job_machine.h"

#include <algorithm>
#include <utility>

namespace rubato::coordinator {
namespace {
constexpr const char* kMismatch = "FingerprintMismatch";
}  // namespace

// The first generation that stands fixes how the job computes, and on which data. One that was only
// begun says nothing: its workers may have met a checkpoint that others computed. That a member
// holds a state may be heard only after the write that says that its generation trains.
void JobMachine::pin_fingerprint() {
  if (!fingerprint_.empty() || op_) return;
  for (const Member& m : record_.members) {
    const Worker* worker = member(m);
    if (worker == nullptr || !worker->standing.has_state()) continue;
    if (worker->standing.generation() != record_.generation) continue;
    fingerprint_ = worker->standing.fingerprint();
    return;
  }
}

// How the job computes, and on which data: as its record says, or, before a generation of it stood,
// as most nodes do that have said so (workers of one node are right or wrong together); of several
// the first of `keys`. Empty: nobody has spoken.
std::string JobMachine::fingerprint_of(const std::vector<WorkerKey>& keys) {
  if (!fingerprint_.empty()) return fingerprint_;
  std::map<std::string, std::size_t> nodes;
  for (const auto& [node, fingerprint] : fingerprint_of_node_) ++nodes[fingerprint];
  std::string chosen;
  for (const WorkerKey& key : keys) {
    const std::string& own = worker_of(key)->standing.fingerprint();
    if (!own.empty() && (chosen.empty() || nodes[own] > nodes[chosen])) chosen = own;
  }
  return chosen;
}

// Who computes otherwise than the job does. Who was refused for that while the job was thought to
// compute otherwise is taken back.
void JobMachine::refuse_others_than(const std::string& fingerprint) {
  if (fingerprint.empty()) return;
  const std::vector<WorkerKey> keys = living();
  for (const WorkerKey& key : keys) {
    Worker* worker = worker_of(key);
    const std::string& own = worker->standing.fingerprint();
    if (own == fingerprint && worker->refusal && worker->refusal->reason == kMismatch)
      worker->refusal.reset();
    if (worker->refusal || own.empty() || own == fingerprint) continue;
    std::string ours = "the job's first workers";
    for (const WorkerKey& other : keys)
      if (worker_of(other)->standing.fingerprint() == fingerprint)
        ours = worker_of(other)->standing.cpu();
    refuse(key, kMismatch,
           worker->standing.cpu() + " computes other bits (fingerprint " + own + ") than " + ours +
               " (fingerprint " + fingerprint + ")");
  }
}

std::vector<WorkerKey> JobMachine::ready_to_start(MonoTime now) {
  std::vector<WorkerKey> ready = ready_workers();
  std::erase_if(ready, [&](const WorkerKey& key) {
    const auto& left_out = worker_of(key)->left_out;
    const bool waits = left_out && now < left_out->retry_at;
    if (waits) wake_at(left_out->retry_at);
    return waits;
  });
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

// Does its standing say what is on disk now? An older worker (`looked` is 0) looks when it is
// configured and never again; so what it says holds until a step is committed, which may bring
// another checkpoint, or until it could not start from what it had seen. When one that a leader
// before us configured has looked is not known.
bool JobMachine::has_looked(const Worker& worker, std::uint64_t number) const {
  if (planted(Bug::kLookOnce)) return true;
  if (const std::uint64_t looked = worker.standing.looked(); looked != 0) return looked == number;
  const bool is_old = worker.configured_at ? *worker.configured_at < last_commit_ : has_trained_;
  return !is_old && !worker.start_failed;
}

// An older worker knows no Look: its next process looks. Nobody holds a state when this is asked.
// Who has taken up a Look says so before it reads the disk, which may keep it as long as it likes:
// who does not say so hangs.
void JobMachine::ask_to_look(MonoTime now, const WorkerKey& key, std::uint64_t number) {
  Worker* worker = worker_of(key);
  if (worker->standing.looked() == 0) {
    if (!worker->restart_sent)
      send_restart(key.pod_uid, *worker, "what it saw on disk is old, and its build looks once");
    return;
  }
  if (worker->asked_look == number) {
    if (worker->standing.phase_name() != "look")
      restart_unanswering(now, key, "took up no look at the checkpoints");
    return;
  }
  worker->asked_look = number;
  worker->asked_at = now;
  wire::WorkerCommand command;
  command.mutable_look()->set_number(number);
  order(key, std::move(command));
}

// Asks all who may start to look at the checkpoints now, and waits: what they saw when they were
// configured may be old. Who does not answer in time while others have done is taken from the list;
// if nobody answers, nothing is known, and nothing is begun.
bool JobMachine::all_looked(MonoTime now, std::vector<WorkerKey>& ready) {
  if (!look_since_) {
    look_since_ = now;
    // Above those that this leader asked for before its record was read anew.
    for (const WorkerKey& key : ready) {
      const std::uint64_t looked = worker_of(key)->standing.looked();
      if (looked >> 32 == record_.leader) looks_ = std::max(looks_, (looked & 0xffffffffU) >> 8);
    }
    ++looks_;
  }
  const std::uint64_t number = (record_.leader << 32) + (looks_ << 8);
  const auto is_answered = [&](const WorkerKey& key) {
    return has_looked(*worker_of(key), number);
  };
  for (const WorkerKey& key : ready)
    if (!is_answered(key)) ask_to_look(now, key, number);
  const bool all = std::ranges::all_of(ready, is_answered);
  const bool any = std::ranges::any_of(ready, is_answered);
  if (!all && (!any || now < *look_since_ + kLookDeadline)) {
    wake_at(*look_since_ + kLookDeadline);
    return false;
  }
  std::erase_if(ready, [&](const WorkerKey& key) { return !is_answered(key); });
  look_since_.reset();
  return true;
}

// The newest checkpoint that any of them can read, none if there is none. Who cannot read it, or
// reads another under its name, is taken from the list: it follows one who can. Where they differ,
// most are right.
std::optional<std::uint64_t> JobMachine::newest_checkpoint(std::vector<WorkerKey>& ready) {
  using Found = std::pair<std::uint64_t, std::uint64_t>;  // step, digest (0: not said)
  const auto found = [&](const WorkerKey& key) -> std::optional<Found> {
    const auto& s = worker_of(key)->standing;
    if (!s.has_checkpoint()) return std::nullopt;
    return Found(s.checkpoint_step(), planted(Bug::kStepsAlone) ? 0 : s.checkpoint_digest());
  };
  std::map<Found, std::size_t> readers;
  for (const WorkerKey& key : ready)
    if (const auto seen = found(key)) ++readers[*seen];
  if (readers.empty()) return std::nullopt;
  const std::uint64_t newest = readers.rbegin()->first.first;
  Found chosen{newest, 0};
  std::size_t most = 0;
  for (const auto& [seen, count] : readers)
    if (seen.first == newest && count > most) {
      chosen = seen;
      most = count;
    }
  const std::size_t all = ready.size();
  std::erase_if(ready, [&](const WorkerKey& key) {
    const auto seen = found(key);
    if (seen && seen->first == newest &&
        (seen->second == chosen.second || seen->second == 0 || chosen.second == 0))
      return false;
    note_unshared(agents_[key.pod_uid].name, agents_[key.pod_uid].node, newest);
    return true;
  });
  if (ready.size() < all)
    LOG_WARNING(kLog, "{}: {} cannot read the checkpoint of step {}", to_string(wish_.job),
                counted_of(all - ready.size(), all, "worker"), newest);
  else if (all > 1)
    show(view_.checkpoint_shared, std::optional(true));
  return newest;
}

void JobMachine::try_start(MonoTime now) {
  if (wish_.stop) return end(now, Phase::kStopped, wish_.stop_reason);
  std::vector<WorkerKey> ready = ready_to_start(now);
  if (!may_start(now, ready.size())) {
    look_since_.reset();
    return;
  }
  const std::string fingerprint = fingerprint_of(ready);
  refuse_others_than(fingerprint);
  const auto is_refused = [&](const WorkerKey& key) { return worker_of(key)->refusal.has_value(); };
  if (std::ranges::any_of(ready, is_refused)) return try_start(now);  // are the others enough?
  if (wish_.is_stateless) return start_programs(now, "start", "all begin", std::move(ready));
  if (!all_looked(now, ready)) return;
  outputs_.changed = true;
  if (++attempts_ - data_attempts_ > kAttemptsMax) {
    view_.failure_reason = "StartFailed";
    view_.failure_message = "no step was committed in " + std::to_string(kAttemptsMax) + " starts" +
                            (start_why_.empty() ? "" : ", the last one because " + start_why_);
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
  op.next.stop_steps = stop_steps();
  if (view_.step > base) {
    const auto again = static_cast<double>(view_.step - base);
    view_.recomputed_steps += view_.step - base;
    gpu_time_.move(GpuUse::kUseful, GpuUse::kFailure,
                   again * view_.step_seconds * static_cast<double>(record_.members.size()));
  }
  if (!planted(Bug::kForgetRecomputed)) record_.recomputed_steps = view_.recomputed_steps;
  view_.step = record_.step = base;
  view_.has_checkpoint = checkpoint.has_value();
  view_.checkpoint_step = base;
  view_.seq = base;  // with which all begin: it is no step that they commit
  op.form.set_generation(op.next.generation);
  op.form.set_mode(wire::FORM_START);
  op.form.set_from_checkpoint(checkpoint.has_value());
  op.form.set_checkpoint_step(base);
  op.form.set_parked(op.parked);
  op.form.set_stop_steps(op.next.stop_steps);
  for (const WorkerKey& key : workers) {
    op.next.members.push_back(as_member(key));
    add_member(op.form, worker_of(key)->standing);
  }
  // Whatever anybody still does is of the past, also who follows a donor that has no state any
  // more.
  for (const WorkerKey& key : living()) abort(key, op.next.generation);
  LOG_INFO(kLog, "{}: starts generation {} with {} {}", to_string(wish_.job), op.next.generation,
           counted(workers.size(), "worker"), op.change.reason);
  op_ = std::move(op);
  lost_all_ = false;
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
    if (wish_.is_stateless && !programs_are_gone(now)) return;
    op_->told = true;
    op_->deadline = now + patience(timing_.form_deadline);
  }
  await_formed(now);
}

// The last step is committed. What is left is the last checkpoint: one worker is enough for it, who
// joins is of no use, and no commit comes at which membership could change.
bool JobMachine::is_trained() const { return stop_steps() != 0 && view_.step >= stop_steps(); }

std::uint64_t JobMachine::stop_steps() const {
  return view_.ended_at != 0 ? view_.ended_at : wish_.stop_steps;
}

// The script has ended the job: what a member has decided all others decide, and whoever goes on
// from a checkpoint of before ends there, too, or sooner where its script says so.
void JobMachine::note_ended(const wire::WorkerStanding& standing) {
  const WorkerKey key{standing.id().pod_uid(), standing.id().slot()};
  const bool is_known = view_.ended_at != 0 && standing.step() >= view_.ended_at;
  if (is_known || standing.last().outcome() != wire::OUTCOME_ENDED || standing.step() == 0 ||
      standing.generation() < oldest_of_interest() || !is_member(key))
    return;
  LOG_INFO(kLog, "{}: its script ended it after step {}", to_string(wish_.job), standing.step());
  show(view_.ended_at, standing.step());
  has_news_ = true;
}

// The last step is committed: all who live say so, rank 0 once it has written the last checkpoint.
// Of programs each has its own part: one that is lost has not ended.
bool JobMachine::try_finish(MonoTime now) {
  const auto is_finished = [](const Worker* w) {
    return w != nullptr && w->standing.phase() == wire::WORKER_FINISHED;
  };
  const bool is_planned = op_ && op_->kind == Kind::kPlanned;
  const std::vector<Member>& members = is_planned ? op_->next.previous : record_.members;
  if (members.empty() || !is_finished(member(members.front()))) return false;
  for (const Member& m : members)
    if (member(m) == nullptr ? wish_.is_stateless : !is_finished(member(m))) return false;
  // Rank 0 of a recovery that is under way, or was cut short by the end of its leader, has finished
  // at another rank: it does not know yet that the last checkpoint is its to write.
  if (!is_planned && member(members.front())->standing.generation() != record_.generation)
    return false;
  // The stop was raised since: training goes on from here (begin_planned()), unless it is to stop
  // here anyway, behind the checkpoint that stands.
  const bool is_raised = !wish_.is_stateless && view_.step < stop_steps();
  if (is_raised && !wish_.stop) return false;
  if (is_raised) {
    end(now, Phase::kStopped, wish_.stop_reason);
    return true;
  }
  end(now, Phase::kFinished,
      view_.ended_at != 0 ? "its script ended it" : "the last step is committed");
  return true;
}

// It was a member until the switch to the planned generation. It says STOPPED as who stops does,
// and nobody has asked for a checkpoint.
bool JobMachine::has_left(const wire::WorkerStanding& standing) const {
  return op_ && op_->kind == Kind::kPlanned && standing.phase() == wire::WORKER_STOPPED &&
         !standing.last().stop() && standing.last().switch_generation() == op_->next.generation;
}

// Checkpoint, stop, and when rank 0 and all who live have stopped: retire. A step that is too long
// for that is abandoned between two micro-batches: all are aborted and formed anew to stand still,
// and from there they stop with the last committed step. So do newcomers of whom one does not
// come to stand while all others have left.
void JobMachine::advance_stop(MonoTime now) {
  if (!stop_since_) stop_since_ = now;
  if (!compare_parked()) return wake_at(*stop_since_ + wish_.grace);
  const std::vector<Member>& members =
      op_ && op_->kind == Kind::kPlanned ? op_->next.previous : record_.members;
  bool stopped = !members.empty() && (wish_.is_stateless || member(members.front()) != nullptr);
  bool computes = false;
  bool is_decided = false;  // the last step is committed; rank 0 may be writing still
  for (const Member& m : members) {
    Worker* worker = member(m);
    if (worker == nullptr) continue;
    const auto& s = worker->standing;
    if (has_left(s)) {  // those of the planned generation stop, once they stand in it
      stopped = false;
      computes = true;  // for them, who are waited for no longer than for a step
      continue;
    }
    is_decided = is_decided || s.phase() == wire::WORKER_STOPPED || s.phase_name() == "checkpoint";
    if (s.phase() == wire::WORKER_STOPPED) continue;
    stopped = false;
    computes = computes || s.phase() == wire::WORKER_TRAINING;
    if (worker->asked_stop || !agents_[m.key.pod_uid].connected) continue;
    worker->asked_stop = true;
    wire::WorkerCommand command;
    command.mutable_request()->set_checkpoint(true);
    command.mutable_request()->set_stop(true);
    command.mutable_request()->set_reason(wish_.stop_reason);
    order(m.key, std::move(command));
  }
  const MonoTime half = *stop_since_ + (planted(Bug::kAnyGrace) ? 2min : wish_.grace) / 2;
  if (stopped) return end(now, Phase::kStopped, wish_.stop_reason);
  if (computes && !is_decided && !abandons_step_ && !wish_.is_stateless && now >= half) {
    abandons_step_ = true;
    return begin_recovery(now, "Suspending", "the step takes longer than the stop has time for");
  }
  wake_at(now < half ? half : *stop_since_ + wish_.grace);
}

// The wish to stop is gone before all had stopped. Who was asked cannot be called back: it stops at
// its next commit, and all with it. So those who were asked begin a new generation now, whose Form
// ends the request; without it each generation would stop once more after one step.
void JobMachine::take_back_stop(MonoTime now) {
  if (ended_ != Phase::kWaiting) return;  // it is done; a new machine begins anew
  stop_since_.reset();
  abandons_step_ = false;
  bool was_asked = false;
  for (auto& [uid, agent] : agents_)
    for (auto& [slot, worker] : agent.workers)
      was_asked = std::exchange(worker.asked_stop, false) || was_asked;
  if (!was_asked || held_ || !view_.failure_reason.empty() || try_finish(now)) return;
  // A start or a recovery that is under way sends Forms of its own.
  if (!op_ || op_->kind == Kind::kPlanned)
    begin_recovery(now, "Resumed", "resumed before all had stopped");
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
    if (begins_again_with(uid)) continue;
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
