// What others see of a job.
#include "common/words.h"
#include "operator/coordinator/job_machine.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace rubato::coordinator {

// Checkpoints and validations that a member tells of.
void JobMachine::note_marks(const wire::WorkerStanding& s) {
  if (s.has_checkpoint() &&
      (!view_.has_checkpoint || s.checkpoint_step() > view_.checkpoint_step)) {
    view_.has_checkpoint = true;
    view_.checkpoint_step = s.checkpoint_step();
    outputs_.changed = true;
  }
  if (s.validation_step() > view_.validation_step) {
    view_.validation_step = s.validation_step();
    view_.validation_loss = s.validation_loss();
    outputs_.changed = true;
  }
}

// Of the members; null: none has state, or runs a program in the recorded generation.
const wire::WorkerStanding* JobMachine::furthest_member() {
  const wire::WorkerStanding* ahead = nullptr;
  for (const auto* members : {&record_.members, &record_.previous})
    for (const Member& m : *members) {
      const Worker* worker = member(m);
      if (worker == nullptr) continue;
      const wire::WorkerStanding& s = worker->standing;
      if (wish_.is_stateless ? s.generation() != record_.generation : !s.has_state()) continue;
      note_marks(s);
      if (ahead == nullptr || s.seq() > ahead->seq()) ahead = &s;
    }
  return ahead;
}

// A program may say how far it is, a while after it began, and where it took up its work.
void JobMachine::show_progress(const wire::WorkerStanding& ahead) {
  view_.seq = ahead.seq();
  view_.step_seconds = ahead.step_seconds();
  if (wish_.is_stateless && ahead.step() == 0) return;
  if (wish_.is_stateless && ahead.step() < view_.step)
    view_.recomputed_steps += view_.step - ahead.step();
  view_.step = ahead.step();
  view_.loss = ahead.loss();
  view_.tokens = ahead.tokens();
  view_.noise_scale = ahead.noise_scale();
}

// Takes progress from the member that is furthest.
void JobMachine::note_commits(MonoTime now) {
  const wire::WorkerStanding* ahead = furthest_member();
  if (ahead == nullptr || (op_ && op_->kind == Kind::kStart)) return;
  if (ahead->seq() == view_.seq && ahead->step() == view_.step) {
    if (!wish_.is_stateless) view_.tokens = ahead->tokens();  // a START changes them, too
    return;
  }
  const bool forward = ahead->seq() > view_.seq;
  // A program of its own shows nothing of the others.
  if (forward && !wish_.is_stateless) note_round(ahead->generation(), told_);
  if (forward && view_.seq != 0 && record_.previous.empty() &&
      ahead->generation() == record_.generation) {
    seen_whole_ = now;
  }
  show_progress(*ahead);
  // A step like the last one is no news: who shows progress looks when it wants to.
  if (!forward || !has_trained_) outputs_.changed = true;
  if (!forward) return;
  if (unfinished_ && ahead->generation() >= unfinished_->generation) {
    // What was booked as its cost since it stood has a step in it.
    const double since = std::chrono::duration<double>(now - formed_at_).count();
    gpu_time_.move(cost_of(*unfinished_), GpuUse::kUseful,
                   std::min(view_.step_seconds, since) * unfinished_->to);
    end_change(now, view_.step_seconds);
  }
  last_commit_ = now;
  gpu_time_.commit();
  has_trained_ = true;
  attempts_ = data_attempts_ = alarms_ = 0;
  first_attempt_.reset();
  start_why_.clear();
  failures_since_commit_ = 0;
  broken_links_.clear();
  stuck_once_ = false;
}

// `usual`: what of the time since the last commit before it would have passed without it.
void JobMachine::end_change(MonoTime now, double usual) {
  const double gap = std::chrono::duration<double>(now - unfinished_since_).count();
  unfinished_->stall_seconds = std::max(0.0, gap - usual);
  unfinished_->first_step_seconds = std::chrono::duration<double>(now - formed_at_).count();
  if (is_rescale(*unfinished_)) ++view_.rescales;
  view_.changes.push_back(std::move(*unfinished_));
  unfinished_.reset();
  view_.awaits_first_step = false;
  outputs_.changed = true;
  if (view_.changes.size() > kChangesKept) view_.changes.erase(view_.changes.begin());
}

