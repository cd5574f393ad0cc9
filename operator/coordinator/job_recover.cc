// Recovery: abort, swap the record, level, form.
#include "common/log.h"
#include "common/planted.h"
#include "common/words.h"
#include "operator/coordinator/job_machine.h"
#include "operator/coordinator/recovery_plan.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>

namespace rubato::coordinator {
namespace {

wire::Form form_of(std::uint64_t generation, wire::FormMode mode) {
  wire::Form form;
  form.set_generation(generation);
  form.set_mode(mode);
  return form;
}

double seconds_between(MonoTime from, MonoTime to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

void add_member(wire::Form& form, const wire::WorkerStanding& standing) {
  const bool is_first = form.members_size() == 0;
  const bool all_others = is_first || form.compare_states();
  wire::Member& member = *form.add_members();
  *member.mutable_id() = standing.id();
  *member.mutable_address() = standing.listen();
  form.set_compare_states(all_others && standing.compares_states());
  if (is_first || form.collective() != standing.collective())
    form.set_collective(is_first ? standing.collective() : "");
}

bool JobMachine::any_state(const std::vector<WorkerKey>& workers) {
  return std::any_of(workers.begin(), workers.end(),
                     [&](const WorkerKey& key) { return worker_of(key)->standing.has_state(); });
}

// Who is asked to go on: those of the record, then, while it was changing, those before it; leavers
// only when no other has the state, anybody who has it when they have not.
std::vector<WorkerKey> JobMachine::ask_for_state(bool with_joiners) {
  std::vector<WorkerKey> asked;
  const auto is_asked = [&](const WorkerKey& key) {
    return std::find(asked.begin(), asked.end(), key) != asked.end();
  };
  const auto ask = [&](const std::vector<Member>& members, bool leavers) {
    for (const Member& m : members) {
      const Worker* worker = member(m);
      if (worker == nullptr || is_asked(m.key)) continue;
      if (is_leaving(m.key.pod_uid) == leavers) asked.push_back(m.key);
    }
  };
  ask(record_.members, false);
  ask(record_.previous, false);
  if (!any_state(asked)) {
    ask(record_.members, true);
    ask(record_.previous, true);
  }
  for (const WorkerKey& key : living()) {
    Worker* worker = worker_of(key);
    const bool is_last = !any_state(asked);
    const bool joins = with_joiners && worker->caught_up && !is_leaving(key.pod_uid);
    if (!is_last && (!joins || worker->refusal)) continue;
    if (is_asked(key) || !worker->standing.has_state()) continue;
    worker->refusal.reset();  // the last one with the state is not refused whatever it says
    asked.push_back(key);
  }
  if (const auto ahead = ahead_of(asked)) asked.insert(asked.begin(), *ahead);
  return asked;
}

// Who has answered the Abort of this recovery and knows a decided round that none of `asked` does:
// a follower, when all whose rounds it took are lost, and those who were to join with it are
// behind; or a leaver, when those who were to go on without it have not heard of its last round.
std::optional<WorkerKey> JobMachine::ahead_of(const std::vector<WorkerKey>& asked) {
  if (!op_ || op_->kind != Kind::kRecover || planted(Bug::kDropRound)) return std::nullopt;
  std::optional<WorkerKey> ahead;
  std::uint64_t newest = 0;
  for (const WorkerKey& key : asked)
    if (const Worker* worker = worker_of(key); worker->standing.has_state())
      newest = std::max(newest, worker->standing.seq());
  for (const WorkerKey& key : living()) {
    const Worker* worker = worker_of(key);
    const auto& s = worker->standing;
    const bool stands_still = worker->settled_below >= op_->next.generation;
    if (!s.has_state() || s.seq() <= newest || !stands_still || worker->refusal ||
        worker->left_out || worker->retired)
      continue;
    newest = s.seq();
    ahead = key;
  }
  return ahead;
}

// Lost to the leader before us, or meanwhile. While nobody has found us that says nothing of
// anyone.
void JobMachine::note_never_back(const Member& m) {
  const bool unfound = taking_over_ && !first_back_;
  if (unfound || wished(m.key.pod_uid) == nullptr) return;
  if (!never_back_.insert(m.key.pod_uid).second) return;
  add_failure({.pod = m.pod,
               .pod_uid = m.key.pod_uid,
               .reason = "AgentLost",
               .message = why_lost(m),
               .infrastructure = true});
}

// What happened to the first member that is lost, or else what failed since the last commit.
std::string JobMachine::cause_of_loss() {
  for (const auto* members : {&record_.members, &record_.previous})
    for (const Member& m : *members) {
      if (member(m) != nullptr) continue;
      if (const Worker* worker = worker_of(m.key); worker != nullptr && worker->refusal)
        return worker->refusal->reason;
      if (wished(m.key.pod_uid) == nullptr) return "PodDeleted";
      const auto failure =
          std::find_if(view_.failures.rbegin(), view_.failures.rend(),
                       [&](const PodFailure& failed) { return failed.pod_uid == m.key.pod_uid; });
      return failure != view_.failures.rend() ? failure->reason : "Crash";
    }
  const bool has_failed = failures_since_commit_ > 0 && !view_.failures.empty();
  return has_failed ? view_.failures.back().reason : "";
}

// A recovery that begins again keeps its cause, unless another is known.
void JobMachine::note_cause(std::string_view given) {
  const bool is_again = op_ && op_->kind == Kind::kRecover;
  const std::string cause = given.empty() ? cause_of_loss() : std::string(given);
  if (!cause.empty())
    show(view_.recovers_from, cause);
  else if (!is_again && !parked_)
    show(view_.recovers_from, std::string("Stuck"));  // somebody stands still, and says no more
}

// Links and workers that fail are recovered from at once; when no step came of it, in a while.
MonoTime JobMachine::suspect_due() const {
  const MonoTime settled = *suspect_since_ + kSuspectSettle;
  const bool is_to_stop = wish_.stop && !stop_since_;
  if (!first_attempt_ || is_to_stop) return settled;
  Duration pause = kRecoveryPause;
  for (int i = 1; i < attempts_ && pause < kRecoveryPauseMost; ++i) pause *= 2;
  return std::max<MonoTime>(settled, last_attempt_ + std::min(pause, kRecoveryPauseMost));
}

// Counts one more. True: there were too many without a commit, which view_ has as the failure.
bool JobMachine::is_last_attempt_over(MonoTime now, const std::string& reason) {
  ++attempts_;
  last_attempt_ = now;
  if (!first_attempt_) first_attempt_ = now;
  const bool is_of_data = view_.recovers_from.starts_with("Data");
  if (is_of_data) ++data_attempts_;
  const int others = attempts_ - data_attempts_;
  if (is_of_data ? now - *first_attempt_ < kDataGiveUp : others <= kAttemptsMax) return false;
  if (wish_.stop) return false;  // the grace ends it; until then its checkpoint may be written
  view_.failure_reason = is_of_data ? view_.recovers_from : "RecoveryFailed";
  view_.failure_message = is_of_data ? "no step was committed for 30 minutes: " + reason
                                     : "no step was committed in " + std::to_string(kAttemptsMax) +
                                           " recoveries, the last one because " + reason;
  return true;
}

void JobMachine::begin_recovery(MonoTime now, std::string_view cause, const std::string& reason,
                                bool with_joiners) {
  note_cause(cause);
  if (wish_.is_stateless) return restart_programs(now, "recover", reason);
  // Those of a node fall silent one after the other: what is seen while the others still have their
  // time to answer is the same alarm.
  const bool is_same = op_ && op_->kind == Kind::kRecover && now < op_->deadline;
  const bool lost_one_more =
      op_ && op_->kind == Kind::kRecover &&
      std::ranges::any_of(op_->next.members, [&](const Member& m) { return member(m) == nullptr; });
  const auto ended = [&](const Member& m) { return has_ended(m); };
  const bool is_known = is_same || lost_all_;
  if (!is_known && std::ranges::none_of(record_.members, ended)) ++alarms_;
  Operation op;
  op.kind = Kind::kRecover;
  op.began = now;
  op.deadline = now + patience(timing_.standing_deadline);
  // A recovery that starts again inherits the story of the first.
  if (op_ && op_->kind == Kind::kRecover) {
    op.began = op_->began;
    op.change = op_->change;
  } else {
    op.change.kind = with_joiners ? "join" : "recover";
    op.change.reason = reason;
    op.change.from = static_cast<std::uint32_t>(record_.members.size());
    MonoTime sign = std::max(last_commit_, formed_at_);
    for (const Member& m : record_.members) {
      if (member(m) != nullptr) continue;
      if (const Agent* agent = agent_of(m.key.pod_uid))
        sign = std::max(sign, agent->last_seen);
      else
        note_never_back(m);
    }
    op.change.detect_seconds = std::max(0.0, seconds_between(sign, now));
    gpu_time_.lose_open_step();  // as far as it had come, and the time until this was seen
  }
  std::vector<WorkerKey> asked = ask_for_state(with_joiners);
  suspect_since_.reset();
  probing_.reset();
  join_since_.reset();
  const std::vector<Member> left_out = take_left_out(asked);
  if (asked.size() > wish_.micro_batches) asked.resize(wish_.micro_batches);
  lost_all_ = !any_state(asked);
  if (lost_all_) {  // nobody holds the job any more: it starts from a checkpoint
    op_.reset();
    if (start_why_.empty()) start_why_ = reason;
    return try_start(now);
  }
  // Nor are those of a rack, who go one after the other before the rest has been told, attempts of
  // their own.
  const bool is_same_attempt = lost_one_more && now < last_attempt_ + timing_.standing_deadline;
  outputs_.changed = true;
  if (!is_same_attempt && is_last_attempt_over(now, reason))
    return end(now, Phase::kFailed, view_.failure_message);
  op.next.generation = next_generation();
  op.next.phase = name_of(Phase::kRecovering);
  op.next.stop_steps = stop_steps();
  for (const WorkerKey& key : asked) op.next.members.push_back(as_member(key));
  op.next.previous = left_out;  // to be asked by a leader that comes after, too
  for (Member& m : leavers_beside(asked)) op.next.previous.push_back(std::move(m));
  LOG_INFO(kLog, "{}: generation {} with {}: {}", to_string(wish_.job), op.next.generation,
           counted_of(asked.size(), record_.members.size(), "worker"), reason);
  op_ = std::move(op);
  for (const WorkerKey& key : living()) {
    worker_of(key)->caught_up = false;
    abort(key, op_->next.generation);
  }
  ask_swap();
  advance_recovery(now);
}

void JobMachine::advance_recovery(MonoTime now) {
  for (const Member& m : op_->next.members) {
    if (member(m) != nullptr) continue;
    // It died meanwhile. The record names it already, or is about to: once more, without it.
    return begin_recovery(now, "", why_lost(m));
  }
  if (op_->told) return await_formed(now);
  if (op_->swapped && op_->written == MonoTime{}) op_->written = now;
  ask_swap();  // when a write of before was still under way
  for (const auto* members : {&op_->next.members, &op_->next.previous})
    for (const Member& m : *members) abort(m.key, op_->next.generation);  // reconnected ones
  if (!all_answered(now)) return;
  if (op_->answered == MonoTime{}) op_->answered = now;
  if (op_->swapped || planted(Bug::kFormUnwritten)) form_recovery(now);
}

bool JobMachine::all_answered(MonoTime now) {
  std::vector<WorkerKey> silent;
  for (const Member& m : op_->next.members)
    if (member(m)->settled_below < op_->next.generation) silent.push_back(m.key);
  // Who is left out, or leaves, may have decided the open round: waited for, and not more.
  const bool is_heard =
      now >= op_->deadline || std::ranges::all_of(op_->next.previous, [&](const Member& m) {
        const Worker* worker = member(m);
        return worker == nullptr || worker->settled_below >= op_->next.generation;
      });
  if ((silent.empty() && is_heard && !awaits_followers(now)) || planted(Bug::kSkipFence))
    return true;
  MonoTime until = op_->deadline;
  for (const WorkerKey& key : silent)  // who hung up while we slept is given its time to come back
    if (!agents_[key.pod_uid].connected) until = std::max(until, dead_at(agents_[key.pod_uid]));
  if (now < until) {
    wake_at(until);
    return false;
  }
  for (const WorkerKey& key : silent) {
    Agent& agent = agents_[key.pod_uid];
    if (now - agent.last_seen > 4 * timing_.heartbeat) {  // nobody there: no fault of the worker
      call_dead(key.pod_uid, agent);
      continue;
    }
    restart(key, "no answer to an abort");
    if (Worker* worker = worker_of(key)) worker->exited = true;  // until it says hello anew
  }
  begin_recovery(now, "", "a worker did not answer");
  return false;
}

// All who have trained are lost. Those who were to join hold what they had prepared; a follower may
// hold a round that was decided since, so its answer is waited for too.
bool JobMachine::awaits_followers(MonoTime now) {
  if (now >= op_->deadline) return false;
  const auto has_trained = [&](const Member& m) {
    const Worker* worker = member(m);
    return worker != nullptr && worker->standing.generation() == formed_generation_;
  };
  if (std::ranges::any_of(op_->next.members, has_trained)) return false;
  return std::ranges::any_of(living(), [&](const WorkerKey& key) {
    const Worker* worker = worker_of(key);
    return worker->standing.has_state() && !worker->refusal &&
           worker->abort_below >= op_->next.generation &&
           worker->settled_below < op_->next.generation;
  });
}

void JobMachine::form_recovery(MonoTime now) {
  std::vector<wire::WorkerStanding> standings;
  for (const Member& m : op_->next.members) standings.push_back(member(m)->standing);
  // Who was asked for its state may have been told to follow just before, and have dropped it.
  if (std::none_of(standings.begin(), standings.end(), [](const auto& s) { return s.has_state(); }))
    return begin_recovery(now, "", std::string(op_->change.reason));
  std::vector<WorkerKey> asked;
  for (const Member& m : op_->next.members) asked.push_back(m.key);
  if (ahead_of(asked)) return begin_recovery(now, "", std::string(op_->change.reason));
  std::vector<wire::WorkerStanding> heard;
  for (const Member& m : op_->next.previous)
    if (const Worker* worker = member(m);
        worker != nullptr && worker->settled_below >= op_->next.generation)
      heard.push_back(worker->standing);
  const RecoveryPlan plan = plan_recovery(standings, wish_.micro_batches, heard);
  std::vector<Member> levelled;
  for (std::size_t i = 0; i < plan.levels.size(); ++i)
    if (plan.levels[i]) levelled.push_back(op_->next.members[i]);
  if (levelled.size() < op_->next.members.size()) {
    // Those who cannot level follow anew; the others go on in a generation of their own.
    const std::string reason = op_->change.reason;
    if (levelled.empty()) {  // who was left out alone has the newest state
      for (const Member& m : op_->next.previous)
        if (Worker* worker = member(m)) worker->left_out.reset();
      return begin_recovery(now, "", reason);
    }
    record_.members = std::move(levelled);
    index_members();
    record_.previous.clear();
    return begin_recovery(now, "", reason);
  }
  const bool is_small = op_->next.members.size() < wish_.min_workers;
  op_->parked = wish_.stop ? abandons_step_ : is_small && !is_trained();
  op_->form = form_of(op_->next.generation, wire::FORM_RECOVER);
  op_->form.set_base_seq(plan.base_seq);
  op_->form.set_parked(op_->parked);
  op_->form.set_stop_steps(op_->next.stop_steps);
  if (plan.decision) *op_->form.mutable_decision() = *plan.decision;
  for (std::size_t i = 0; i < op_->next.members.size(); ++i) {
    add_member(op_->form, standings[i]);
    wire::Share& share = *op_->form.add_shares();
    for (const auto& range : plan.shares[i]) {
      wire::Range& out = *share.add_ranges();
      out.set_begin(range.begin);
      out.set_end(range.end);
    }
  }
  op_->change.salvaged += plan.salvaged;
  op_->change.recomputed = plan.recomputed;
  op_->told = true;
  op_->deadline = now + patience(timing_.form_deadline);
  await_formed(now);
}

// Who answers Aborts and takes up no Form: its step thread hangs. Counted from the first Form that
// it was told in this recovery, however often that began again: the others, whom its links do not
// reach, may give up each generation before its deadline is over. No link is to blame, for whoever
// has taken up a Form says so before it dials.
bool JobMachine::restart_deaf(MonoTime now, const std::vector<WorkerKey>& missing) {
  bool some = false;
  for (const WorkerKey& key : missing) {
    Worker* worker = worker_of(key);
    if (worker == nullptr || !worker->form_since) continue;
    if (worker->form_generation < op_->next.generation) continue;  // it is told when it is back
    const MonoTime due = *worker->form_since + patience(timing_.form_deadline);
    if (now < due) {
      wake_at(due);
      continue;
    }
    restart(key, "took up no generation that it was told");
    worker->exited = true;  // until it says hello anew
    some = true;
  }
  return some;
}

// START and RECOVER: Forms go out (again to who reconnects), until all are in.
void JobMachine::await_formed(MonoTime now) {
  const std::uint64_t generation = op_->next.generation;
  std::vector<WorkerKey> missing;
  for (std::size_t rank = 0; rank < op_->next.members.size(); ++rank) {
    const Member& m = op_->next.members[rank];
    Worker* worker = member(m);
    const auto& s = worker->standing;
    const bool is_to_park = op_->kind == Kind::kRecover && op_->parked;
    const bool stands = s.phase() != wire::WORKER_ABORTED && s.phase() != wire::WORKER_READY &&
                        !(is_to_park && s.phase() == wire::WORKER_TRAINING);
    // A program may have failed by now: that is another matter.
    const bool in = s.generation() == generation && (stands || wish_.is_stateless);
    if (in) continue;
    missing.push_back(m.key);
    if (is_told(*worker, generation) || !agents_[m.key.pod_uid].connected) continue;
    worker->form_generation = generation;
    if (!worker->form_since || *worker->form_since < op_->began) worker->form_since = now;
    worker->asked_stop = worker->asked_save = false;  // a Form ends what was asked before it
    tell_form(m.key, rank);
  }
  if (missing.empty()) return complete_operation(now);
  if (restart_deaf(now, missing))
    return begin_recovery(now, "",
                          "a worker did not take up generation " + std::to_string(generation));
  // Who gives up waiting for one of those closes its own links, and its neighbours call them
  // broken.
  broken_links_.clear();
  if (suspect_since_ && now >= suspect_due()) return recover_links(now);
  if (suspect_since_) return wake_at(suspect_due());
  if (now < op_->deadline) return wake_at(op_->deadline);
  // Nobody complained, and yet it does not stand: are there links that lose all without a word?
  if (!probing_) {
    suspect_cause_ = kLinkFailed;
    suspect_why_ = "a worker did not form generation " + std::to_string(generation);
    begin_probing(now);
  }
  if (!is_probed(now)) return;
  if (leave_out(now)) return begin_recovery(now, suspect_cause_, std::string(suspect_why_));
  for (const WorkerKey& key : missing) {
    restart(key, "did not form generation " + std::to_string(generation));
    if (Worker* worker = worker_of(key)) worker->exited = true;
  }
  begin_recovery(now, "", "a worker did not form generation " + std::to_string(generation));
}

// Where a recovery's time went, and what it saved. Read by tests/bench/recovery.py.
std::string JobMachine::phases_of(const Operation& op) const {
  if (op.kind != Kind::kRecover) return "";
  return fmt::format(
      " (answered {:.3f}, written {:.3f}; {} kept)", seconds_between(op.began, op.answered),
      seconds_between(op.began, op.written),
      counted_of(wish_.micro_batches - op.change.recomputed, wish_.micro_batches, "micro-batch"));
}

void JobMachine::complete_operation(MonoTime now) {
  parked_ = op_->parked;
  // The time in which nobody could compute, parked or before a start, is none without a step.
  if (parked_ || op_->kind == Kind::kStart) first_attempt_.reset();
  Change change = op_->change;
  change.generation = op_->next.generation;
  change.to = static_cast<std::uint32_t>(op_->next.members.size());
  change.at_step = view_.step;
  change.formed_at = now;
  LOG_INFO(kLog, "{}: generation {} stands after {:.3f} s{}: {} -> {}, {}{}", to_string(wish_.job),
           change.generation, seconds_between(op_->began, now), phases_of(*op_), change.from,
           counted(change.to, "worker"), change.reason, parked_ ? ", parked" : "");
  if (op_->kind == Kind::kRecover) {
    change.cause = view_.recovers_from;
    change.answer_seconds = std::max(0.0, seconds_between(op_->began, op_->answered));
    change.write_seconds = std::max(0.0, seconds_between(op_->answered, op_->written));
  }
  change.form_seconds = std::max(
      0.0, seconds_between(op_->began, now) - change.answer_seconds - change.write_seconds);
  const bool is_next = unfinished_.has_value();  // it came before the first step of that one
  if (is_next) end_change(op_->began, 0);
  unfinished_ = std::move(change);
  view_.awaits_first_step = true;
  unfinished_since_ = is_next || wish_.is_stateless ? op_->began : last_commit_;
  formed_at_ = now;
  quiet_since_ = now;
  note_formed(op_->next.generation, op_->next.members);
  for (auto& [uid, agent] : agents_) agent.suspected = false;
  op_.reset();
  probing_.reset();
  pin_fingerprint();
  outputs_.changed = true;
  stable(now);
}

}  // namespace rubato::coordinator
