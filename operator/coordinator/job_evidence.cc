// Who lives: what counts as a sign of life, and when the lack of one is one of death.
#include "common/log.h"
#include "operator/coordinator/job_machine.h"

#include <algorithm>

namespace rubato::coordinator {

// A step needs all: a round that began after an agent was last heard and is committed, whoever says
// so, was computed by its workers too. An open socket says nothing.
void JobMachine::note_round(std::uint64_t generation, MonoTime told) {
  const bool is_newest = generation == record_.generation;
  for (const Member& m : is_newest ? record_.members : record_.previous) {
    Agent* agent = agent_of(m.key.pod_uid);
    if (agent == nullptr || agent->dead) continue;
    const MonoTime unheard_since = agent->connected ? agent->last_seen : agent->lost_at;
    if (round_begun_ && round_begun_->generation == generation && round_begun_->at > unheard_since)
      agent->trained_at = told;
  }
  round_begun_ = {generation, told};
}

// When the lack of a sign of life is one of death, if none comes before.
MonoTime JobMachine::dead_at(const Agent& agent) const {
  const MonoTime trained = agent.trained_at + timing_.silence;
  if (agent.connected)
    return std::max({agent.last_seen + timing_.silence, trained, awake_since_ + timing_.silence});
  MonoTime at = agent.lost_at + (agent.suspected ? Duration{0} : timing_.reconnect_grace);
  if (agent.trained_at > agent.lost_at) at = std::max(at, trained);
  // It hung up because we slept, or found us asleep when it came back: it needs two tries.
  if (!agent.suspected) at = std::max(at, awake_since_ + 2 * timing_.silence);
  return at;
}

// `heard`: all that had arrived by then has been taken down.
void JobMachine::mark_dead(MonoTime heard) {
  for (auto& [uid, agent] : agents_) {
    if (agent.dead) continue;
    if (heard >= dead_at(agent)) call_dead(uid, agent);
  }
}

void JobMachine::call_dead(const std::string& uid, Agent& agent) {
  const char* reason = agent.connected ? "Silent" : "AgentLost";
  agent.dead = true;
  if (agent.connected) {
    agent.lost_why = "no heartbeat";
    agent.connected = false;
    outputs_.drops.push_back(uid);
  }
  const bool over = wished(uid) == nullptr;
  bool retired = over || ended_ != Phase::kWaiting;
  for (const auto& [slot, worker] : agent.workers) retired = retired || worker.retired;
  if (retired || retired_pods_.contains(agent.name)) {
    if (!over) retired_pods_.insert(agent.name);
    return;
  }
  add_failure({.pod = agent.name,
               .pod_uid = uid,
               .reason = reason,
               .message = agent.lost_why,
               .infrastructure = true});
}

// While we slept, nobody could be heard, and answers that are due have come or are on their way:
// every deadline begins anew.
void JobMachine::awake(MonoTime now, MonoTime since) {
  if (since <= std::max(awake_since_, led_since_)) return;
  awake_since_ = since;
  const Duration slept = now - std::min(now, passed_);
  LOG_WARNING(kLog, "{}: slept for {:.1f} s; deadlines begin anew", to_string(wish_.job),
              std::chrono::duration<double>(slept).count());
  led_since_ += slept;
  if (first_back_) *first_back_ += slept;
  if (first_attempt_) *first_attempt_ += slept;
  quiet_since_ = std::max(quiet_since_, now);
  if (op_) op_->deadline += slept;
  for (auto& [uid, agent] : agents_) {
    for (auto& [slot, worker] : agent.workers) {
      worker.follow_since += slept;
      worker.asked_at += slept;
      worker.progress_at = now;
      if (worker.form_since) worker.form_since = now;
    }
  }
}

}  // namespace rubato::coordinator