// A newcomer on another node than rank 0's, which writes: it has looked for checkpoints before it
// was ready, and there was one.
void JobMachine::note_sharing(const Agent& agent, const Worker& worker) {
  if (!worker.known_checkpoint || record_.members.empty()) return;
  if (record_.members.front().node == agent.node) return;
  const auto& s = worker.standing;
  if (s.has_checkpoint() && s.checkpoint_step() >= *worker.known_checkpoint) {
    if (!view_.checkpoint_shared) show(view_.checkpoint_shared, std::optional(true));
    return;
  }
  note_unshared(agent.name, agent.node, *worker.known_checkpoint);
}

void JobMachine::note_unshared(const std::string& pod, const std::string& node,
                               std::uint64_t step) {
  view_.checkpoint_shared = false;
  view_.checkpoint_unshared_by = "pod " + pod + (node.empty() ? "" : " on node " + node) +
                                 " cannot read the checkpoint of step " + std::to_string(step);
  outputs_.changed = true;
}

// ---- GPU time
// ------------------------------------------------------------------------------------

GpuUse JobMachine::cost_of(const Change& change) const {
  if (change.kind == "start") return has_trained_ ? GpuUse::kFailure : GpuUse::kQueue;
  if (change.kind == "recover") return GpuUse::kFailure;
  if (change.kind == "settings") return GpuUse::kUseful;
  return GpuUse::kRescale;
}

// A start stands once its members hold a state; programs hold none.
bool JobMachine::any_member_works() {
  return std::ranges::any_of(record_.members, [&](const Member& m) {
    const Worker* worker = member(m);
    return worker != nullptr && (wish_.is_stateless || worker->standing.has_state());
  });
}

GpuUse JobMachine::gpu_use() {
  if (ended_ == Phase::kFailed) return GpuUse::kFailure;
  if (ended_ != Phase::kWaiting || stop_since_) return GpuUse::kCheckpoint;
  if (held_) return GpuUse::kUseful;  // a new leader waits; the workers do not
  if (op_ && op_->kind != Kind::kPlanned) return cost_of(op_->change);
  if (parked_) return GpuUse::kFailure;
  if (is_trained() && !wish_.is_stateless) return GpuUse::kCheckpoint;  // the last one
  if (unfinished_) return cost_of(*unfinished_);
  if (any_member_works()) return GpuUse::kUseful;
  return has_trained_ ? GpuUse::kFailure : GpuUse::kQueue;
}

void JobMachine::book_gpu_time() {
  std::uint32_t held = 0;
  std::uint32_t lost = 0;
  for (const Wish::Pod& pod : wish_.pods) {
    held += pod.slots;
    if (const Agent* agent = agent_of(pod.uid); agent != nullptr && agent->dead) lost += pod.slots;
  }
  gpu_time_.set(held, static_cast<std::uint32_t>(record_.members.size()), lost, gpu_use(),
                waiting_share());
  view_.gpu_seconds = gpu_time_.total();
  view_.since = gpu_time_.since();
}

// Of a step, what its members wait on average for the one that computes longest. Where one of them
// does not say how long it does, nothing is known.
double JobMachine::waiting_share() {
  double sum = 0;
  double most = 0;
  double step = 0;
  for (const Member& m : record_.members) {
    const Worker* worker = member(m);
    if (worker == nullptr || worker->standing.compute_seconds() <= 0) return 0;
    sum += worker->standing.compute_seconds();
    most = std::max(most, worker->standing.compute_seconds());
    step = std::max(step, worker->standing.step_seconds());
  }
  return step > 0 ? (most - sum / static_cast<double>(record_.members.size())) / step : 0;
}

