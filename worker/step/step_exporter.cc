#include "worker/step/step_exporter.h"

#include "common/log.h"

#include <utility>

namespace rubato::worker {

namespace {
constexpr auto kTick = 1min;  // of waits that nothing but news ends
}

StepExporter::StepExporter(Executor& executor, StepExport file)
    : executor_(executor),
      file_(std::move(file)),
      changed_(executor.make_condition()),
      task_(executor.spawn("export", [this](const std::stop_token&) { loop(); })) {}

StepExporter::~StepExporter() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_->notify_all();
  task_ = Task();
}

void StepExporter::restart(std::span<const StepRecord> history) {
  const std::lock_guard lock(mutex_);
  waiting_.assign(history.begin(), history.end());
  ++restarts_;
  changed_->notify_all();
}

void StepExporter::add(const StepRecord& record) {
  const std::lock_guard lock(mutex_);
  waiting_.push_back(record);
  changed_->notify_all();
}

bool StepExporter::wait_idle(MonoTime deadline) {
  std::unique_lock lock(mutex_);
  return changed_->wait_until(lock, deadline, [&] { return waiting_.empty() && !is_writing_; });
}

void StepExporter::loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    while (!stop_ && waiting_.empty()) changed_->wait_until(lock, executor_.now() + kTick);
    if (waiting_.empty()) return;
    const bool is_last = stop_;
    std::vector<StepRecord> records = std::exchange(waiting_, {});
    const std::uint64_t restarts = restarts_;
    is_writing_ = true;
    lock.unlock();
    const bool done = write(records);
    lock.lock();
    is_writing_ = false;
    // What came meanwhile follows what is tried again, or begins anew and takes its place.
    if (!done && restarts == restarts_)
      waiting_.insert(waiting_.begin(), records.begin(), records.end());
    changed_->notify_all();
    if (is_last) return;
    if (!done) changed_->wait_until(lock, executor_.now() + kExportRetry, [&] { return stop_; });
  }
}

bool StepExporter::write(std::span<const StepRecord> records) {
  Status done = file_.write(records);
  if (!done.ok() && done.error().code() == Code::kConflict) {
    LOG_ERROR("export", "{}", done.error().what());
    done = ok();
  }
  if (!done.ok()) LOG_WARNING("export", "{}", done.error().what());
  return done.ok();
}

}  // namespace rubato::worker
