// What is simulated: a cluster and the jobs that come to it. Values; nobody but the simulator sees
// a TraceJob whole, because it holds the truth (work, speeds) that a policy may not know.
//
// Time is an integer of milliseconds since the trace's zero. Work is counted in units of the
// trace's own choice (iterations, samples, seconds of running alone); speeds are units per second.
#pragma once

#include "common/result.h"
#include "scheduler/model/cluster_state.h"
#include "scheduler/sim/application.h"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rubato::sched::sim {

struct SpeedPoint {
  Gpus gpus = 0;
  double units_per_second = 0;
};

// How fast a job truly is, by GPU type and count. Exact at its points; between two of them the time
// of a unit is linear in 1/n, as in scheduler/perf; below the first it is proportional to n; beyond
// the last more GPUs change nothing.
class SpeedCurve {
 public:
  // The type "*" stands for every type that has no points of its own.
  void add(const std::string& gpu_type, SpeedPoint point);
  // Units/s; 0 when the job cannot run on this type, or on no GPU.
  double at(const std::string& gpu_type, Gpus gpus) const;
  bool has_point(const std::string& gpu_type, Gpus gpus) const;
  bool runs_on(const std::string& gpu_type) const { return find(gpu_type) != nullptr; }
  const std::map<std::string, std::vector<SpeedPoint>>& points() const { return points_; }
  const std::vector<SpeedPoint>& points_on(const std::string& gpu_type) const;  // runs_on() it
  double fastest() const;                                                       // of all points

 private:
  const std::vector<SpeedPoint>* find(const std::string& gpu_type) const;
  std::map<std::string, std::vector<SpeedPoint>> points_;  // by count
};

// How a job truly trains where its speed depends on its batch, its epoch and its nodes.
struct AdaptiveTraining {
  std::shared_ptr<const Application> application;
  double batch = 1;    // under policies that ask for no goodput, or if it adapts nothing
  bool adapts = true;  // the batch, under those that do
  Gpus fixed_max = 1;  // in place of `max` and `speed`, at that batch
  SpeedCurve fixed_speed;
};

// How a job truly bears another one on its GPUs.
struct SharingProfile {
  GpuUse use;
  // Part of its speed alone that it keeps beside a job of that profile, on that GPU type, as
  // measured; where there is none, both get all that they ask for while the GPU has it, else each
  // its part: 1 / (busy of one + busy of the other).
  using Measured = std::map<std::pair<std::string, std::string>, double>;
  std::shared_ptr<const Measured> measured;
};

struct TraceJob {
  JobId id;
  std::int64_t line = 0;  // of the text that it was read from, for errors; 0: it was made
  TimeMs submit_ms = 0;
  std::string queue = "default";
  std::int64_t priority = 0;
  // Elastic policies give it min to max GPUs, all others `request`.
  Gpus request = 1;
  Gpus min = 1;
  Gpus max = 1;
  std::vector<std::string> allow;     // GPU types that it declares; empty: any
  bool one_node = false;              // all its GPUs are to be on one node
  std::optional<TimeMs> deadline_ms;  // that it declares
  // Jobs of one profile train the same model on the same batch: what is observed of one is known of
  // the others. Empty: of its own.
  std::string profile;
  double work = 0;   // units; hidden
  SpeedCurve speed;  // hidden
  // Units/s on `request` GPUs for policies that are not elastic, where the trace names an execution
  // plan and `speed` is that of the best; none: as `speed`. Hidden.
  std::optional<double> request_speed;
  // Bytes a second that its pods exchange at full speed on `request` GPUs; 0: not known.
  double traffic = 0;
  // What it reads, at full speed on `request` GPUs; none: nothing that could hold it up.
  std::optional<Dataset> dataset;
  // Empty: it has all the CPU and memory that it can use. Told to policies that share these out.
  std::vector<SensitivityPoint> sensitivity;
  // None: it shares with nobody. Policies that share are told its `use`; the rest is hidden.
  std::optional<SharingProfile> sharing;
  // None: as `speed` says at any time and anywhere. Needs SimOptions::in_lockstep. Hidden.
  std::optional<AdaptiveTraining> training;

  // Whether it declares this type, and runs on it.
  bool may_use(const std::string& gpu_type) const;
};

struct NodeGroup {
  std::int64_t nodes = 0;
  Gpus gpus = 0;  // per node
  std::string gpu_type;
};

// Topology: so many nodes, one after the other, are in one domain of a level.
struct DomainSize {
  std::string level;
  std::int64_t nodes = 0;
};

struct SimCluster {
  std::vector<NodeGroup> groups;
  std::vector<DomainSize> domains = {};  // the widest first
  Gpus gpus() const;
  std::map<std::string, Gpus> gpus_by_type() const;
  std::map<std::string, Gpus> largest_node_by_type() const;  // its GPUs
};

// "16x4:T4" or "24x4:T4,2x8:A100": nodes x GPUs of each : type. kInvalid says which part is wrong.
Result<SimCluster> parse_cluster(std::string_view text);
std::string to_text(const SimCluster& cluster);
// "zone=16,rack=4": levels with the nodes of a domain of each, the widest first; "": none.
Result<std::vector<DomainSize>> parse_domains(std::string_view text);
// "node=1.1,rack=1.5": how many times slower a job is whose pods are in two or more domains of a
// level, which is one of the cluster's, or "node"; "": none.
Result<std::map<std::string, double>> parse_distances(std::string_view text,
                                                      const SimCluster& cluster);

// By submission, then by id.
void sort_jobs(std::vector<TraceJob>& jobs);

}  // namespace rubato::sched::sim
