// What a JobMachine asks for: orders to workers, writes of the record, failures told.
#include "common/log.h"
#include "operator/coordinator/job_machine.h"

#include <algorithm>

namespace rubato::coordinator {

std::string Send::frame() const {
  std::string bytes = message.SerializeAsString();
  if (rest) bytes += *rest;
  return bytes;
}

void JobMachine::order(const WorkerKey& key, wire::WorkerCommand command) {
  const Worker* worker = worker_of(key);
  if (worker == nullptr) return;
  wire::CoordinatorMessage message;
  *message.mutable_order()->mutable_id() = worker->standing.id();
  *message.mutable_order()->mutable_command() = std::move(command);
  outputs_.sends.push_back({key.pod_uid, std::move(message), nullptr});
}

// A Form names all members: told to each, it would be as large as their number squared. Who knows
// those of the generation that stood is told what changes from there, and its own share; who could
// not use that is told all.
void JobMachine::tell_form(const WorkerKey& key, std::size_t rank) {
  Worker* worker = worker_of(key);
  const std::uint64_t known = worker->standing.members_of();
  const bool may_know = known != 0 && known == formed_generation_ && !op_->is_unlike;
  if (may_know && !op_->told_change) {
    wire::CoordinatorMessage part;
    wire::Form& form = *part.mutable_order()->mutable_command()->mutable_form();
    form = op_->form;
    op_->is_unlike = !wire::name_change(form, formed_generation_, formed_members_);
    op_->told_change = std::make_shared<const std::string>(part.SerializeAsString());
  }
  worker->told_change = may_know && !op_->is_unlike;
  wire::CoordinatorMessage message;
  wire::WorkerOrder& order = *message.mutable_order();
  *order.mutable_id() = worker->standing.id();
  if (worker->told_change) {
    if (rank < static_cast<std::size_t>(op_->form.shares_size()))
      *order.mutable_command()->mutable_form()->mutable_share() =
          op_->form.shares(static_cast<int>(rank));
    outputs_.sends.push_back({key.pod_uid, std::move(message), op_->told_change});
    return;
  }
  if (!op_->told_form) {
    wire::CoordinatorMessage part;
    *part.mutable_order()->mutable_command()->mutable_form() = op_->form;
    op_->told_form = std::make_shared<const std::string>(part.SerializeAsString());
  }
  outputs_.sends.push_back({key.pod_uid, std::move(message), op_->told_form});
}

// It heard the Form of that generation, over this connection, and could use it.
bool JobMachine::is_told(const Worker& worker, std::uint64_t generation) const {
  const bool needs_all = worker.told_change && worker.standing.members_of() == 0;
  return worker.form_generation >= generation && !needs_all;
}

void JobMachine::note_formed(std::uint64_t generation, const std::vector<Member>& members) {
  formed_generation_ = generation;
  formed_members_.Clear();
  for (const Member& m : members) {
    wire::WorkerId& id = *formed_members_.Add()->mutable_id();
    id.set_pod_uid(m.key.pod_uid);
    id.set_slot(m.key.slot);
    id.set_incarnation(m.incarnation);
  }
}

void JobMachine::restart(const WorkerKey& key, const std::string& reason, bool infrastructure) {
  Worker* worker = worker_of(key);
  if (worker == nullptr || worker->restart_sent) return;  // its end is on the way
  if (!agents_[key.pod_uid].connected) return;  // nobody hears it: it is dead, or back, in a moment
  const bool counted = worker->restart_ordered == worker->standing.id().incarnation();
  send_restart(key.pod_uid, *worker, reason);
  if (counted) return;
  add_failure({.pod = agents_[key.pod_uid].name,
               .pod_uid = key.pod_uid,
               .reason = "Stuck",
               .message = reason,
               .infrastructure = infrastructure});
}

void JobMachine::send_restart(const std::string& pod_uid, Worker& worker,
                              const std::string& reason) {
  const wire::WorkerId& id = worker.standing.id();
  worker.restart_sent = true;
  worker.restart_ordered = id.incarnation();
  LOG_WARNING(kLog, "{}: restarts worker {}: {}", to_string(wish_.job),
              to_string(WorkerKey{pod_uid, id.slot()}), reason);
  wire::CoordinatorMessage message;
  *message.mutable_restart_worker()->mutable_id() = id;
  message.mutable_restart_worker()->set_reason(reason);
  outputs_.sends.push_back({pod_uid, std::move(message), nullptr});
}

void JobMachine::abort(const WorkerKey& key, std::uint64_t below) {
  Worker* worker = worker_of(key);
  if (worker == nullptr || worker->abort_below >= below) return;
  if (!agents_[key.pod_uid].connected) return;  // it is told when it is back
  worker->abort_below = below;
  worker->asked_at = passed_;
  wire::WorkerCommand command;
  command.mutable_abort()->set_below(below);
  order(key, std::move(command));
}

void JobMachine::ask_swap() {
  if (in_flight_ || op_->swap_asked) return;
  op_->swap_asked = true;
  op_->next.leader = record_.leader;
  op_->next.seq = record_.seq + 1;
  op_->next.step = std::max(record_.step, view_.step);
  op_->next.fingerprint = fingerprint_;
  op_->next.recomputed_steps = record_.recomputed_steps;
  op_->next.ended_at = view_.ended_at;
  op_->next.failures = view_.failure_count;
  op_->next.crashes = crashes_;
  op_->next.rescales = view_.rescales + (unfinished_ && is_rescale(*unfinished_) ? 1 : 0) +
                       (is_rescale(op_->change) ? 1 : 0);
  in_flight_ = op_->next;
  outputs_.swap = in_flight_;
}

// A new word for the phase only; an operation writes its own.
void JobMachine::write_phase(Phase phase) {
  if (in_flight_ || op_ || record_.generation == 0 || record_.phase == name_of(phase)) return;
  // It may have come to stand when its operation was given up: all were lost, and one came back.
  if (phase == Phase::kTraining) {
    const std::uint64_t open = unfinished_ && is_rescale(*unfinished_) ? 1 : 0;
    show(view_.rescales,
         std::max(view_.rescales, record_.rescales - std::min(record_.rescales, open)));
  }
  Record next = record_;
  next.phase = name_of(phase);
  next.previous.clear();
  write(std::move(next));
}

// What no operation writes soon: failures of workers that no generation had, or will miss, how the
// job computes when that is known only after its first generation was written, and where its script
// ended it.
void JobMachine::write_news() {
  if (in_flight_ || op_) return;
  if (record_.failures != view_.failure_count || record_.fingerprint != fingerprint_ ||
      record_.ended_at != view_.ended_at)
    write(record_);
}

void JobMachine::write(Record next) {
  next.step = std::max(record_.step, view_.step);
  next.failures = view_.failure_count;
  next.fingerprint = fingerprint_;
  next.ended_at = view_.ended_at;
  next.crashes = crashes_;
  ++next.seq;
  in_flight_ = std::move(next);
  outputs_.swap = in_flight_;
}

void JobMachine::wake_at(MonoTime time) { next_tick_ = std::min(next_tick_, time); }

void JobMachine::add_failure(PodFailure failure, std::uint64_t times) {
  LOG_WARNING(kLog, "{}: {} {}: {}", to_string(wish_.job), failure.pod, failure.reason,
              failure.message);
  if (!failure.infrastructure) view_.failure_count += times;
  view_.failures.push_back(std::move(failure));
  ++failures_since_commit_;
  if (view_.failures.size() > kFailuresKept) view_.failures.erase(view_.failures.begin());
  outputs_.changed = true;
}

}  // namespace rubato::coordinator
