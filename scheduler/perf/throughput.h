// Throughput of a job on n GPUs of one type, from its measured points, else from a prior.
//
// Exact where it was measured. In between the time of a step is linear in 1/n: t(n) = c/n + r, a
// compute c that the workers share and a part r that does not shrink (reduction, optimizer,
// commit): Amdahl's form. Below the first point it is proportional to 1/n. Beyond the last, c and r
// come from the last two points, or, of a single one, r is kPriorSerialShare of its step. With none
// only ratios mean anything: c + r = 1. (Pollux's overlap-aware form, OSDI'21 §3.1, needs more
// points than a young job has.)
#pragma once

#include "scheduler/model/cluster_state.h"

#include <string_view>
#include <vector>

namespace rubato::sched {

constexpr double kPriorSerialShare = 0.05;
// Slower is no measurement: ratios of two speeds stay numbers.
constexpr double kLeastTokensPerSecond = 1e-9;

class Throughput {
 public:
  // Points of other types are passed over; of several at one count the mean step counts.
  Throughput(const std::vector<ThroughputPoint>& measured, std::string_view gpu_type);
  // Tokens/s on `gpus` GPUs (0 for 0); relative to one GPU when nothing was measured.
  double at(Gpus gpus) const;
  bool is_measured() const { return !points_.empty(); }
  Gpus most_measured() const { return points_.empty() ? 0 : points_.back().gpus; }

 private:
  struct Point {
    Gpus gpus = 0;
    double seconds = 0;  // a token
  };

  std::vector<Point> points_;             // by GPUs, each once
  double slope_ = 1 - kPriorSerialShare;  // of the step in 1/n, beyond the last
};

}  // namespace rubato::sched
