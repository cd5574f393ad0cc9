// CheckpointWriter: writes snapshots in a thread of its own, one at a time, so that a step waits
// for the copy alone. Thread-safe.
#pragma once

#include "common/clock.h"
#include "worker/checkpoint/step_record.h"
#include "worker/step/replica.h"

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace rubato::worker {

constexpr int kCheckpointTries = 3;

struct CheckpointJob {
  std::shared_ptr<Snapshot> snapshot;
  std::shared_ptr<const std::vector<StepRecord>> records;
};

class CheckpointWriter {
 public:
  // Called in the writer's thread after each job, with its path or the last try's error.
  using Done =
      std::function<void(std::uint64_t step, const Result<std::string>& path, double seconds)>;
  explicit CheckpointWriter(Done done);
  ~CheckpointWriter();  // finishes the job in hand

  // False when one is still being written.
  bool try_submit(CheckpointJob job);
  // Until nothing is being written; false at the deadline.
  bool wait_idle(MonoTime deadline);

 private:
  void loop();
  const Done done_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<CheckpointJob> job_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace rubato::worker
