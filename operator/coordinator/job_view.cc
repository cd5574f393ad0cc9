// What others see of a job.
#include "operator/coordinator/job_machine.h"

#include <algorithm>

namespace rubato::coordinator {

// Takes progress from the member that is furthest.
void JobMachine::note_commits(MonoTime now) {
  const wire::WorkerStanding* ahead = nullptr;
  const auto look = [&](const std::vector<Member>& members) {
    for (const Member& m : members) {
      const Worker* worker = member(m);
      if (worker == nullptr || !worker->standing.has_state()) continue;
      const auto& s = worker->standing;
      if (s.has_checkpoint() &&
          (!view_.has_checkpoint || s.checkpoint_step() > view_.checkpoint_step)) {
        view_.has_checkpoint = true;
        view_.checkpoint_step = s.checkpoint_step();
        outputs_.changed = true;
      }
      if (ahead == nullptr || s.seq() > ahead->seq()) ahead = &s;
    }
  };
  look(record_.members);
  look(record_.previous);
  if (ahead == nullptr || (op_ && op_->kind == Kind::kStart)) return;
  if (ahead->seq() == view_.seq && ahead->step() == view_.step) return;
  const bool forward = ahead->seq() > view_.seq;
  view_.seq = ahead->seq();
  view_.step = ahead->step();
  view_.loss = ahead->loss();
  view_.tokens = ahead->tokens();
  view_.step_seconds = ahead->step_seconds();
  outputs_.changed = true;
  if (!forward) return;
  if (unfinished_ && ahead->generation() >= unfinished_->generation) {
    const double gap = std::chrono::duration<double>(now - unfinished_since_).count();
    unfinished_->stall_seconds = std::max(0.0, gap - view_.step_seconds);
    view_.changes.push_back(std::move(*unfinished_));
    unfinished_.reset();
    if (view_.changes.size() > kChangesKept) view_.changes.erase(view_.changes.begin());
  }
  last_commit_ = now;
  attempts_ = 0;
  stuck_once_ = false;
}

void JobMachine::refresh_view(MonoTime now) {
  const View before = view_;
  const auto set = [&](Phase phase, std::string reason) {
    if (view_.phase != phase || view_.reason != reason) outputs_.changed = true;
    view_.phase = phase;
    view_.reason = std::move(reason);
  };
  const std::string size = std::to_string(record_.members.size());
  if (ended_ != Phase::kWaiting) {
    const bool all = std::all_of(agents_.begin(), agents_.end(), [&](const auto& entry) {
      return entry.second.dead || wished(entry.first) == nullptr ||
             retired_pods_.contains(entry.second.name) || !entry.second.connected;
    });
    const bool over = all || (retire_since_ && now - *retire_since_ >= kRetireDeadline);
    if (over && ended_ != Phase::kFailed)
      set(ended_, "all workers have left");
    else if (ended_ == Phase::kFailed)
      set(Phase::kFailed, view_.failure_message);
    else
      set(Phase::kStopping, "the workers leave");
    if (!over) wake_at(*retire_since_ + kRetireDeadline);
  } else if (held_) {
    set(Phase::kRecovering, "a new coordinator waits for the workers");
  } else if (op_ && op_->kind == Kind::kStart) {
    set(Phase::kForming, "the first generation is being formed");
  } else if (op_ && op_->kind == Kind::kRecover) {
    set(Phase::kRecovering, op_->change.reason);
  } else if (wish_.stop && stop_since_) {
    set(Phase::kStopping, wish_.stop_reason);
  } else if (op_) {
    set(Phase::kSwitching, op_->change.reason);
  } else if (record_.members.empty() || std::none_of(record_.members.begin(), record_.members.end(),
                                                     [&](const Member& m) { return member(m); })) {
    set(Phase::kWaiting, "waiting for " + std::to_string(wish_.start_workers) + " ready workers");
  } else if (parked_) {
    set(Phase::kParked, size + " of at least " + std::to_string(wish_.min_workers) + " workers");
  } else {
    set(Phase::kTraining, size + " workers");
  }
  if (view_.phase == Phase::kParked && !view_.parked_since) view_.parked_since = now;
  if (view_.phase != Phase::kParked) view_.parked_since.reset();

  view_.generation = record_.generation;
  view_.members.clear();
  for (const Member& m : record_.members)
    view_.members.push_back({m.pod, m.key.pod_uid, m.node, m.gpu_type, m.key.slot, m.incarnation});
  view_.ready_pods.clear();
  for (const Wish::Pod& pod : wish_.pods) {
    const Agent* agent = agent_of(pod.uid);
    if (agent == nullptr || !agent->connected || agent->workers.size() < pod.slots) continue;
    const bool ready =
        std::all_of(agent->workers.begin(), agent->workers.end(), [](const auto& entry) {
          return !entry.second.exited && entry.second.standing.phase() != wire::WORKER_STARTING;
        });
    if (ready) view_.ready_pods.push_back(pod.name);
  }
  view_.retired_pods.assign(retired_pods_.begin(), retired_pods_.end());
  if (view_.ready_pods != before.ready_pods || view_.retired_pods != before.retired_pods ||
      view_.generation != before.generation || view_.members.size() != before.members.size())
    outputs_.changed = true;
}

}  // namespace rubato::coordinator