void JobMachine::enter(Phase phase, std::string reason) {
  if (view_.phase != phase || view_.reason != reason) outputs_.changed = true;
  view_.phase = phase;
  view_.reason = std::move(reason);
}

void JobMachine::refresh_end(MonoTime now) {
  const bool all = std::all_of(agents_.begin(), agents_.end(), [&](const auto& entry) {
    return entry.second.dead || wished(entry.first) == nullptr ||
           retired_pods_.contains(entry.second.name) || !entry.second.connected ||
           begins_again_with(entry.first);
  });
  const bool over = all || (retire_since_ && now - *retire_since_ >= kRetireDeadline);
  if (over && ended_ != Phase::kFailed)
    enter(ended_, "all workers have left");
  else if (ended_ == Phase::kFailed)
    enter(Phase::kFailed, view_.failure_message);
  else
    enter(Phase::kStopping, "the workers leave");
  if (!over) wake_at(*retire_since_ + kRetireDeadline);
}

std::string JobMachine::forming_reason() const {
  return start_why_.empty() ? "the first generation is being formed" : "starts anew: " + start_why_;
}

void JobMachine::refresh_phase(MonoTime now) {
  show(view_.shrinks, op_ && op_->change.kind == "leave");
  const std::size_t size = record_.members.size();
  if (ended_ != Phase::kWaiting) {
    refresh_end(now);
  } else if (held_) {
    enter(Phase::kRecovering, "a new coordinator waits for the workers");
  } else if (op_ && op_->change.kind == "start") {
    enter(Phase::kForming, forming_reason());
  } else if (op_ && (op_->kind == Kind::kRecover || op_->change.kind == "recover")) {
    enter(Phase::kRecovering, op_->change.reason);
  } else if (wish_.stop && stop_since_) {
    enter(Phase::kStopping, wish_.stop_reason);
  } else if (op_ && op_->change.kind != "settings") {
    enter(Phase::kSwitching, op_->change.reason);
  } else if (record_.members.empty() || std::none_of(record_.members.begin(), record_.members.end(),
                                                     [&](const Member& m) { return member(m); })) {
    std::string reason = "waiting for " + counted(wish_.start_workers, "ready worker");
    for (const std::string& why : {view_.checkpoint_unread, view_.idle_process})
      if (!why.empty()) reason += "; " + why;
    enter(Phase::kWaiting, std::move(reason));
  } else if (parked_) {
    enter(Phase::kParked,
          std::to_string(size) + " of at least " + counted(wish_.min_workers, "worker"));
  } else if (!any_member_works()) {
    enter(Phase::kForming, forming_reason());  // it loads, or the start has failed
  } else if (suspect_since_ && first_attempt_) {
    enter(Phase::kRecovering, suspect_why_);  // again, in a while
  } else {
    enter(Phase::kTraining, counted(size, "worker"));
  }
  const auto since = [&](Phase phase, std::optional<MonoTime>& shown) {
    if (view_.phase == phase && shown) return;
    show(shown, view_.phase == phase ? std::optional(now) : std::nullopt);
  };
  since(Phase::kParked, view_.parked_since);
  since(Phase::kWaiting, view_.waiting_since);
}

// The first whose disk of checkpoints does not answer: it says so, or its look takes so long that
// it cannot. Who holds a state needs none.
std::string JobMachine::why_unread(MonoTime now) const {
  for (const auto& [uid, agent] : agents_) {
    if (!agent.connected || agent.pod == nullptr) continue;
    for (const auto& [slot, worker] : agent.workers) {
      if (worker.exited || worker.refusal || worker.standing.has_state()) continue;
      if (!worker.unread.empty()) return worker.unread;
      const bool is_long = worker.standing.phase_name() == "look" && worker.asked_look != 0 &&
                           now >= worker.asked_at + kLookLong;
      if (is_long)
        return fmt::format(
            "pod {} on node {}: a look at the checkpoints has had no answer for {} s", agent.name,
            agent.node, std::chrono::duration_cast<std::chrono::seconds>(kLookLong).count());
    }
  }
  return "";
}

