// Throughput of a job on n GPUs of one type, from its measured points, else from a prior.
//
// Model: step time on n GPUs is t(n) = c/n + r, with compute c shared by the workers and a
// part r that does not shrink (reduction, optimizer, commit); tokens/s(n) = T/t(n). With two or
// more distinct measured counts c and r come from least squares on t; with one, r is
// kPriorSerialShare of the measured step; with none, only ratios mean anything: T = c = 1.
// (Amdahl's form; Pollux's overlap-aware form, OSDI'21 §3.1, needs more points than a young job
// has.)
#pragma once

#include "scheduler/model/cluster_state.h"

#include <string>
#include <vector>

namespace rubato::sched {

constexpr double kPriorSerialShare = 0.05;

class Throughput {
 public:
  Throughput(const std::vector<ThroughputPoint>& measured, const std::string& gpu_type);
  // Tokens/s on `gpus` GPUs (0 for 0); relative to one GPU when nothing was measured.
  double at(Gpus gpus) const;
  bool is_measured() const { return measured_; }

 private:
  double shared_ = 1.0 - kPriorSerialShare;  // c, in seconds per token
  double serial_ = kPriorSerialShare;        // r, in seconds per token
  bool measured_ = false;
};

}  // namespace rubato::sched
