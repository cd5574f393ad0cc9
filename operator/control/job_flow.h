// JobFlow: counts what happens to jobs, from the differences between one state of a TrainingJob and
// the next as the watch shows them: allocated, first step, evicted, ended, GPU time, restarts. Each
// difference is seen once (Informer::on_change and on_written). Costs a few comparisons a change.
//
// Values of labels are bounded: reasons by a fixed list, queues by kQueuesWithSeries. Thread-safe.
#pragma once

#include "common/metrics.h"
#include "operator/api/training_job.h"

#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace rubato::control {

// What lies between two states of one job. Pure.
struct JobDifference {
  std::optional<double> waited_seconds;      // it was allocated after so long
  std::optional<double> first_step_seconds;  // its first step came so long after its creation
  std::string evicted;                       // the reason; empty: it was not
  std::string ended_state;                   // "Complete" or "Failed"; empty: it has not
  std::string ended_reason;
  std::map<std::string_view, double> gpu_seconds;  // by use; below zero where time was booked anew
  std::int64_t recomputed_steps = 0;
  std::int64_t restarts = 0;   // charged
  std::int64_t lost_pods = 0;  // not charged
  bool operator==(const JobDifference&) const = default;
};
JobDifference difference(const api::TrainingJob& before, const api::TrainingJob& after);

// `reason` where it is one of the conditions' reasons, else "Other".
std::string_view bounded_reason(std::string_view reason);

class JobFlow {
 public:
  explicit JobFlow(Metrics& metrics) : metrics_(metrics) {}
  void note(const api::TrainingJob& before, const api::TrainingJob& after);

 private:
  std::string bounded_queue(const std::string& queue);
  void add_gpu_seconds(const std::string& queue, std::string_view use, double seconds);

  Metrics& metrics_;
  std::mutex mutex_;
  std::set<std::string> queues_;
  // What a counter must not show because it was booked elsewhere since; by queue and use.
  std::map<std::pair<std::string, std::string_view>, double> overdrawn_;
};

}  // namespace rubato::control
