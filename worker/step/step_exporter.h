// StepExporter: writes step records beside training, in a task of its own, so that no step waits
// for the disk. What cannot be written is tried again (kExportRetry) with what came meanwhile; what
// waits is never more than the job's records. Thread-safe.
#pragma once

#include "common/executor.h"
#include "worker/checkpoint/step_export.h"

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace rubato::worker {

constexpr auto kExportRetry = 1s;

class StepExporter {
 public:
  StepExporter(Executor& executor, StepExport file);
  ~StepExporter();  // tries once more to write what waits

  // All that was ever committed: takes the place of what waits.
  void restart(std::span<const StepRecord> history);
  // The record behind the last one.
  void add(const StepRecord& record);
  // Until nothing waits; false at the deadline.
  bool wait_idle(MonoTime deadline);

 private:
  void loop();
  bool write(std::span<const StepRecord> records);
  Executor& executor_;
  StepExport file_;  // of the task
  std::mutex mutex_;
  const std::unique_ptr<Condition> changed_;
  std::vector<StepRecord> waiting_;
  std::uint64_t restarts_ = 0;
  bool is_writing_ = false;
  bool stop_ = false;
  Task task_;
};

}  // namespace rubato::worker
