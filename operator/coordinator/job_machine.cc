#include "operator/coordinator/job_machine.h"

#include "common/planted.h"

#include <algorithm>

#include <fmt/format.h>

namespace rubato::coordinator {
namespace {

constexpr Duration kHoldMax = 30s;
constexpr Duration kTickMin = 5ms;
// Between two passes, for each worker: while there is news, and while there is not. A pass takes
// less than a microsecond a worker.
constexpr Duration kPassPace = 5us;
constexpr Duration kQuietPassPace = 200us;
constexpr Duration kQuietPassMost = 200ms;
constexpr Duration kCrowdQuiet = 1s;  // after it, arrivals are news again

}  // namespace

JobMachine::JobMachine(Timing timing, Wish wish, Record record, MonoTime now)
    : timing_(timing),
      wish_(std::move(wish)),
      record_(std::move(record)),
      led_since_(now),
      passed_(now),
      told_(now),
      highest_generation_(record_.generation),
      quiet_since_(now),
      last_commit_(now),
      gpu_time_(now) {
  index_wish();
  index_members();
  held_ = taking_over_ = !record_.members.empty() && record_.phase != name_of(Phase::kStopped);
  parked_ = record_.phase == name_of(Phase::kParked);
  has_trained_ = record_.generation > 0 && record_.phase != name_of(Phase::kStopped);
  for (const Phase over : {Phase::kFinished, Phase::kFailed})
    if (record_.phase == name_of(over)) ended_ = over;
  view_.step = record_.step;
  view_.rescales = planted(Bug::kForgetRescales) ? 0 : record_.rescales;
  view_.recomputed_steps = record_.recomputed_steps;
  view_.ended_at = record_.ended_at;
  view_.failure_count = record_.failures;
  crashes_ = record_.crashes;
  fingerprint_ = record_.fingerprint;
  view_.generation = record_.generation;
  if (record_.previous.empty()) note_formed(record_.generation, record_.members);
  wake_at(now);
}

// ---- Who
// ---------------------------------------------------------------------------------------------

const Wish::Pod* JobMachine::wished(const std::string& pod_uid) const {
  const auto found = wished_at_.find(pod_uid);
  return found == wished_at_.end() ? nullptr : &wish_.pods[found->second];
}

void JobMachine::index_wish() {
  wished_at_.clear();
  for (std::size_t i = 0; i < wish_.pods.size(); ++i) wished_at_.emplace(wish_.pods[i].uid, i);
  for (auto& [uid, agent] : agents_) agent.pod = wished(uid);
}

void JobMachine::index_members() {
  member_keys_.clear();
  for (const Member& m : record_.members) member_keys_.insert(m.key);
}

JobMachine::Agent* JobMachine::agent_of(const std::string& pod_uid) {
  const auto found = agent_at_.find(pod_uid);
  return found == agent_at_.end() ? nullptr : found->second;
}

JobMachine::Worker* JobMachine::worker_of(const WorkerKey& key) {
  Agent* agent = agent_of(key.pod_uid);
  if (agent == nullptr || agent->dead || agent->pod == nullptr) return nullptr;
  const auto found = agent->workers.find(key.slot);
  if (found == agent->workers.end() || found->second.exited || found->second.diverged)
    return nullptr;
  return &found->second;
}

JobMachine::Worker* JobMachine::member(const Member& m) {
  Worker* worker = worker_of(m.key);
  if (worker == nullptr || worker->standing.id().incarnation() != m.incarnation) return nullptr;
  return worker->refusal ? nullptr : worker;
}

bool JobMachine::is_leaving(const std::string& pod_uid) const {
  const Wish::Pod* pod = wished(pod_uid);
  const auto agent = agents_.find(pod_uid);
  return pod == nullptr || pod->leaving || (agent != agents_.end() && agent->second.leaving);
}

bool JobMachine::is_member(const WorkerKey& key) const { return member_keys_.contains(key); }

bool JobMachine::joins(const WorkerKey& key) const {
  if (!op_ || op_->kind != Kind::kPlanned) return false;
  const auto is_it = [&](const Member& m) { return m.key == key; };
  return std::ranges::any_of(op_->next.members, is_it) &&
         std::ranges::none_of(op_->next.previous, is_it);
}

bool JobMachine::others_hold_state(const WorkerKey& key) {
  const std::vector<WorkerKey> workers = living();
  return std::any_of(workers.begin(), workers.end(), [&](const WorkerKey& other) {
    const Worker* worker = worker_of(other);
    return other != key && !worker->refusal && worker->standing.has_state();
  });
}

Member JobMachine::as_member(const WorkerKey& key) {
  const Worker* worker = worker_of(key);
  const Wish::Pod* pod = wished(key.pod_uid);
  CHECK(worker != nullptr && pod != nullptr);
  return {key, worker->standing.id().incarnation(), pod->name, pod->node, pod->gpu_type};
}

std::string JobMachine::why_lost(const Member& m) {
  const Agent* agent = agent_of(m.key.pod_uid);
  if (wished(m.key.pod_uid) == nullptr) return "pod " + m.pod + " is gone";
  if (agent == nullptr) return "pod " + m.pod + " on node " + m.node + " did not come back";
  if (agent->dead) return "pod " + m.pod + " on node " + m.node + " lost: " + agent->lost_why;
  if (const Worker* worker = worker_of(m.key); worker != nullptr && worker->refusal)
    return "pod " + m.pod + " on node " + m.node + " is refused: " + worker->refusal->reason;
  const auto worker = agent->workers.find(m.key.slot);
  if (worker != agent->workers.end() && worker->second.diverged)
    return "pod " + m.pod + " on node " + m.node + " held another state than the others";
  return "worker " + std::to_string(m.key.slot) + " of pod " + m.pod + " ended";
}

std::vector<WorkerKey> JobMachine::living() {
  std::vector<WorkerKey> keys;
  for (const Wish::Pod& pod : wish_.pods)
    for (std::uint32_t slot = 0; slot < pod.slots; ++slot)
      if (worker_of({pod.uid, slot}) != nullptr) keys.push_back({pod.uid, slot});
  return keys;
}

std::vector<WorkerKey> JobMachine::ready_workers() {
  std::vector<WorkerKey> keys = living();
  std::erase_if(keys, [&](const WorkerKey& key) {
    const Worker* worker = worker_of(key);
    return worker->standing.phase() == wire::WORKER_STARTING || worker->refusal ||
           worker->retired || is_leaving(key.pod_uid) || !agents_[key.pod_uid].connected;
  });
  return keys;
}

// The next generation is above all that workers name. False: no leader can have told it that.
bool JobMachine::note_generations(const wire::WorkerStanding& standing) {
  const std::uint64_t named =
      std::max({standing.fenced_below(), standing.generation(), standing.prepared_generation()});
  if (named > highest_generation_ + kGenerationLeap && !planted(Bug::kAnyGeneration)) {
    restart({standing.id().pod_uid(), standing.id().slot()},
            "names generation " + std::to_string(named));
    return false;
  }
  highest_generation_ = std::max(highest_generation_, named);
  // The record went back (restored from a backup): what else was begun after what it tells is not
  // known, and no number of that is used again.
  if (standing.generation() > record_.generation)
    highest_generation_ = std::max(highest_generation_, standing.generation() + kRestoredGap);
  return true;
}

std::uint64_t JobMachine::next_generation() {
  highest_generation_ = std::max({highest_generation_, record_.generation}) + 1;
  return highest_generation_;
}

Duration JobMachine::quiet_pace() const {
  return std::min(static_cast<int>(agents_.size()) * kQuietPassPace, kQuietPassMost);
}

MonoTime JobMachine::next_pass() const {
  // A new leader that waits for thousands, or a job that begins while they come, decides nothing by
  // each of them; what the passes of ten such jobs cost would delay who is still to come.
  const bool is_crowd = passed_ < crowded_at_ + kCrowdQuiet;
  const bool is_hurried = has_news_ && !held_ && (op_ || !is_crowd);
  return passed_ + (is_hurried ? static_cast<int>(agents_.size()) * kPassPace : quiet_pace());
}

// ---- The pass
// ----------------------------------------------------------------------------------------

// Broken links of generations that are given up are no news.
std::uint64_t JobMachine::oldest_of_interest() const {
  return op_ && op_->kind != Kind::kPlanned ? op_->next.generation : formed_generation_;
}

void JobMachine::pass(MonoTime now) {
  if (conflict_) return;
  next_tick_ = now + 500ms;
  passed_ = now;
  has_news_ = false;
  gpu_time_.advance(now);
  note_commits(now);
  save_before_end(now);
  if (!wish_.stop) stop_asked_.reset();
  if (wish_.stop && !held_ && !stop_asked_) stop_asked_ = now;
  if (stop_asked_) wake_at(*stop_asked_ + wish_.grace);
  if (ended_ != Phase::kWaiting) {
    retire_all(now, name_of(ended_));
    write_phase(ended_);
  } else if (!view_.failure_reason.empty()) {
    end(now, Phase::kFailed, view_.failure_reason + ": " + view_.failure_message);
  } else if (stop_asked_ && now >= *stop_asked_ + wish_.grace) {
    end(now, Phase::kStopped, wish_.stop_reason);
  } else {
    configure_new(now);
    restart_unready(now);
    restart_diverged(now);
    pin_fingerprint();
    refuse_others_than(fingerprint_);
    if (!holding(now)) {
      if (op_) {
        switch (op_->kind) {
          case Kind::kStart:
            advance_start(now);
            break;
          case Kind::kRecover:
            advance_recovery(now);
            break;
          case Kind::kPlanned:
            advance_planned(now);
            break;
        }
      } else {
        stable(now);
      }
      retire_left(now);
    }
  }
  write_news();
  refresh_view(now);
  book_gpu_time();
  for (const auto& [uid, agent] : agents_)
    if (!agent.dead) wake_at(dead_at(agent));
  // A deadline that has passed while a write is under way is met when its answer comes.
  next_tick_ = std::max(next_tick_, now + kTickMin);
}

// Who is configured before anybody knows how the job computes asks the checkpoints, and as long as
// their disk does not answer. Others may have started meanwhile: then it is told what they know.
void JobMachine::configure_new(MonoTime now) {
  std::optional<std::string> fingerprint;  // the same for all of them
  for (const WorkerKey& key : living()) {
    Worker* worker = worker_of(key);
    if (worker->refusal || worker->standing.phase() != wire::WORKER_STARTING) continue;
    if (!agents_[key.pod_uid].connected) continue;
    const bool is_first = !worker->configured;
    const MonoTime again = worker->configured_at.value_or(now) + kLookDeadline;
    if (!is_first && now < again) {
      wake_at(again);
      continue;
    }
    if (!fingerprint) fingerprint = fingerprint_of(living());
    if (!is_first && (fingerprint->empty() || *fingerprint == worker->told_fingerprint)) continue;
    if (is_first) {
      worker->configured = true;
      worker->configured_at = now;
      if (view_.has_checkpoint) worker->known_checkpoint = view_.checkpoint_step;
    }
    worker->told_fingerprint = *fingerprint;
    wire::WorkerCommand command;
    command.mutable_configure()->set_job(to_string(wish_.job));
    command.mutable_configure()->set_training(wish_.training);
    command.mutable_configure()->set_micro_batches(wish_.micro_batches);
    command.mutable_configure()->set_fingerprint(*fingerprint);
    order(key, std::move(command));
  }
}

// A new leader gives everybody two silence deadlines to come back, from the first who does: who
// dialed an operator that is gone needs two tries. While nobody has found us, it is we who cannot
// be reached (after a time without operators, or with nodes that have old routes to us), and the
// workers train. While others still find us, of this job or in a crowd of all, thousands may be on
// their way. While those who are back go on committing steps, who is missing lives too, for a step
// needs all. Pods that are gone are not waited for.
bool JobMachine::holding(MonoTime now) {
  if (!taking_over_ || planted(Bug::kHastyLeader)) return held_ = taking_over_ = false;
  const bool all_back = std::all_of(record_.members.begin(), record_.members.end(),
                                    [&](const Member& m) { return worker_of(m.key) != nullptr; });
  const bool some_may_come =
      std::any_of(record_.members.begin(), record_.members.end(),
                  [&](const Member& m) { return wished(m.key.pod_uid) != nullptr; });
  if (!first_back_ && (!agents_.empty() || !some_may_come)) first_back_ = now;
  MonoTime until = led_since_ + timing_.silence + kHoldMax;
  if (first_back_) {
    const Duration grace = 2 * timing_.silence;
    const MonoTime sign =
        std::max({*first_back_, last_back_, crowded_at_, seen_whole_.value_or(MonoTime{})});
    until = std::min(sign + grace, *first_back_ + grace + kHoldMax);
    taking_over_ = !all_back && now < until;
  }
  held_ = taking_over_ && now < until;
  if (held_) wake_at(until);
  return held_;
}

// Who is missing from the recorded generation, or stands elsewhere; "": it is whole.
std::string JobMachine::why_not_whole() {
  for (const Member& m : record_.members)
    if (member(m) == nullptr) return why_lost(m);
  for (const Member& m : record_.members) {
    const auto& s = member(m)->standing;
    const bool works = s.phase() == (parked_ ? wire::WORKER_PARKED : wire::WORKER_TRAINING) ||
                       s.phase() == wire::WORKER_FINISHED ||
                       (wish_.stop && s.phase() == wire::WORKER_STOPPED);
    if (!works || s.generation() != record_.generation)
      return fmt::format("pod {} is not in generation {}", m.pod, record_.generation);
  }
  return "";
}

// Why members that stand still go on though nobody joins them; "": they do not.
std::string JobMachine::why_unparked() const {
  if (!parked_ || wish_.stop) return "";
  // One worker is enough for the last checkpoint.
  if (is_trained() && !wish_.is_stateless) return "nothing is missing but the last checkpoint";
  if (record_.members.size() < wish_.min_workers) return "";
  return "it stood still for a stop that was taken back";
}

void JobMachine::stable(MonoTime now) {
  if (record_.members.empty()) {
    if (wish_.stop) return end(now, Phase::kStopped, wish_.stop_reason);
    return try_start(now);
  }
  if (record_.phase == name_of(Phase::kStopped)) {
    if (wish_.stop) return end(now, Phase::kStopped, wish_.stop_reason);
    return begin_recovery(now, "Resumed", "resumed");
  }
  if (try_finish(now)) return;
  if (wish_.stop && view_.phase == Phase::kStopping) {
    advance_stop(now);
    if (ended_ != Phase::kWaiting || op_) return;
  }
  if (wish_.is_stateless && wish_.stop) return advance_stop(now);
  if (program_failed_ && !await_all_heard(now)) return;
  if (const std::string why = why_not_whole(); !why.empty()) return begin_recovery(now, "", why);
  lost_all_ = false;
  // A link broke and nobody died of it.
  if (suspect_since_) {
    if (now >= suspect_due()) return recover_links(now);
    wake_at(suspect_due());
    return;
  }
  if (const std::string why = why_unparked(); !why.empty())
    return begin_recovery(now, "Resumed", why);
  write_phase(parked_ ? Phase::kParked : Phase::kTraining);
  if (wish_.stop) return advance_stop(now);
  blame_the_stuck(now);
  if (op_) return;
  if (wish_.is_stateless) return change_programs(now);
  ask_left_out(now);
  followers(now);
  begin_planned(now);
}

}  // namespace rubato::coordinator
