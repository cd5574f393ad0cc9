// rubatoctl simulate: a trace through scheduler/sim, once for each policy and cost model. No
// cluster is asked. Prints a table, and with `out` leaves summary.json, report.html and a CSV of
// all jobs for each run in a folder.
#pragma once

#include "common/clock.h"
#include "common/files.h"
#include "scheduler/sim/results.h"

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace rubato::ctl {

constexpr const char* kPolluxMode = "pollux-osdi21";

struct SimulateOptions {
  std::string trace;     // a file; "": a made trace
  std::string profiles;  // folder of application profiles, for Pollux and Rubick workloads
  // Gavel's table of speeds, for its traces; for made jobs, too, which are then of its models.
  std::string throughputs;
  std::string nodes = "16x4:T4";
  std::string domains;    // topology of its nodes: parse_domains
  std::string distances;  // what it costs to span these: parse_distances
  std::string fail;       // how often its nodes fail: parse_failures; "": never
  // What jobs that say a data set read from; 0 GiB/s: they wait for no data.
  double cache_gib = 0;
  double remote_gib_s = 0;
  // Of each node, for jobs that say how sensitive they are; 0 CPUs: they have all that they can
  // use.
  double node_cpus = 0;
  double node_gib = 0;
  // Each a name, maybe with parameters: "gavel:objective=1:roundSeconds=60".
  std::vector<std::string> policies = {"rubato", "marginalThroughput", "fifo", "srtf", "tiresias"};
  // pollux-osdi21: as Pollux' simulator plays its workloads; sets the costs, rounds and pause
  // below.
  std::string mode;
  std::string cost = "both";  // restart, in-place, rubick, both: the first two
  std::string out;            // folder; "": none
  std::int64_t first = 0;     // only so many jobs, by submission; 0: all
  // A file with the queues of a snapshot (docs/snapshot.md); "": none says anything.
  std::string queues;
  std::int64_t draw_queues = 0;  // seed: each job gets one of these, by weight; 0: its own
  std::string only_queue;        // jobs of no other; "": all
  bool one_node = false;         // jobs that fit on one node that they may use stay on one
  // What a SchedulingPolicy has by default.
  int round_s = 10;
  int growth_pause_s = 60;
  bool no_oracle = false;
  bool profiled = false;
  // Of a made trace:
  std::int64_t jobs = 100;
  double per_hour = 10;
  std::int64_t seed = 1;
  int elastic = 1;
};

// Reads the trace (its format by its header), or makes one. Jobs sorted by submission.
Result<std::vector<sched::sim::TraceJob>> load_trace(FileSystem& files,
                                                     const SimulateOptions& options);

// Of options.queues. kInvalid: docs/snapshot.md says what a list of queues is.
Result<std::map<std::string, sched::Queue>> load_queues(const SimulateOptions& options);
// As draw_queues, only_queue and one_node say.
Status put_into_queues(std::vector<sched::sim::TraceJob>& jobs,
                       const std::map<std::string, sched::Queue>& queues,
                       const sched::sim::SimCluster& cluster, const SimulateOptions& options);

// The policies of --policy and --compare: each once, in order. kInvalid: these name none.
Result<std::vector<std::string>> chosen_policies(const std::string& first,
                                                 const std::vector<std::string>& others);

// The table at the end.
std::string summary_table(const std::vector<sched::sim::Summary>& runs);

// "fifo, in-place: 45 % of 160 jobs, 12s, 15s to go".
std::string progress_line(const std::string& run, std::size_t finished, std::size_t of,
                          double seconds);

// Names of policies and what they are, a line each: for --help and errors.
std::string policies_text();

// `tell`: progress, a line at a time, at most each five seconds. The text to print at the end.
Result<std::string> simulate(FileSystem& files, const Clock& clock, const SimulateOptions& options,
                             const std::function<void(const std::string&)>& tell);

}  // namespace rubato::ctl
