// What a JobMachine is told, taken down; the pass over it all comes with tick().
#include "common/log.h"
#include "common/planted.h"
#include "operator/coordinator/bounds.h"
#include "operator/coordinator/job_machine.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include <fmt/format.h>

namespace rubato::coordinator {
namespace {

// Of what agents say, beside bounds.h.
constexpr std::uint64_t kCrashesMost = 1'000'000;  // of the workers of a pod
constexpr std::chrono::seconds kGraceMost = 24h;
// An agent that hears nothing for twice the silence dials again: not each heartbeat needs a word.
constexpr int kAcksPerSilence = 4;

// Grows whenever a worker shows that it is alive inside its step.
std::uint64_t progress_of(const wire::WorkerStanding& s) {
  return s.seq() * 1'000'003 + s.micro_done();
}

// A version before says only whether it is for good.
wire::FailureScope scope_of(const wire::Failure& failure) {
  if (failure.scope() != wire::FAILURE_SCOPE_UNSPECIFIED) return failure.scope();
  if (!failure.permanent()) return wire::FAILURE_SCOPE_ATTEMPT;
  const bool is_alike = failure.reason() == "NonFinite" || failure.reason() == "LedgerMismatch";
  return is_alike ? wire::FAILURE_SCOPE_JOB : wire::FAILURE_SCOPE_WORKER;
}

bool differs_in_progress_alone(const wire::WorkerStanding& a, const wire::WorkerStanding& b) {
  const auto decisive = [](const wire::WorkerStanding& s) {
    return std::tuple(s.id().incarnation(), s.phase(), s.generation(), s.fenced_below(),
                      s.has_state(), s.reduced(), s.prepared_generation(), s.following(),
                      s.caught_up(), s.looked(), s.has_checkpoint(), s.members_of(),
                      s.parked_digest());
  };
  return decisive(a) == decisive(b);
}

// What the end of a worker of that pod is charged as.
PodFailure failure_of(const std::string& pod, const std::string& pod_uid,
                      const wire::Exited& exited) {
  const std::string said = exited.message().empty() ? "" : ": " + bounded(exited.message());
  return {.pod = pod,
          .pod_uid = pod_uid,
          .reason = exited.reason().empty() ? "Crash" : bounded(exited.reason()),
          .message = "worker " + std::to_string(exited.id().slot()) + " exited with status " +
                     std::to_string(exited.exit_code()) + ", signal " +
                     std::to_string(exited.signal()) + said,
          .infrastructure = false};
}

}  // namespace

// ---- Inputs
// ----------------------------------------------------------------------------------------

void JobMachine::wish(MonoTime now, const Wish& wish) {
  has_news_ = true;
  const bool is_taken_back = wish_.stop && !wish.stop && !own_stop_;
  wish_ = wish;
  keep_own_stop();
  index_wish();
  forget_gone();
  if (is_taken_back && !conflict_) take_back_stop(now);
}

// Agents of pods that are no more, and what was said of these.
void JobMachine::forget_gone() {
  std::erase_if(agents_, [&](const auto& entry) {
    const bool is_over = entry.second.pod == nullptr && !entry.second.connected;
    if (is_over) agent_at_.erase(entry.first);
    return is_over;
  });
  std::set<std::string> names;
  for (const Wish::Pod& pod : wish_.pods) names.insert(pod.name);
  std::erase_if(retired_pods_, [&](const std::string& name) { return !names.contains(name); });
  std::erase_if(crashes_, [&](const auto& entry) {
    return wished(entry.first) == nullptr && !agent_at_.contains(entry.first);
  });
}

void JobMachine::connected(MonoTime arrived, const wire::Hello& hello) {
  const Wish::Pod* pod = wished(hello.pod_uid());
  if (pod == nullptr) return;  // it went meanwhile
  Agent& agent = agents_[hello.pod_uid()];
  const auto member = member_keys_.lower_bound({hello.pod_uid(), 0});
  const bool is_members = member != member_keys_.end() && member->pod_uid == hello.pod_uid();
  if (agent_at_.emplace(hello.pod_uid(), &agent).second && is_members) last_back_ = arrived;
  agent.pod = pod;
  agent.name = pod->name;
  if (!pod->node.empty())
    agent.node = pod->node;
  else if (agent.node.empty())  // it names one, and no other later: what nodes compute is kept
    agent.node = bounded(hello.node());
  agent.connected = true;
  agent.dead = agent.suspected = false;
  agent.last_seen = told_ = arrived;
  has_news_ = true;
  // What was said over the old connection may be lost: it is said again where it is still needed.
  for (auto& [slot, worker] : agent.workers) {
    worker.configured = worker.asked_stop = worker.retired = worker.restart_sent = false;
    worker.asked_save = false;
    worker.asked_look = 0;
    worker.abort_below = worker.form_generation = worker.follow_generation = 0;
    worker.form_since.reset();
    worker.settled_below = 0;
    worker.exited = true;  // unless the hello names it
  }
  for (const auto& standing : hello.workers())
    if (speaks_for(hello.pod_uid(), agent, standing.id())) take_standing(agent, standing);
  take_crashes(hello.crashes(), false,
               hello.has_last_crash()
                   ? failure_of(agent.name, hello.pod_uid(), hello.last_crash())
                   : PodFailure{.pod = agent.name,
                                .pod_uid = hello.pod_uid(),
                                .reason = "Crash",
                                .message = "a worker ended by itself while no leader heard it",
                                .infrastructure = false});
}

void JobMachine::disconnected(MonoTime arrived, const std::string& pod_uid,
                              const std::string& why) {
  Agent* agent = agent_of(pod_uid);
  if (agent == nullptr || !agent->connected) return;
  has_news_ = true;
  agent->connected = false;
  agent->lost_at = arrived;
  agent->lost_why = why;
}

void JobMachine::message(MonoTime arrived, const std::string& pod_uid,
                         const wire::AgentMessage& message) {
  Agent* agent = agent_of(pod_uid);
  if (agent == nullptr || !agent->connected) return;
  agent->last_seen = std::max(agent->last_seen, arrived);
  told_ = arrived;
  switch (message.body_case()) {
    case wire::AgentMessage::kHeartbeat: {
      for (const auto& standing : message.heartbeat().workers())
        if (speaks_for(pod_uid, *agent, standing.id())) take_standing(*agent, standing);
      if (arrived < agent->acked_at + timing_.silence / kAcksPerSilence) break;
      agent->acked_at = arrived;
      wire::CoordinatorMessage answer;
      answer.mutable_heartbeat_ack()->set_sequence(message.heartbeat().sequence());
      outputs_.sends.push_back({pod_uid, std::move(answer), nullptr});
      break;
    }
    case wire::AgentMessage::kWorker:
      if (speaks_for(pod_uid, *agent, message.worker().standing().id()))
        take_event(*agent, message.worker());
      break;
    case wire::AgentMessage::kExited:
      if (speaks_for(pod_uid, *agent, message.exited().id()))
        take_exit(pod_uid, *agent, message.exited());
      break;
    case wire::AgentMessage::kLeaving:
      if (!agent->leaving) {
        const Duration grace =
            std::min(std::chrono::seconds(message.leaving().grace_seconds()), kGraceMost);
        agent->leaving = has_news_ = true;
        agent->leave_deadline = arrived + std::max<Duration>(grace - kLeaveSafety, grace / 2);
      }
      break;
    case wire::AgentMessage::kHello:
    case wire::AgentMessage::BODY_NOT_SET:
      break;  // of a newer version: not for us
  }
}

void JobMachine::swapped(SwapResult result) {
  CHECK(in_flight_.has_value());
  has_news_ = true;
  const Record written = *std::exchange(in_flight_, std::nullopt);
  if (result == SwapResult::kConflict) {
    conflict_ = true;
    return;
  }
  record_ = written;
  index_members();
  if (op_ && op_->swap_asked && op_->next.generation == written.generation) op_->swapped = true;
}

void JobMachine::tick(MonoTime now, MonoTime heard) {
  if (!conflict_) mark_dead(planted(Bug::kJudgeUnheard) ? now : heard);
  pass(now);
}

Outputs JobMachine::take_outputs() { return std::exchange(outputs_, {}); }

// An agent speaks for the workers of its own pod alone, and for no more than these are.
bool JobMachine::speaks_for(const std::string& pod_uid, const Agent& agent,
                            const wire::WorkerId& id) {
  const std::uint32_t slots = agent.pod == nullptr ? 0 : std::min(agent.pod->slots, kSlotsMax);
  return id.pod_uid() == pod_uid && (id.slot() < slots || agent.workers.contains(id.slot()));
}

void JobMachine::take_standing(Agent& agent, const wire::WorkerStanding& said) {
  Worker& worker = agent.workers[said.id().slot()];
  if (said.id().incarnation() < worker.standing.id().incarnation()) return;  // replaced
  // What is said later of one that ended, or that we had killed over this connection, is old;
  // agents of a version before name the ended in each heartbeat.
  const bool is_over = worker.exited && (worker.ended || worker.restart_sent);
  if (is_over && said.id().incarnation() == worker.standing.id().incarnation()) return;
  if (said.id().incarnation() > worker.standing.id().incarnation()) {
    const int in_vain = worker.follows_in_vain;
    auto refusal = std::move(worker.refusal);
    if (refusal && !is_of_node(*refusal)) refusal.reset();
    worker = Worker{};
    worker.progress_at = told_;
    worker.follows_in_vain = in_vain;
    worker.refusal = std::move(refusal);
  }
  worker.exited = false;
  const wire::WorkerStanding before =
      std::exchange(worker.standing, bounded(said, wish_.micro_batches));
  if (planted(Bug::kStaleStatus) && said.fenced_below() > before.fenced_below()) {
    worker.standing = before;
    worker.standing.set_fenced_below(said.fenced_below());
  }
  const wire::WorkerStanding& standing = worker.standing;
  if (!standing.fingerprint().empty()) fingerprint_of_node_[agent.node] = standing.fingerprint();
  const bool ends_change = unfinished_ && standing.seq() > before.seq();
  has_news_ = has_news_ || ends_change || !differs_in_progress_alone(before, standing);
  const bool is_known = before.id().incarnation() == standing.id().incarnation();
  if (is_known) note_skipped(worker, before.checkpoints_skipped());
  const bool was_starting = before.phase() == wire::WORKER_STARTING;
  const bool has_read = standing.looked() != before.looked() || standing.phase() != before.phase();
  if (has_read) worker.unread.clear();
  const bool has_followed = before.phase() == wire::WORKER_FOLLOWING &&
                            standing.phase() != wire::WORKER_FOLLOWING &&
                            before.following() == worker.follow_generation;
  if (has_followed) note_followed(worker);
  if (was_starting && standing.phase() == wire::WORKER_READY) note_sharing(agent, worker);
  if (standing.caught_up() && standing.following() == worker.follow_generation) {
    worker.caught_up = true;
    worker.follows_in_vain = 0;
    worker.lost_donors = {};
  }
  // A standing names a fence once nothing below it can change any more: it is the Abort's answer.
  if (note_generations(standing))
    worker.settled_below = std::max(worker.settled_below, standing.fenced_below());
  if (standing.generation() >= worker.form_generation) worker.form_since.reset();
  note_ended(standing);
  if (progress_of(standing) != worker.progress_mark) {
    worker.progress_mark = progress_of(standing);
    worker.progress_at = told_;
  }
}

// What one process says of all that it has skipped does not fall.
void JobMachine::note_skipped(Worker& worker, std::uint64_t before) {
  const std::uint64_t now = std::max(before, worker.standing.checkpoints_skipped());
  worker.standing.set_checkpoints_skipped(now);
  outputs_.checkpoints_skipped += now - before;
}

void JobMachine::take_event(Agent& agent, const wire::WorkerEvent& event) {
  const std::uint64_t incarnation = event.standing().id().incarnation();
  take_standing(agent, event.standing());
  Worker& worker = agent.workers[event.standing().id().slot()];
  const wire::WorkerStanding& standing = worker.standing;
  if (incarnation != standing.id().incarnation()) return;
  has_news_ = has_news_ || event.news_case() != wire::WorkerEvent::kCommitted;
  switch (event.news_case()) {
    case wire::WorkerEvent::kSuspect: {
      const WorkerKey key{standing.id().pod_uid(), standing.id().slot()};
      // Who follows and loses its donor follows anew; of a joiner advance_planned() sees it.
      const bool has_joined = !joins(key) || event.suspect().generation() == op_->next.generation;
      if (!is_member(key)) note_lost_donor(worker, event.suspect());
      if (!is_member(key) || !has_joined) break;
      if (event.suspect().generation() < oldest_of_interest()) break;
      const bool is_known = suspect_since_ && suspect_cause_ != kLinkFailed;
      if (!suspect_since_) suspect_since_ = told_;
      const wire::WorkerId& peer = event.suspect().peer();
      note_broken_link(key, {peer.pod_uid(), peer.slot()});
      if (Agent* other = agent_of(peer.pod_uid())) other->suspected = true;
      if (is_known) break;  // a worker has failed, and others miss it
      suspect_cause_ = kLinkFailed;
      suspect_why_ = "link of pod " + agent.name + " failed: " + bounded(event.suspect().why());
      if (const Agent* other = agent_of(peer.pod_uid())) {
        suspect_why_ = "link of pod " + agent.name + " to pod " + other->name +
                       " failed: " + bounded(event.suspect().why());
      }
      break;
    }
    case wire::WorkerEvent::kFailure:
      take_failure(told_, agent, worker, event.failure());
      break;
    case wire::WorkerEvent::kReach:
      take_reach(told_, {standing.id().pod_uid(), standing.id().slot()}, event.reach());
      break;
    case wire::WorkerEvent::kCheckpointDamaged:
      note_damaged(event.checkpoint_damaged());
      break;
    case wire::WorkerEvent::kCheckpointWritten:  // where it stands, the standing says
      if (outputs_.checkpoints_written.size() < kCheckpointsTold)
        outputs_.checkpoints_written.push_back(
            bounded_seconds(event.checkpoint_written().seconds()));
      if (view_.checkpoint_damaged) show(*view_.checkpoint_damaged, std::string());
      show(view_.checkpoint_failing, std::string());
      break;
    case wire::WorkerEvent::kCommitted:
      if (event.committed().record().outcome() == wire::OUTCOME_DIVERGED)
        take_diverged(event.committed().generation(), event.committed().record(),
                      bounded(event.committed().difference()));
      break;
    case wire::WorkerEvent::NEWS_NOT_SET:
    case wire::WorkerEvent::kCaughtUp:
    case wire::WorkerEvent::kPrepared:
      break;  // the standing says it
  }
}

void JobMachine::take_failure(MonoTime now, Agent& agent, Worker& worker,
                              const wire::Failure& failure) {
  LOG_WARNING(kLog, "{}: {} of pod {}: {}", to_string(wish_.job), bounded(failure.reason()),
              agent.name, bounded(failure.message()));
  const wire::WorkerStanding& standing = worker.standing;
  const WorkerKey key{standing.id().pod_uid(), standing.id().slot()};
  const wire::FailureScope scope = scope_of(failure);
  // Nobody but a member speaks for the job, and a worker that holds its only copy is not refused.
  const bool is_for_good = planted(Bug::kAnyoneEnds) && scope != wire::FAILURE_SCOPE_ATTEMPT;
  if ((scope == wire::FAILURE_SCOPE_JOB && is_member(key)) || is_for_good) {
    outputs_.changed = true;
    view_.failure_reason = bounded(failure.reason());
    view_.failure_message = bounded(failure.message());
    return;
  }
  if (scope == wire::FAILURE_SCOPE_WORKER && (!standing.has_state() || others_hold_state(key)))
    return refuse(key, bounded(failure.reason()), bounded(failure.message()));
  if (failure.reason() == "CheckpointFailed") {
    // Who holds a state tries again to write it; who holds none waits to read one.
    const std::string why =
        fmt::format("pod {} on node {}: {}", agent.name, agent.node, bounded(failure.message()));
    if (!standing.has_state())
      worker.unread = why;
    else
      show(view_.checkpoint_failing, why);
    return;
  }
  if (wish_.is_stateless) {
    if (is_member(key) && standing.generation() == record_.generation &&
        (!program_failed_ || program_failed_->generation < standing.generation()))
      program_failed_ = {.generation = standing.generation(),
                         .at = now,
                         .failure = {.pod = agent.name,
                                     .pod_uid = key.pod_uid,
                                     .reason = bounded(failure.reason()),
                                     .message = bounded(failure.message()),
                                     .infrastructure = false}};
    return;
  }
  if (failure.reason() == kDeviceLost &&
      happens_again(agent.node, fmt::format("{}/{}", key.pod_uid, standing.id().incarnation())))
    refuse(key, kDeviceLost, "twice within an hour; now: " + bounded(failure.message()));
  worker.start_failed = worker.start_failed || !standing.has_state();
  const bool is_of_now = standing.generation() >= oldest_of_interest() || joins(key);
  if (!is_of_now) return;
  const std::string why = fmt::format("{} of pod {} on node {}: {}", bounded(failure.reason()),
                                      agent.name, agent.node, bounded(failure.message()));
  if (is_member(key) && !standing.has_state()) start_why_ = why;
  if (suspect_since_ && suspect_cause_ != kLinkFailed) return;
  if (!suspect_since_) suspect_since_ = now;  // it could not form, start, level or compute
  suspect_cause_ = bounded(failure.reason());
  suspect_why_ = why;
}

// What is wrong with its node is so for its next process, too.
bool JobMachine::is_of_node(const Refusal& refusal) {
  return refusal.reason == kDiverged || refusal.reason == kDeviceLost;
}

void JobMachine::refuse(const WorkerKey& key, const std::string& reason,
                        const std::string& message) {
  Worker* worker = worker_of(key);
  if (worker == nullptr || worker->refusal) return;
  const Agent& agent = agents_[key.pod_uid];
  LOG_WARNING(kLog, "{}: refuses worker {} of pod {} on node {}: {}: {}", to_string(wish_.job),
              key.slot, agent.name, agent.node, reason, message);
  worker->refusal = Refusal{.pod = agent.name,
                            .pod_uid = key.pod_uid,
                            .node = agent.node,
                            .reason = reason,
                            .message = message};
}

void JobMachine::note_damaged(const wire::CheckpointDamaged& news) {
  if (news.path().empty() && view_.checkpoint_damaged && !view_.checkpoint_damaged->empty())
    return;  // another member was first, and has said where it is kept
  const std::string kept = news.path().empty() ? "" : "; kept as " + bounded(news.path());
  view_.checkpoint_damaged = "the checkpoint of step " + std::to_string(news.step()) +
                             " cannot be used: " + bounded(news.why()) + kept +
                             "; older ones are tried in turn";
  outputs_.changed = true;
}

void JobMachine::take_exit(const std::string& pod_uid, Agent& agent, const wire::Exited& exited) {
  const auto found = agent.workers.find(exited.id().slot());
  Worker* worker = found == agent.workers.end() ? nullptr : &found->second;
  const bool is_present =
      worker != nullptr && exited.id().incarnation() >= worker->standing.id().incarnation();
  // An agent that counts may tell late of one that has a successor, or that no hello named.
  if (!is_present && !exited.has_crashes()) return;
  has_news_ = true;
  if (is_present) {
    worker->exited = worker->ended = true;
    if (worker->retired && exited.exit_code() == 0) {
      const bool all = std::all_of(agent.workers.begin(), agent.workers.end(),
                                   [](const auto& entry) { return entry.second.exited; });
      if (all) retired_pods_.insert(agent.name);
      return;
    }
  }
  // An agent of a version before counts nothing.
  const auto known = crashes_.find(pod_uid);
  const std::uint64_t count = exited.has_crashes()      ? exited.crashes()
                              : known == crashes_.end() ? 1
                                                        : known->second + 1;
  const bool is_known =
      worker != nullptr && exited.id().incarnation() <= worker->restart_ordered;  // by the order
  take_crashes(count, is_known, failure_of(agent.name, pod_uid, exited));
}

// The agent counts on, whoever leads and whatever message is lost: what is above the number that we
// know is new. `failure` tells of the last.
void JobMachine::take_crashes(std::uint64_t count, bool is_last_known, PodFailure failure) {
  count = std::min(count, kCrashesMost);
  const auto known = crashes_.find(failure.pod_uid);
  const std::uint64_t before = known == crashes_.end() ? 0 : known->second;
  if (count <= before) return;
  crashes_[failure.pod_uid] = count;
  if (const std::uint64_t times = count - before - (is_last_known ? 1 : 0); times > 0)
    add_failure(std::move(failure), times);
}

}  // namespace rubato::coordinator
