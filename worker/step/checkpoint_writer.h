// CheckpointWriter: writes snapshots in a task of its own, one at a time, so that a step waits
// for the copy alone. Thread-safe.
#pragma once

#include "common/executor.h"
#include "worker/checkpoint/step_record.h"
#include "worker/step/replica.h"

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace rubato::worker {

constexpr int kCheckpointTries = 3;
constexpr auto kCheckpointPause = 1s;  // between them

struct CheckpointJob {
  std::shared_ptr<Snapshot> snapshot;
  std::shared_ptr<const std::vector<StepRecord>> records;
  std::uint32_t redo_attempts = 0;
};

class CheckpointWriter {
 public:
  // Called in the writer's task after each job, with its path or the last try's error.
  using Done =
      std::function<void(std::uint64_t step, const Result<std::string>& path, double seconds)>;
  CheckpointWriter(Executor& executor, Done done);
  ~CheckpointWriter();  // finishes the job in hand

  // False when one is still being written.
  bool try_submit(CheckpointJob job);
  // Until nothing is being written; false at the deadline.
  bool wait_idle(MonoTime deadline);

 private:
  void loop();
  bool is_stopping();
  Executor& executor_;
  const Done done_;
  std::mutex mutex_;
  const std::unique_ptr<Condition> changed_;
  std::optional<CheckpointJob> job_;
  bool stop_ = false;
  Task task_;
};

}  // namespace rubato::worker
