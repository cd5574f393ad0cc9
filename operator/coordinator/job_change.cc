// Planned changes: newcomers follow, leavers leave, settings change; all switch at one commit.
#include "common/log.h"
#include "common/planted.h"
#include "common/words.h"
#include "operator/coordinator/bounds.h"
#include "operator/coordinator/job_machine.h"

#include <algorithm>

#include <fmt/format.h>

namespace rubato::coordinator {
namespace {
constexpr int kSwitchSteps = 4;  // a planned change may take this many steps beside form_deadline
}  // namespace

// A donor sends rounds of whichever generation, until it is lost or an Abort ends that. What a
// donor is told to do ends with its process.
bool JobMachine::is_following(const Worker& worker) {
  const bool was_told =
      worker.follow_generation != 0 &&
      worker.follow_generation >= std::max(worker.abort_below, worker.settled_below);
  if (!was_told || !worker.donor) return was_told;
  const Worker* donor = worker_of(*worker.donor);
  return donor != nullptr && !donor->exited &&
         donor->standing.id().incarnation() == worker.donor_incarnation;
}

// It says that it follows no more: it has joined, or its donor is lost or has cut it off, and it is
// told anew. A donor that lives and has served it for long did so because it is too slow.
void JobMachine::note_followed(Worker& worker) {
  const bool was_long = told_ - worker.follow_since >= kFollowLong;
  if (was_long && worker.donor && is_following(worker) && !worker.caught_up)
    ++worker.follows_in_vain;
  worker.follow_generation = 0;
}

// What a newcomer says of its donor. Who was turned away by a busy one says nothing. Members that
// move or recover cut off who follows them, and so does the end of a donor, which is known late: a
// count holds for one generation. Who was served for long did reach it: note_followed() counts.
void JobMachine::note_lost_donor(Worker& worker, const wire::Suspect& suspect) {
  LostDonors& lost = worker.lost_donors;
  const WorkerKey key{suspect.peer().pod_uid(), suspect.peer().slot()};
  const Worker* donor = is_member(key) ? worker_of(key) : nullptr;
  const bool is_there = donor != nullptr && !is_leaving(key.pod_uid) &&
                        donor->standing.id().incarnation() == suspect.peer().incarnation();
  if (op_ || suspect_since_ || !is_there || suspect.generation() != record_.generation) return;
  if (told_ - worker.follow_since >= kFollowLong) {
    lost = {};
    return;
  }
  if (lost.generation != record_.generation)
    lost = {.generation = record_.generation, .first = told_};
  ++lost.times;
  lost.last = told_;
  lost.donors.insert(key);
  lost.why = bounded(suspect.why());
}

// True: it will not be told to follow again.
bool JobMachine::refuse_unfit(MonoTime now, const WorkerKey& key, Worker& worker) {
  if (worker.follows_in_vain >= kFollowsInVain) {
    refuse(key, "TooSlow",
           fmt::format("{} times in a row it did not catch up with the members: its link, or "
                       "itself, is slower than their steps",
                       worker.follows_in_vain));
    return true;
  }
  LostDonors& lost = worker.lost_donors;
  // Or it has followed since then, and nothing broke: its donor was busy.
  if (lost.generation != record_.generation || lost.last <= worker.follow_since) lost = {};
  const bool is_enough = lost.times >= kDonorsLost && now - lost.first >= kFollowLong;
  if (!is_enough || any_member_leaves()) return false;
  refuse(key, "Unreachable",
         fmt::format("{} times in a row its link to a member failed before it had caught up; the "
                     "last time: {}",
                     lost.times, lost.why));
  return true;
}

bool JobMachine::any_member_leaves() const {
  return std::ranges::any_of(record_.members,
                             [&](const Member& m) { return is_leaving(m.key.pod_uid); });
}

// A leader before us sent it an Abort for a generation that was never written: it would refuse all
// that it is told in the recorded one.
bool JobMachine::is_fenced_off(const Worker& worker) const {
  return worker.settled_below > record_.generation;
}

std::map<WorkerKey, std::size_t> JobMachine::followers_of_donors() {
  std::map<WorkerKey, std::size_t> load;
  for (const WorkerKey& key : living()) {
    const Worker* worker = worker_of(key);
    if (worker->donor && is_following(*worker)) ++load[*worker->donor];
  }
  return load;
}

// A donor serves few at once and turns the others away, so each gets as many as the others. One
// whose link has failed comes last.
const Member& JobMachine::donor_for(const Worker& worker,
                                    const std::map<WorkerKey, std::size_t>& load) const {
  if (planted(Bug::kOneDonor)) return record_.members.front();
  const auto rank = [&](const Member& m) {
    const auto found = load.find(m.key);
    const std::size_t followers = found == load.end() ? 0 : found->second;
    return std::pair(worker.lost_donors.donors.contains(m.key), followers);
  };
  return *std::ranges::min_element(record_.members, {}, rank);
}

// Everybody who is ready and no member is told to follow one. Who was turned away by a busy donor
// is ready again after a pause, and may get another one.
void JobMachine::followers(MonoTime now) {
  if (is_trained()) return;
  std::size_t count = record_.members.size();
  std::map<WorkerKey, std::size_t> load = followers_of_donors();
  for (const WorkerKey& key : ready_workers()) {
    Worker* worker = worker_of(key);
    if (is_member(key) || worker->left_out || is_fenced_off(*worker)) continue;
    if (++count > wish_.micro_batches) continue;
    const auto& s = worker->standing;
    // One that was told by the last leader goes on; another Follow would wait for the end of this.
    if (s.phase() == wire::WORKER_FOLLOWING && s.following() != 0 &&
        s.following() != worker->follow_generation && s.following() >= worker->abort_below) {
      worker->follow_generation = s.following();
      worker->donor.reset();
      worker->follow_since = now;
      worker->caught_up = s.caught_up();
    }
    if (is_following(*worker)) {
      if (worker->caught_up) continue;
      // However long its link takes: as long as bytes come it lives.
      const MonoTime due =
          std::max(worker->follow_since, worker->progress_at) + timing_.follow_deadline;
      if (now < due) {
        wake_at(due);
      } else if (!worker->restart_sent) {
        ++worker->follows_in_vain;
        restart(key, "did not catch up", true);  // those who train miss nothing
      }
      continue;
    }
    if (refuse_unfit(now, key, *worker)) continue;
    // One that comes back from a freeze is stopped before it is asked to follow.
    if (s.phase() == wire::WORKER_TRAINING || s.phase() == wire::WORKER_PARKED) {
      abort(key, record_.generation);
      restart_unanswering(now, key, "did not answer an abort");
      continue;
    }
    // It holds a state and is no member: links may be why it was left out, by us or a leader
    // before.
    if (s.has_state() && !worker->reaches_all) {
      worker->left_out = LeftOut{.retry_at = now};
      wake_at(now);
      continue;
    }
    const Member& from = donor_for(*worker, load);
    ++load[from.key];
    worker->follow_generation = record_.generation;
    worker->donor = from.key;
    worker->donor_incarnation = member(from)->standing.id().incarnation();
    worker->follow_since = now;
    worker->caught_up = false;
    wire::WorkerCommand command;
    command.mutable_follow()->set_generation(record_.generation);
    *command.mutable_follow()->mutable_donor() = member(from)->standing.id();
    *command.mutable_follow()->mutable_donor_address() = member(from)->standing.listen();
    order(key, std::move(command));
  }
}

JobMachine::Moves JobMachine::possible_moves() {
  Moves out;
  for (const WorkerKey& key : living()) {
    const Worker* worker = worker_of(key);
    if (is_member(key) || is_leaving(key.pod_uid) || worker->refusal) continue;
    if (!is_following(*worker) || is_trained()) continue;
    if (worker->caught_up && worker->standing.has_state())
      out.joiners.push_back(key);
    else
      out.more_soon = true;
  }
  for (const Member& m : record_.members)
    (is_leaving(m.key.pod_uid) ? out.leave : out.stay).push_back(m);
  return out;
}

// Does somebody who waits to join refuse the recorded generation? Then all go on in a higher one.
bool JobMachine::newcomer_refuses_us() {
  if (planted(Bug::kNobodyRises)) return false;
  const std::vector<WorkerKey> keys = living();
  return std::any_of(keys.begin(), keys.end(), [&](const WorkerKey& key) {
    const Worker* worker = worker_of(key);
    return !is_member(key) && !is_leaving(key.pod_uid) && !worker->refusal && !worker->retired &&
           worker->standing.phase() != wire::WORKER_STARTING && is_fenced_off(*worker);
  });
}

// True when an operation was begun.
bool JobMachine::begin_planned(MonoTime now) {
  const Moves moves = possible_moves();
  const bool has_new_settings = wish_.stop_steps != 0 && wish_.stop_steps != record_.stop_steps &&
                                !parked_ && view_.ended_at == 0;
  // No commit comes any more at which the members could switch; all go on from where they are.
  const bool is_past_old_stop = record_.stop_steps != 0 && view_.step >= record_.stop_steps;
  if (has_new_settings && is_past_old_stop && !is_trained()) {
    begin_recovery(now, "Resumed",
                   "training.stop.steps is " + std::to_string(wish_.stop_steps) + " now");
    return true;
  }
  const bool rises = !is_trained() && newcomer_refuses_us();
  if (rises && parked_) {
    begin_recovery(now, "", "a newcomer refuses generation " + std::to_string(record_.generation));
    return true;
  }
  if (moves.joiners.empty() && moves.leave.empty()) {
    join_since_.reset();
    if (!has_new_settings && !rises) return false;
  }
  if (moves.more_soon && !moves.joiners.empty() && moves.leave.empty()) {
    if (!join_since_) join_since_ = now;
    if (now - *join_since_ < kJoinSettle) {
      wake_at(*join_since_ + kJoinSettle);
      return false;
    }
  }
  const std::size_t size = moves.stay.size() + moves.joiners.size();
  if (parked_ || moves.leave.empty() || size >= wish_.min_workers) replacing_since_.reset();
  if (parked_) {
    if (size < wish_.min_workers || moves.joiners.empty()) return false;
    begin_recovery(now, "Resumed", "enough workers again", true);
    return true;
  }
  if (!moves.leave.empty() && size < wish_.min_workers) return await_replacements(now, moves);
  plan_switch(now, moves);
  return true;
}

void JobMachine::plan_switch(MonoTime now, const Moves& moves) {
  Operation op;
  op.kind = Kind::kPlanned;
  op.began = now;
  if (!moves.joiners.empty()) {
    op.change.kind = "join";
    op.change.reason = "pod " + as_member(moves.joiners.front()).pod + " joins";
  } else if (!moves.leave.empty()) {
    op.change.kind = "leave";
    op.change.reason = "pod " + moves.leave.front().pod + " leaves";
  } else {
    const bool rises = newcomer_refuses_us();
    op.change.kind = "settings";
    op.change.reason = rises
                           ? "a newcomer refuses generation " + std::to_string(record_.generation)
                           : "training.stop.steps is " + std::to_string(wish_.stop_steps) + " now";
  }
  op.change.from = static_cast<std::uint32_t>(record_.members.size());
  op.next.generation = next_generation();
  op.next.phase = name_of(Phase::kSwitching);
  op.next.stop_steps = stop_steps();
  op.next.members = moves.stay;
  for (const WorkerKey& key : moves.joiners)
    if (op.next.members.size() < wish_.micro_batches) op.next.members.push_back(as_member(key));
  op.next.previous = record_.members;
  op.form.set_generation(op.next.generation);
  op.form.set_mode(wire::FORM_PLANNED);
  op.form.set_stop_steps(op.next.stop_steps);
  for (const Member& m : op.next.members) add_member(op.form, member(m)->standing);
  op.deadline = now + timing_.form_deadline +
                std::chrono::duration_cast<Duration>(
                    std::chrono::duration<double>(kSwitchSteps * view_.step_seconds));
  for (const Member& m : moves.leave)
    if (agents_[m.key.pod_uid].leaving)
      op.deadline = std::min(op.deadline, std::max(now, agents_[m.key.pod_uid].leave_deadline));
  LOG_INFO(kLog, "{}: planned generation {}: {} -> {}, {}", to_string(wish_.job),
           op.next.generation, op.change.from, counted(op.next.members.size(), "worker"),
           op.change.reason);
  op_ = std::move(op);
  ask_swap();
}

// Tells those of `all` who have not heard of the planned generation; true when everybody who stays
// is in.
bool JobMachine::all_switched(const std::vector<Member>& all) {
  bool complete = true;
  for (const Member& m : all) {
    Worker* worker = member(m);
    if (worker == nullptr) continue;
    const bool stays =
        std::find(op_->next.members.begin(), op_->next.members.end(), m) != op_->next.members.end();
    const bool in = worker->standing.generation() == op_->next.generation;
    complete = complete && (in || !stays);
    if (in || is_told(*worker, op_->next.generation)) continue;
    if (!agents_[m.key.pod_uid].connected) continue;
    worker->form_generation = op_->next.generation;
    tell_form(m.key, 0);  // a planned change has no shares
  }
  return complete;
}

void JobMachine::advance_planned(MonoTime now) {
  ask_swap();
  std::vector<Member> all = op_->next.members;
  for (const Member& m : op_->next.previous)
    if (std::find(all.begin(), all.end(), m) == all.end()) all.push_back(m);
  for (const Member& m : all) {
    if (const Worker* worker = member(m); worker != nullptr) {
      const wire::WorkerStanding& s = worker->standing;
      const bool lost_donor = joins(m.key) && s.phase() != wire::WORKER_FOLLOWING &&
                              s.generation() != op_->next.generation;
      if (!lost_donor) continue;
      return begin_recovery(now, kLinkFailed,
                            "pod " + m.pod + " was to join and has lost its donor");
    }
    // A leaver that is gone after the switch is no loss.
    const bool leaver = !std::any_of(op_->next.members.begin(), op_->next.members.end(),
                                     [&](const Member& n) { return n == m; });
    const bool switched =
        std::all_of(op_->next.members.begin(), op_->next.members.end(), [&](const Member& n) {
          const Worker* worker = member(n);
          return worker != nullptr && worker->standing.generation() == op_->next.generation;
        });
    if (leaver && switched) continue;
    return begin_recovery(now, "", why_lost(m));
  }
  if (suspect_since_ && now >= suspect_due()) return recover_links(now);
  if (suspect_since_) wake_at(suspect_due());
  if (!op_->swapped) return;
  if (all_switched(all)) return complete_operation(now);
  // The job ended, or was stopped, before the switch: its own ways go on from there.
  if (try_finish(now)) return;
  if (wish_.stop) return advance_stop(now);
  if (now >= op_->deadline) return begin_recovery(now, "Stuck", "the planned change took too long");
  wake_at(op_->deadline);
}

}  // namespace rubato::coordinator
