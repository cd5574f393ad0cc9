// What a run looked like, and what each change of its membership cost. Pure functions.
#pragma once

#include "common/clock.h"
#include "tools/rubatoctl/view/loss_lines.h"
#include "tools/rubatoctl/view/text_table.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace rubato::ctl {

struct StepSeen {
  LossLine line;
  WallTime time;  // when a worker first said it
};
using StepsSeen = std::map<std::int64_t, StepSeen>;

// status.rescales.last, each as it came.
struct RescaleSeen {
  std::int64_t generation = 0;
  std::string reason;
  double stall_seconds = 0;
};

struct ChangeCost {
  std::int64_t step = 0;  // the first of the new generation
  std::int64_t generation = 0;
  int from = 0;
  int to = 0;
  double gap_seconds = 0;     // between the last step before and the first after
  double usual_seconds = 0;   // median length of the steps before
  std::string reason;         // the operator's words; empty when it said nothing
  double stall_seconds = -1;  // as the operator measured it; below zero: not said
};
std::vector<ChangeCost> costs_of(const StepsSeen& steps, const std::vector<RescaleSeen>& rescales);
TextTable cost_table(const std::vector<ChangeCost>& costs);

// Tokens per second over the last few steps, and what remains of `steps` at that speed.
struct Pace {
  double tokens_per_second = 0;
  double remaining_seconds = -1;  // below zero: not known
};
Pace pace_of(const StepsSeen& seen, std::int64_t steps, std::int64_t tokens_per_step);

}  // namespace rubato::ctl