// The first whose process lives, is not ready and has shown no sign of work for long. Programs show
// none before they are members.
std::string JobMachine::who_idles(MonoTime now) const {
  if (wish_.is_stateless) return "";
  const auto in_seconds = [](Duration time) {
    return std::chrono::duration_cast<std::chrono::seconds>(time).count();
  };
  for (const auto& [uid, agent] : agents_) {
    if (!agent.connected || agent.pod == nullptr) continue;
    for (const auto& [slot, worker] : agent.workers) {
      const bool may_idle = worker.standing.phase() == wire::WORKER_STARTING &&
                            worker.progress_mark == 0 && !worker.exited && !worker.refusal;
      if (may_idle && now >= worker.progress_at + kIdleLong)
        return fmt::format(
            "worker {} of pod {} on node {} has run for {} s without a sign of work; after {} s "
            "at the latest its process is ended",
            slot, agent.name, agent.node, in_seconds(kIdleLong),
            in_seconds(timing_.start_deadline));
    }
  }
  return "";
}

bool JobMachine::is_starting(MonoTime now) const {
  if (wish_.is_stateless) return false;
  return std::ranges::any_of(agents_, [&](const auto& of_pod) {
    const Agent& agent = of_pod.second;
    if (!agent.connected || agent.pod == nullptr) return false;
    return std::ranges::any_of(agent.workers, [&](const auto& in_slot) {
      const Worker& worker = in_slot.second;
      return worker.standing.phase() == wire::WORKER_STARTING && !worker.exited &&
             !worker.refusal && worker.standing.id().incarnation() <= 1 &&
             now < worker.progress_at + timing_.start_deadline;
    });
  });
}

void JobMachine::refresh_view(MonoTime now) {
  show(view_.checkpoint_unread, why_unread(now));
  show(view_.idle_process, who_idles(now));
  show(view_.is_starting, is_starting(now));
  refresh_phase(now);
  show(view_.taking_over, held_);
  show(view_.stop_since, stop_since_);
  show(view_.stop_reason, stop_since_ ? wish_.stop_reason : std::string());
  show(view_.end, ended_);
  show(view_.generation, record_.generation);
  const auto is_shown = [](const MemberView& shown, const Member& m) {
    return shown.pod_uid == m.key.pod_uid && shown.slot == m.key.slot &&
           shown.incarnation == m.incarnation;
  };
  if (!std::ranges::equal(view_.members, record_.members, is_shown)) {
    view_.members.clear();
    for (const Member& m : record_.members)
      view_.members.push_back(
          {m.pod, m.key.pod_uid, m.node, m.gpu_type, m.key.slot, m.incarnation});
    outputs_.changed = true;
  }
  std::vector<std::string> heard;
  std::vector<std::string> ready;
  std::vector<Refusal> refused;
  for (const Wish::Pod& pod : wish_.pods) {
    const Agent* agent = agent_of(pod.uid);
    if (agent == nullptr) continue;
    for (const auto& [slot, worker] : agent->workers)
      if (worker.refusal && (!worker.exited || is_of_node(*worker.refusal)) && !agent->dead)
        refused.push_back(*worker.refusal);
    if (!agent->connected) continue;
    heard.push_back(pod.name);
    if (agent->workers.size() < pod.slots) continue;
    const bool is_ready = std::ranges::all_of(agent->workers, [](const auto& entry) {
      return !entry.second.exited && entry.second.standing.phase() != wire::WORKER_STARTING;
    });
    if (is_ready) ready.push_back(pod.name);
  }
  show(view_.heard_pods, std::move(heard));
  show(view_.ready_pods, std::move(ready));
  show(view_.refused, std::move(refused));
  show(view_.retired_pods, {retired_pods_.begin(), retired_pods_.end()});
}

}  // namespace rubato::coordinator
