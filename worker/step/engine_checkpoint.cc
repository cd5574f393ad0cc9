// Checkpoints: written beside training, written before an end, and looked for.
#include "common/log.h"
#include "common/planted.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/step/engine.h"

#include <algorithm>
#include <filesystem>
#include <ranges>

#include <fmt/format.h>

namespace rubato::worker {

// ---- Writing -----------------------------------------------------------------------------------

// The writer's task, after each job.
void StepEngine::Impl::checkpoint_done(std::uint64_t step, const Result<std::string>& path,
                                       double seconds) {
  if (!path.ok()) {
    {
      const std::lock_guard lock(mutex);
      save_error = path.error();
    }
    fail("CheckpointFailed", path.error(), wire::FAILURE_SCOPE_ATTEMPT);
    return;
  }
  wire::WorkerEvent event;
  event.mutable_checkpoint_written()->set_step(step);
  event.mutable_checkpoint_written()->set_path(path.value());
  event.mutable_checkpoint_written()->set_seconds(seconds);
  {
    const std::lock_guard lock(mutex);
    saved_step = step;
    save_error.reset();
    standing.set_has_checkpoint(true);
    standing.set_checkpoint_step(step);
    standing.set_checkpoint_digest(0);  // looked at when it is asked for
  }
  emit(std::move(event));
}

bool StepEngine::Impl::checkpoint_due(const wire::CommitRecord& record) const {
  if (replica->step() >= job.stop_steps) return false;  // the final one is finish()'s
  if (record.checkpoint()) return true;
  return record.outcome() == wire::OUTCOME_APPLY && job.checkpoint_every > 0 &&
         replica->step() % job.checkpoint_every == 0;
}

// Where the last decision made one due, once in a generation: a due checkpoint that an abort cut
// off is begun by the generation after it, which stands at the same decision. Before any decision
// all of what members have read (weights to start from, a checkpoint) is compared, for all that
// follows is made of it.
Status StepEngine::Impl::checkpoint_if_due() {
  std::optional<wire::CommitRecord> last;
  {
    const std::lock_guard lock(mutex);
    if (compared_seq == standing.seq()) return ok();
    if (standing.has_last()) last = standing.last();
    compared_seq = standing.seq();
  }
  if (!last) return compare_states();
  if (!checkpoint_due(*last)) return ok();
  if (job.has_checkpoints) TRY_OK(compare_states());
  if (membership.rank == 0)
    begin_checkpoint(last->checkpoint());
  else if (last->checkpoint())
    owed_checkpoint.reset();  // who was rank 0 and still owed one: it is for rank 0 now
  return ok();
}

// Copies the state and hands it to the writer; no step waits for the disk. One that is skipped
// although it was asked for is owed: reduce_and_vote() asks again when the writer has time, and not
// at each step where it is copies of the state, or memory for one, that lack.
void StepEngine::Impl::begin_checkpoint(bool is_asked_for) {
  const std::uint64_t step = replica->step();
  if (last_checkpoint == step) return;
  if (!job.has_checkpoints) return say_unsaved();
  reach("checkpoint");
  const Status begun = submit_checkpoint();
  const bool is_owed = !begun.ok() && (owed_checkpoint || is_asked_for);
  owed_checkpoint = is_owed ? std::optional(now() + kSaveRetryFirst) : std::nullopt;
  if (begun.ok()) return;
  std::uint64_t skipped = 0;
  {
    const std::lock_guard lock(mutex);
    skipped = standing.checkpoints_skipped() + 1;
    standing.set_checkpoints_skipped(skipped);
  }
  LOG_WARNING("checkpoint", "step {} is skipped: {}; {} skipped so far", step, begun.error().what(),
              skipped);
  parts.print(fmt::format("checkpoint skipped step={} skipped={}", step, skipped));
}

// Those of the state that another takes the place of: it is saved though its step was before.
void StepEngine::Impl::forget_checkpoints() {
  last_checkpoint.reset();
  const std::lock_guard lock(mutex);
  saved_step.reset();
  save_error.reset();
}

// Nowhere to write: said, so that nobody waits for it.
void StepEngine::Impl::say_unsaved() {
  last_checkpoint = replica->step();
  wire::WorkerEvent event;
  event.mutable_checkpoint_written()->set_step(replica->step());
  emit(std::move(event));
}

Status StepEngine::Impl::submit_checkpoint() {
  if (!writer->wait_idle(planted(Bug::kStepsWait) ? now() + 30s : now()))
    return Error(Code::kExhausted, "the one before is still being written");
  TRY(auto copied, replica->snapshot());
  CHECK(writer->try_submit({std::move(copied),
                            std::make_shared<const std::vector<StepRecord>>(history),
                            redo_attempts}));  // this thread alone submits
  last_checkpoint = replica->step();
  return ok();
}

// Before an end: the state is held, and the checkpoint tried again, until it stands. Meanwhile the
// standing shows life.
Status StepEngine::Impl::save_last() {
  if (!job.has_checkpoints) {
    if (last_checkpoint != replica->step()) say_unsaved();
    return ok();
  }
  reach("checkpoint");
  const MonoTime give_up = now() + job.checkpoint_give_up;
  const MonoTime write_limit = std::max<MonoTime>(give_up, now() + kLastWriteWait);
  Duration pause = kSaveRetryFirst;
  std::string before;  // why the last try failed
  for (;;) {
    live_until(write_limit, [&](MonoTime until) { return writer->wait_idle(until); });
    std::optional<Error> failed;
    {
      const std::lock_guard lock(mutex);
      if (saved_step == replica->step()) break;
      if (last_checkpoint == replica->step()) failed = save_error;
    }
    if (is_interrupted()) return Error(Code::kCancelled, "interrupted");
    if (!failed && now() >= write_limit)
      return Error(Code::kTimeout, "the disk has not taken it in time" + before);
    if (!failed) {
      const Status begun = submit_checkpoint();
      if (begun.ok()) continue;
      failed = begun.error();  // all copies of the state are in use
    }
    const bool is_hopeless = failed->code() == Code::kConflict ||
                             failed->code() == Code::kInvalid || failed->reason() == kDeviceLost;
    if (is_hopeless || now() >= give_up || planted(Bug::kOneTry)) return *failed;
    before = "; before that: " + failed->what();
    last_checkpoint.reset();
    live_until(std::min(give_up, now() + pause), [&](MonoTime until) {
      parts.executor.sleep_until(until);
      return false;
    });
    pause = std::min<Duration>(2 * pause, kSaveRetryMost);
  }
  if (exporter)
    live_until(now() + kExportWait, [&](MonoTime until) { return exporter->wait_idle(until); });
  return ok();
}

// Waits until `done(until)` says true, an Abort, or the deadline; shows life once a second.
void StepEngine::Impl::live_until(MonoTime deadline, const std::function<bool(MonoTime)>& done) {
  MonoTime next_sign = now() + 1s;
  while (!is_interrupted() && now() < deadline) {
    if (done(std::min<MonoTime>(deadline, now() + 50ms))) return;
    if (now() < next_sign) continue;
    next_sign += 1s;
    const std::lock_guard lock(mutex);
    standing.set_micro_done(standing.micro_done() + 1);
  }
}

void StepEngine::Impl::fail_save(const std::string& what, const Error& error,
                                 wire::FailureScope scope) {
  const std::string& reason = error.reason();
  fail(reason.empty() ? "CheckpointFailed" : reason, error.in(what + " is not written"), scope);
}

// ---- Looking -----------------------------------------------------------------------------------

// What is on disk now: the newest that says of itself that it is whole. One that does not is set
// aside, and the one before looked at, as it is where one has just gone. kUnavailable: the disk
// does not answer, or all have gone that it named, and others may have come.
Result<std::optional<FoundCheckpoint>> StepEngine::Impl::find_checkpoint() {
  if (!job.has_checkpoints) return std::optional<FoundCheckpoint>();
  TRY(const std::vector<std::uint64_t> steps, replica->checkpoints());
  std::optional<Error> gone;
  for (const std::uint64_t step : std::views::reverse(steps)) {
    const auto found = replica->look_at_checkpoint(step);
    if (found.ok()) return std::optional(*found);
    if (found.error().reason() == kCheckpointDamaged) {
      TRY_OK(set_aside(step, found.error().what()));
    } else if (found.error().code() == Code::kNotFound) {
      gone = found.error();
    } else {
      return found.error();
    }
  }
  if (gone) return Error(Code::kUnavailable, "a checkpoint has just gone: " + gone->what());
  return std::optional<FoundCheckpoint>();
}

// Says that a checkpoint is damaged, and makes room for the one before.
Status StepEngine::Impl::set_aside(std::uint64_t step, const std::string& why) {
  const auto path = replica->set_aside_checkpoint(step);
  if (!path.ok() && path.error().code() != Code::kNotFound)
    return path.error().in(fmt::format("step {} is damaged and cannot be set aside", step));
  LOG_ERROR("checkpoint", "step {}: {}; kept as {}", step, why, path.value_or("before"));
  wire::WorkerEvent event;
  wire::CheckpointDamaged& news = *event.mutable_checkpoint_damaged();
  news.set_step(step);
  news.set_path(path.value_or(""));
  news.set_why(why);
  emit(std::move(event));
  return ok();
}

// With the mutex held.
void StepEngine::Impl::note_found(const std::optional<FoundCheckpoint>& found,
                                  std::uint64_t number) {
  standing.set_looked(number);
  standing.set_has_checkpoint(found.has_value());
  standing.set_checkpoint_step(found ? found->step : 0);
  standing.set_checkpoint_digest(found ? found->digest : 0);
}

// True: said for good, after kDeniedLimit of this answer alone, for no time gives a right to read.
// What does not answer may do so yet; that it has not for so long is said, again and again.
bool StepEngine::Impl::fails_denied(const Error& error, DiskWait& wait) {
  if (error.code() == Code::kDenied) {
    if (now() < wait.denied_until) return false;
    fail("CheckpointFailed", "checkpoints may not be read: " + error.what(),
         wire::FAILURE_SCOPE_WORKER);
    return true;
  }
  wait.denied_until = now() + kDeniedLimit;
  if (now() < wait.told_at + kDeniedLimit) return false;
  wait.told_at = now();
  fail("CheckpointFailed", "the disk of checkpoints does not answer: " + error.what(),
       wire::FAILURE_SCOPE_ATTEMPT);
  return false;
}

// Answers a Look. A disk that does not answer is asked again until it does, or another order comes:
// "none" would be a lie that begins the job anew.
void StepEngine::Impl::look(std::uint64_t number) {
  DiskWait wait(now());
  for (;;) {
    const auto found = find_checkpoint();
    if (!found.ok() && fails_denied(found.error(), wait)) return;
    std::unique_lock lock(mutex);
    if (found.ok()) {
      note_found(*found, number);
      lock.unlock();
      return emit({});
    }
    LOG_WARNING("checkpoint", "{}; looks again", found.error().what());
    const bool has_orders =
        changed->wait_until(lock, now() + kLookRetry, [&] { return retired || !orders.empty(); });
    if (has_orders) return;
  }
}

// A start from the seed must not forget what stands on disk.
Status StepEngine::Impl::check_nothing_to_load() {
  if (!job.has_checkpoints) return ok();
  TRY(const auto found, find_checkpoint());
  if (found)
    return Error(Code::kUnavailable,
                 fmt::format("there is a checkpoint of step {} that nobody had seen", found->step));
  TRY(const std::vector<std::string> damaged, replica->damaged_checkpoints());
  if (damaged.empty()) return ok();
  return Error(Code::kInvalid,
               fmt::format("no checkpoint can be read, and there were some: {} and {} more are "
                           "damaged. Put a good copy back (as step-…, the number in eight digits), "
                           "or begin from the seed after `rubatoctl checkpoint prune --damaged {}` "
                           "(the path inside the pod)",
                           damaged.back(), damaged.size() - 1,
                           std::filesystem::path(damaged.back()).parent_path().string()))
      .set_reason("CheckpointUnusable");
}

}  // namespace rubato::worker
