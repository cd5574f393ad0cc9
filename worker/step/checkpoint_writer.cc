#include "worker/step/checkpoint_writer.h"

#include "common/log.h"

#include <utility>

namespace rubato::worker {

namespace {
constexpr auto kIdleWait = 1min;  // every wait has an end

// Does trying again?
bool may_help(const Result<std::string>& path) {
  return !path.ok() && path.error().code() != Code::kConflict &&
         path.error().code() != Code::kInvalid;
}
}  // namespace

CheckpointWriter::CheckpointWriter(Executor& executor, Done done)
    : executor_(executor), done_(std::move(done)), changed_(executor.make_condition()) {
  task_ = executor.spawn("checkpoints", [this](const std::stop_token&) { loop(); });
}

CheckpointWriter::~CheckpointWriter() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_->notify_all();
  task_ = Task();
}

bool CheckpointWriter::try_submit(CheckpointJob job) {
  const std::lock_guard lock(mutex_);
  if (job_) return false;
  job_ = std::move(job);
  changed_->notify_all();
  return true;
}

bool CheckpointWriter::wait_idle(MonoTime deadline) {
  std::unique_lock lock(mutex_);
  return changed_->wait_until(lock, deadline, [&] { return !job_; });
}

bool CheckpointWriter::is_stopping() {
  const std::lock_guard lock(mutex_);
  return stop_;
}

void CheckpointWriter::loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    while (!stop_ && !job_) changed_->wait_until(lock, executor_.now() + kIdleWait);
    if (!job_) return;
    CheckpointJob job = *job_;
    lock.unlock();
    const MonoTime begun = executor_.now();
    Result<std::string> path = job.snapshot->save(*job.records, job.redo_attempts);
    for (int i = 1; i < kCheckpointTries && may_help(path) && !is_stopping(); ++i) {
      LOG_WARNING("checkpoint", "{}", path.error().to_string());
      executor_.sleep_for(kCheckpointPause);
      path = job.snapshot->save(*job.records, job.redo_attempts);
    }
    const std::uint64_t step = job.snapshot->step();
    job = {};
    done_(step, path, std::chrono::duration<double>(executor_.now() - begun).count());
    lock.lock();
    job_.reset();
    changed_->notify_all();
  }
}

}  // namespace rubato::worker
