// AgentSeries: what an agent knows of its workers, as metrics. Taken down from the events that
// workers send anyway; shown when somebody asks. Private to this folder but for the catalogue.
//
// Bounded by the pod's slots; phases by kPhasesMost. Who is slow is seen here: of the workers of
// one job the straggler computes longest, and the others wait in `reduce` and `commit`.
#pragma once

#include "common/clock.h"
#include "common/exposition.h"
#include "worker/protocol/wire.pb.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace rubato::worker {

constexpr std::size_t kPhasesMost = 24;
constexpr auto kSpeedWindow = 10s;

struct WorkerSeries {
  std::uint64_t incarnation = 0;  // how often it was started
  wire::WorkerStanding standing;
  std::map<std::string, double> phases;  // seconds, over all incarnations
  std::map<std::string, std::uint64_t> exits;
  std::uint64_t micro_batches = 0;  // over all incarnations, as what follows
  std::uint64_t link_failures = 0;
  std::uint64_t checkpoints = 0;
  std::uint64_t checkpoints_skipped = 0;
  std::uint64_t peers_reached = 0;  // by its last probe
  std::uint64_t peers_missed = 0;
  double tokens_per_second = 0;

  void take(const wire::WorkerEvent& event, MonoTime now);

 private:
  void take_speed(MonoTime now);
  std::map<std::string, double> phases_before_;  // of earlier incarnations
  std::uint64_t window_tokens_ = 0;
  MonoTime window_began_{};
};

struct AgentSeries {
  std::string job;  // namespace/name
  std::string pod;
  std::string node;
  bool connected = false;
  std::map<std::uint32_t, WorkerSeries> workers{};  // by slot
};

const std::vector<MetricInfo>& agent_metrics();  // the catalogue, without the process' own
void expose(const AgentSeries& agent, Exposition& out);

}  // namespace rubato::worker
