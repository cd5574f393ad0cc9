#include "worker/agent/agent_series.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>

namespace rubato::worker {
namespace {

enum Row {
  kInfo,
  kConnected,
  kState,
  kStarts,
  kExits,
  kStep,
  kGeneration,
  kStepSeconds,
  kPhaseSeconds,
  kMicroBatches,
  kTokensPerSecond,
  kLinkFailures,
  kReached,
  kMissed,
  kCheckpoints,
  kSkipped,
};

std::string_view name_of(wire::WorkerPhase phase) {
  // As wire.proto numbers them.
  static constexpr std::array<std::string_view, 9> kNames = {"unknown",   "starting", "ready",
                                                             "following", "training", "aborted",
                                                             "parked",    "stopped",  "finished"};
  static_assert(wire::WORKER_FINISHED == kNames.size() - 1);
  const auto index = static_cast<std::size_t>(phase);
  return index < kNames.size() ? kNames[index] : kNames[0];
}

// What an earlier life had counted stays counted.
std::uint64_t grown(std::uint64_t before, std::uint64_t now, bool is_same_life) {
  return is_same_life ? (now > before ? now - before : 0) : now;
}

}  // namespace

void WorkerSeries::take(const wire::WorkerEvent& event, MonoTime now) {
  const wire::WorkerStanding before = std::exchange(standing, event.standing());
  const bool same = before.id().incarnation() == standing.id().incarnation();
  if (!same) phases_before_ = phases;
  // Elsewhere it is a sign of life alone: of one that pulls, or whose disk is slow.
  const bool trains = standing.phase() == wire::WORKER_TRAINING;
  if (trains || (same && before.phase() == wire::WORKER_TRAINING))
    micro_batches += grown(before.micro_done(), standing.micro_done(), same);
  checkpoints_skipped += grown(before.checkpoints_skipped(), standing.checkpoints_skipped(), same);
  for (const wire::PhaseTime& phase : event.phases()) {
    const bool known = phases.contains(phase.name());
    if ((!known && phases.size() >= kPhasesMost) || !std::isfinite(phase.seconds())) continue;
    double& total = phases[phase.name()];
    const auto earlier = phases_before_.find(phase.name());
    total =
        std::max(total, (earlier == phases_before_.end() ? 0 : earlier->second) + phase.seconds());
  }
  if (event.has_suspect()) ++link_failures;
  if (event.has_checkpoint_written()) ++checkpoints;
  if (event.has_reach()) {
    peers_reached = static_cast<std::uint64_t>(event.reach().reached_size());
    peers_missed = static_cast<std::uint64_t>(event.reach().missed_size());
  }
  take_speed(now);
}

void WorkerSeries::take_speed(MonoTime now) {
  const bool trains = standing.phase() == wire::WORKER_TRAINING;
  if (!trains || standing.tokens() < window_tokens_ || window_began_ == MonoTime{}) {
    if (!trains) tokens_per_second = 0;
    window_tokens_ = standing.tokens();
    window_began_ = trains ? now : MonoTime{};
    return;
  }
  if (now - window_began_ < kSpeedWindow) return;
  tokens_per_second = static_cast<double>(standing.tokens() - window_tokens_) /
                      std::chrono::duration<double>(now - window_began_).count();
  window_tokens_ = standing.tokens();
  window_began_ = now;
}

const std::vector<MetricInfo>& agent_metrics() {
  using enum MetricType;
  static const std::vector<MetricInfo> metrics = {
      {"rubato_agent_info",
       kGauge,
       {"namespace", "job_name", "pod", "node"},
       "",
       "1; whose agent this is, and where."},
      {"rubato_agent_connected",
       kGauge,
       {},
       "",
       "1 while the agent is connected to the operator that leads."},
      {"rubato_worker_state",
       kGauge,
       {"slot", "state"},
       "",
       "1 for the state that the worker is in."},
      {"rubato_worker_starts_total",
       kCounter,
       {"slot"},
       "starts",
       "How often the worker was started."},
      {"rubato_worker_exits_total",
       kCounter,
       {"slot", "reason"},
       "exits",
       "Ends of the worker's process, by reason."},
      {"rubato_worker_step", kGauge, {"slot"}, "steps", "Last step that the worker has committed."},
      {"rubato_worker_generation",
       kGauge,
       {"slot"},
       "",
       "Membership generation that the worker has formed last."},
      {"rubato_worker_step_seconds",
       kGauge,
       {"slot"},
       "seconds",
       "Median length of the last steps."},
      {"rubato_worker_phase_seconds_total",
       kCounter,
       {"slot", "phase"},
       "seconds",
       "Time that the worker has spent in each phase: compute, reduce, commit, apply and others; a "
       "straggler computes longest."},
      {"rubato_worker_micro_batches_total",
       kCounter,
       {"slot"},
       "micro-batches",
       "Micro-batches that this worker has computed; signs of life while it waits for its last "
       "checkpoint, and those of a script, count as well."},
      {"rubato_worker_tokens_per_second",
       kGauge,
       {"slot"},
       "tokens per second",
       "Speed of the whole job, as this worker sees it commit; all its workers say the same."},
      {"rubato_worker_link_failures_total",
       kCounter,
       {"slot"},
       "failures",
       "Links to other workers that this worker saw fail."},
      {"rubato_worker_reached_peers",
       kGauge,
       {"slot"},
       "workers",
       "Workers that answered this one's last probe of links."},
      {"rubato_worker_missed_peers",
       kGauge,
       {"slot"},
       "workers",
       "Workers that did not answer it."},
      {"rubato_worker_checkpoints_written_total",
       kCounter,
       {"slot"},
       "checkpoints",
       "Checkpoints that this worker has written."},
      {"rubato_worker_checkpoints_skipped_total",
       kCounter,
       {"slot"},
       "checkpoints",
       "Checkpoints left out because the one before was still being written."},
  };
  return metrics;
}

void expose(const AgentSeries& agent, Exposition& out) {
  const auto& rows = agent_metrics();
  const std::size_t slash = agent.job.find('/');
  const std::string_view job = agent.job;
  out.family(rows[kInfo]);
  out.sample({job.substr(0, slash), slash == std::string::npos ? "" : job.substr(slash + 1),
              agent.pod, agent.node},
             1);
  out.family(rows[kConnected]);
  out.sample({}, agent.connected ? 1 : 0);
  const auto each = [&](Row row, auto put) {
    out.family(rows[row]);
    for (const auto& [slot, worker] : agent.workers) put(std::to_string(slot), worker);
  };
  const auto number = [&](Row row, auto value) {
    each(row, [&](const std::string& slot, const WorkerSeries& worker) {
      out.sample({slot}, static_cast<double>(value(worker)));
    });
  };
  each(kState, [&](const std::string& slot, const WorkerSeries& worker) {
    out.sample({slot, name_of(worker.standing.phase())}, 1);
  });
  number(kStarts, [](const WorkerSeries& worker) { return worker.incarnation; });
  each(kExits, [&](const std::string& slot, const WorkerSeries& worker) {
    for (const auto& [reason, times] : worker.exits)
      out.sample({slot, reason}, static_cast<double>(times));
  });
  number(kStep, [](const WorkerSeries& worker) { return worker.standing.step(); });
  number(kGeneration, [](const WorkerSeries& worker) { return worker.standing.generation(); });
  number(kStepSeconds, [](const WorkerSeries& worker) { return worker.standing.step_seconds(); });
  each(kPhaseSeconds, [&](const std::string& slot, const WorkerSeries& worker) {
    for (const auto& [phase, seconds] : worker.phases) out.sample({slot, phase}, seconds);
  });
  number(kMicroBatches, [](const WorkerSeries& worker) { return worker.micro_batches; });
  number(kTokensPerSecond, [](const WorkerSeries& worker) { return worker.tokens_per_second; });
  number(kLinkFailures, [](const WorkerSeries& worker) { return worker.link_failures; });
  number(kReached, [](const WorkerSeries& worker) { return worker.peers_reached; });
  number(kMissed, [](const WorkerSeries& worker) { return worker.peers_missed; });
  number(kCheckpoints, [](const WorkerSeries& worker) { return worker.checkpoints; });
  number(kSkipped, [](const WorkerSeries& worker) { return worker.checkpoints_skipped; });
}

}  // namespace rubato::worker
