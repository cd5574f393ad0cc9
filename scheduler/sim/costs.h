// What it costs to start, stop and resize a job. One model holds for every policy of a run, and
// none of its figures is free: a table shows both models.
//
// A job that is preempted or resized loses no progress: it has written its state first. What it
// pays is time in which it holds GPUs and does not train. Where nodes fail (failures.h) a job loses
// what it has trained since its last checkpoint, but in place as long as a member is left.
#pragma once

#include "scheduler/sim/trace.h"

#include <optional>
#include <string>
#include <string_view>

namespace rubato::sched::sim {

struct CostModel {
  std::string name;
  std::string source;     // where the figures come from, for reports
  TimeMs start_ms = 0;    // GPUs given -> first step, for a job that never ran
  TimeMs restart_ms = 0;  // the same for a job that was preempted: its checkpoint is read, too
  TimeMs release_ms = 0;  // told to leave -> GPUs free for others; they count as held until then
  TimeMs rescale_ms = 0;  // nobody trains for so long when the set of GPUs changes
  TimeMs join_ms = 0;     // new GPUs are held so long before that stall; the old ones train on
  // Members hold the state: a change writes no checkpoint, and those that a lost node leaves go on
  // after loss_ms; fewer than the job's minimum stand still, and keep their GPUs for park_ms. Else
  // any loss is a restart.
  bool in_place = false;
  TimeMs loss_ms = 0;
  TimeMs park_ms = 0;
};

// Checkpoint and restart: any change of a running job stops it for 30 s, as does a start: the delay
// constant of Pollux's policy and simulator (OSDI'21, artifact `osdi21-artifact`), which holds the
// checkpoint, the new processes and the restore. GPUs change hands at once.
CostModel restart_costs();

// Rubato's rescale in place: newcomers need the same 30 s to start, but the others train on; then
// all stand still for 600 ms (docs/benchmarks.md, `join`: 592 ms median, 1 271 ms at most, a model
// of 124M parameters with 1.5 GB of state over one machine's loopback). A pod that leaves frees its
// GPUs after 1 s: an assumption, not a measurement. Starts and restarts cost what they cost above.
// Members that a lost node leaves stand still for 2.6 s (docs/benchmarks.md, `recovery`: a node
// that falls silent, 2 576 ms median of 8 members); fewer than the minimum keep their GPUs for the
// 300 s that a job's spec.parkSeconds is by default.
CostModel in_place_costs();

// Any start and any change of a running job takes 260 s: the constant of Rubick's simulator
// (MLSys'25, artifact, `simulator/job.py`). GPUs change hands at once.
CostModel rubick_costs();

// "restart", "in-place", "rubick"; none for another word.
std::optional<CostModel> costs_named(std::string_view name);

}  // namespace rubato::sched::sim
