#include "worker/step/checkpoint_writer.h"

#include "common/log.h"

#include <utility>

namespace rubato::worker {

CheckpointWriter::CheckpointWriter(Done done)
    : done_(std::move(done)), thread_([this] { loop(); }) {}

CheckpointWriter::~CheckpointWriter() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

bool CheckpointWriter::try_submit(CheckpointJob job) {
  const std::lock_guard lock(mutex_);
  if (job_) return false;
  job_ = std::move(job);
  changed_.notify_all();
  return true;
}

bool CheckpointWriter::wait_idle(MonoTime deadline) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, deadline, [&] { return !job_; });
}

void CheckpointWriter::loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || job_; });
    if (!job_) return;
    CheckpointJob job = *job_;
    lock.unlock();
    const SystemClock clock;
    const MonoTime begun = clock.now();
    Result<std::string> path = Error(Code::kInternal, "never tried");
    for (int i = 0; i < kCheckpointTries && !path.ok(); ++i) {
      path = job.snapshot->save(*job.records);
      if (!path.ok()) LOG_WARNING("checkpoint", "{}", path.error().to_string());
    }
    const std::uint64_t step = job.snapshot->step();
    job = {};
    done_(step, path, std::chrono::duration<double>(clock.now() - begun).count());
    lock.lock();
    job_.reset();
    changed_.notify_all();
  }
}

}  // namespace rubato::worker
