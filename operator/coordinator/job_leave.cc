// Members that leave: who waits for whom, what they are asked, and what is saved before the last of
// them ends.
#include "common/json.h"
#include "common/log.h"
#include "operator/coordinator/job_machine.h"

#include <algorithm>

namespace rubato::coordinator {
namespace {

bool has_checkpoints(const Wish& wish) {
  const auto training = json::parse(wish.training);
  return training.ok() && !(*training)["checkpoint"]["path"].string_or("").empty();
}

}  // namespace

// Nobody to go on with, or too few: replacements are awaited as long as a leaver has time. One
// whose pod was not told to end has as much as a newcomer has to get ready and to follow, counted
// anew while one follows: then those who stay hold the state and wait, and where nobody stays the
// job stops.
bool JobMachine::await_replacements(MonoTime now, const Moves& moves) {
  if (!replacing_since_ || moves.more_soon) replacing_since_ = now;
  const MonoTime replaced_by = *replacing_since_ + timing_.start_deadline + timing_.follow_deadline;
  bool overdue = true;
  for (const Member& m : moves.leave) {
    const Agent& agent = agents_[m.key.pod_uid];
    const MonoTime due = agent.leaving ? agent.leave_deadline : replaced_by;
    if (now >= due) continue;
    overdue = false;
    wake_at(due);
  }
  if (!overdue) return false;
  if (!moves.stay.empty()) {
    begin_recovery(now, "PodDeleted", "pod " + moves.leave.front().pod + " leaves");
  } else if (now >= replaced_by && has_checkpoints(wish_)) {
    stop_by_itself("no pod came that could replace those that leave", wish_.grace);
    wake_at(now);
  }
  return !moves.stay.empty();
}

// Workers of pods that leave and are members no more.
void JobMachine::retire_left(MonoTime) {
  if (op_) return;
  for (const WorkerKey& key : living()) {
    Worker* worker = worker_of(key);
    if (!is_leaving(key.pod_uid) || is_member(key) || worker->retired) continue;
    if (!agents_[key.pod_uid].connected) continue;
    worker->retired = true;
    wire::WorkerCommand command;
    command.mutable_retire()->set_reason("left by a planned change");
    order(key, std::move(command));
  }
}

// Members that leave and hold a state. They do not go on, and may know a round that `asked` do not:
// they are asked for it by a recovery, and by a leader that comes after.
std::vector<Member> JobMachine::leavers_beside(const std::vector<WorkerKey>& asked) {
  std::vector<Member> leavers;
  for (const auto* members : {&record_.members, &record_.previous})
    for (const Member& m : *members) {
      const Worker* worker = member(m);
      if (worker == nullptr || !worker->standing.has_state() || worker->retired) continue;
      if (!is_leaving(m.key.pod_uid) || worker->left_out) continue;
      if (std::ranges::find(asked, m.key) != asked.end()) continue;
      if (std::ranges::find(leavers, m) == leavers.end()) leavers.push_back(m);
    }
  return leavers;
}

// When the last of those has to end who hold what the members hold. None: one of them was not told
// to end, or nobody holds anything.
std::optional<MonoTime> JobMachine::all_end_by() {
  std::optional<MonoTime> last;
  for (const WorkerKey& key : living()) {
    const Worker* worker = worker_of(key);
    const bool is_current = is_member(key) || (worker->caught_up && is_following(*worker));
    if (!is_current || !worker->standing.has_state() || worker->refusal) continue;
    const Agent& agent = agents_[key.pod_uid];
    if (!agent.leaving) return std::nullopt;
    last = std::max(last.value_or(agent.leave_deadline), agent.leave_deadline);
  }
  return last;
}

// All who hold the state were told to end. It is written at once, beside training, for who ends
// them may not keep to the time that they were told. They train on for half of that time, for
// others may come who take over; in the other half the job stops as if it was asked to, with the
// checkpoint of its last step, and begins again from there with new pods.
void JobMachine::save_before_end(MonoTime now) {
  const bool is_over = ended_ != Phase::kWaiting || !view_.failure_reason.empty();
  if (is_over || wish_.stop || wish_.is_stateless || held_) return;
  const std::optional<MonoTime> end = all_end_by();
  if (!end || is_trained() || !has_checkpoints(wish_)) return all_told_since_.reset();
  if (!all_told_since_) all_told_since_ = now;
  ask_to_save();
  const MonoTime half = *all_told_since_ + (*end - *all_told_since_) / 2;
  if (now < half) return wake_at(half);
  stop_by_itself("all its pods were told to end", std::max<Duration>(*end - now, kLeaveSafety));
}

// One vote is enough. Who stands still writes when it stops.
void JobMachine::ask_to_save() {
  if (op_ || record_.members.empty()) return;
  const Member& first = record_.members.front();
  Worker* worker = member(first);
  if (worker == nullptr || worker->asked_save || !agents_[first.key.pod_uid].connected) return;
  if (worker->standing.phase() != wire::WORKER_TRAINING) return;
  worker->asked_save = true;
  wire::WorkerCommand command;
  command.mutable_request()->set_checkpoint(true);
  command.mutable_request()->set_reason("all pods of the job were told to end");
  order(first.key, std::move(command));
}

void JobMachine::stop_by_itself(const std::string& reason, Duration grace) {
  LOG_INFO(kLog, "{}: stops, for {}", to_string(wish_.job), reason);
  own_stop_ = OwnStop{.reason = reason, .grace = grace};
  keep_own_stop();
}

// A Wish that knows nothing of it does not take it back.
void JobMachine::keep_own_stop() {
  if (!own_stop_) return;
  if (!wish_.stop) wish_.stop_reason = own_stop_->reason;
  wish_.stop = true;
  wish_.grace = std::min(wish_.grace, own_stop_->grace);
}

// It has stopped by itself, and that pod stays.
bool JobMachine::begins_again_with(const std::string& pod_uid) const {
  return own_stop_ && ended_ == Phase::kStopped && !is_leaving(pod_uid);
}

}  // namespace rubato::coordinator
