// What follows a decision: lines, records, followers, checkpoints, and the ends.
#include "common/log.h"
#include "common/planted.h"
#include "worker/step/engine.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace rubato::worker {

namespace {
constexpr std::size_t kMedianOf = 15;

void keep(std::deque<double>& values, double value) {
  values.push_back(value);
  if (values.size() > kMedianOf) values.pop_front();
}

double median(const std::deque<double>& values) {
  std::vector<double> sorted(values.begin(), values.end());
  std::ranges::sort(sorted);
  return sorted.empty() ? 0 : sorted[sorted.size() / 2];
}
}  // namespace

Status StepEngine::Impl::publish(const wire::CommitRecord& record, double seconds,
                                 double computing) {
  const MonoTime moment = now();
  push_to_followers(record);
  double stall = 0;
  if (first_after_change && last_commit != MonoTime{}) {
    const double since = std::chrono::duration<double>(moment - last_commit).count();
    stall = std::max(0.0, since - median(step_seconds));
  }
  // Rounds among others say nothing about how long one takes now.
  if (first_after_change) {
    step_seconds.clear();
    compute_seconds.clear();
  }
  first_after_change = false;
  last_commit = moment;
  keep(step_seconds, seconds);
  keep(compute_seconds, computing);

  if (record.outcome() == wire::OUTCOME_APPLY) {
    print_step(history.back(), seconds);
    if (membership.rank == 0 && exporter) exporter->add(history.back());
  } else {
    LOG_INFO("step", "round {} of step {}: {}", record.seq(), record.step() + 1,
             name_of(record.outcome()));
  }
  if (record.validation_batches() > 0)
    print_validation(record.step(), record.validation_q(), record.validation_batches());
  wire::WorkerEvent event;
  wire::Committed& committed = *event.mutable_committed();
  committed.set_generation(membership.generation);
  *committed.mutable_record() = record;
  committed.set_step_seconds(seconds);
  committed.set_stall_seconds(stall);
  {
    const std::lock_guard lock(mutex);
    standing.set_step_seconds(median(step_seconds));
    standing.set_compute_seconds(median(compute_seconds));
  }
  emit(std::move(event));

  mine = {wire::even_share(membership.rank, membership.size(), replica->micro_batches())};
  const bool ends = record.outcome() == wire::OUTCOME_ENDED;
  if (ends) LOG_INFO("step", "the script ended the job after step {}", replica->step());
  if (record.stop() && !ends) {
    if (record.checkpoint() && job.has_checkpoints) TRY_OK(compare_states());
    stop(membership.rank == 0 && record.checkpoint());
  } else if (record.switch_generation() != 0) {
    switch_generation(record.switch_generation());
  }
  return ok();
}

void StepEngine::Impl::print_step(const StepRecord& record, double seconds) {
  const double tokens = static_cast<double>(replica->tokens_per_step());
  parts.print(fmt::format(
      "step={} loss={:.6f} bits={:#018x} lr={:.4e} tokens/s={:.0f} gpus={} generation={}",
      record.step + 1, record.loss(), record.loss_bits, replica->learning_rate(record.step),
      seconds > 0 ? tokens / seconds : 0.0, membership.size(), membership.generation));
}

// A step that others made: received by a newcomer, or read from a checkpoint.
void StepEngine::Impl::print_replayed(const StepRecord& record) {
  parts.print(fmt::format("step={} loss={:.6f} bits={:#018x} lr={:.4e} replay=1", record.step + 1,
                          record.loss(), record.loss_bits, replica->learning_rate(record.step)));
}

// So that a newcomer's log tells the whole story.
void StepEngine::Impl::print_history() {
  for (const StepRecord& record : history) print_replayed(record);
}

// Whoever becomes rank 0 writes all it knows: equal bytes where they are there already.
void StepEngine::Impl::export_history() {
  if (exporter) exporter->restart(history);
}

// ---- Followers
// -----------------------------------------------------------------------------------

void StepEngine::Impl::push_to_followers(const wire::CommitRecord& record) {
  if (!server->has_followers()) return;
  const auto round = server->blank_round();
  round->record = record;
  if (record.outcome() == wire::OUTCOME_APPLY || record.outcome() == wire::OUTCOME_REDO) {
    const ConstBuffer reduced = replica->reduced();
    round->reduced.resize(static_cast<std::size_t>(reduced.count()));
    replica->device().copy_to_host(replica->stream(), round->reduced.data(), reduced);
    if (const Status copied = replica->stream().synchronize(); !copied.ok()) {
      LOG_ERROR("state", "{}", copied.error().to_string());
      return;
    }
  } else {
    round->reduced.clear();
  }
  server->push(round);
}

void StepEngine::Impl::serve_snapshots() {
  if (!server->wants_snapshot()) return;
  auto copied = replica->snapshot();
  if (!copied.ok() && copied.error().code() == Code::kUnavailable) {  // at the next boundary
    LOG_INFO("state", "{}", copied.error().to_string());
    return;
  }
  if (!copied.ok() && copied.error().reason() == kDeviceLost)
    return fail("StepFailed", copied.error(), wire::FAILURE_SCOPE_ATTEMPT);
  if (!copied.ok()) {
    if (!std::exchange(warned_of_copy, true))
      LOG_WARNING("state", "the state cannot be copied for a newcomer, which is turned away: {}",
                  copied.error().what());
    return server->refuse();
  }
  auto image = std::make_shared<StateImage>();
  image->snapshot = std::move(copied).value();
  image->records = std::make_shared<const std::vector<StepRecord>>(history);
  wire::SnapshotHead& head = image->head;
  {
    const std::lock_guard lock(mutex);
    head.set_seq(standing.seq() + (planted(Bug::kNewerSnapshot) ? 1 : 0));
    if (standing.has_last()) *head.mutable_last() = standing.last();
  }
  head.set_step(replica->step());
  head.set_redo_attempts(redo_attempts);
  if (last_non_finite) *head.mutable_last_non_finite() = *last_non_finite;
  head.set_non_finite_count(non_finite_count);
  head.set_noise_trace(noise.trace());
  head.set_noise_signal(noise.signal());
  for (const std::size_t bytes : image->snapshot->section_bytes()) head.add_section_bytes(bytes);
  head.set_records(history.size());
  reach_aside("donate");
  server->give(std::move(image));
}

// ---- Ends
// ----------------------------------------------------------------------------------------

// Rank 0 says FINISHED once the final checkpoint is on disk, the others at once.
Status StepEngine::Impl::finish() {
  reach_aside("finish");
  if (job.has_checkpoints) TRY_OK(compare_states());
  if (const Status shown = replica->show(); !shown.ok()) {
    if (shown.error().code() != Code::kCancelled) return shown;  // else a script past its loop
  }
  if (is_interrupted()) return ok();
  if (membership.rank == 0) {
    emit({});
    validate_final();
    if (is_interrupted()) return ok();
    if (const auto digest = replica->weight_digest(); digest.ok()) {
      parts.print(fmt::format("finished step={} weights={:016x}", replica->step(), digest.value()));
    }
    const Status saved = planted(Bug::kFinishUnwritten) ? submit_checkpoint() : save_last();
    if (is_interrupted()) return ok();
    if (!saved.ok()) {
      const bool another_may = membership.size() > 1;
      fail_save("the final checkpoint", saved.error(),
                another_may ? wire::FAILURE_SCOPE_WORKER : wire::FAILURE_SCOPE_JOB);
      return ok();
    }
  }
  Status kept = ok();
  live_until(now() + kLastWriteWait, [&](MonoTime until) {
    kept = replica->keep_apart();
    if (kept.ok() || kept.error().code() != Code::kUnavailable) return true;
    parts.executor.sleep_until(until);
    return false;
  });
  if (is_interrupted()) return ok();
  if (!kept.ok())  // no reason to fail a job that is done
    LOG_WARNING("step", "what the script does to its model from now on is not kept apart: {}",
                kept.error().what());
  {
    const std::lock_guard lock(mutex);
    standing.set_phase(wire::WORKER_FINISHED);
    book_phase();
    standing.set_phase_name("finished");
  }
  emit({});
  return ok();
}

// No round follows that could carry it, so rank 0 evaluates the whole list: the same sum.
void StepEngine::Impl::validate_final() {
  const std::uint32_t all = std::min(replica->validation_micro_batches(), kValidationMax);
  if (job.evaluate_every == 0 || all == 0) return;
  set_phase_name("validate");
  std::int64_t sum = 0;
  for (std::uint32_t micro = 0; micro < all; ++micro) {
    if (is_interrupted()) return;
    const auto part = replica->validate(micro);
    if (!part.ok() && part.error().code() == Code::kCancelled) return;  // a script past its loop
    if (!part.ok()) return fail("StepFailed", part.error(), wire::FAILURE_SCOPE_ATTEMPT);
    sum = validation_sum(sum, part.value());
  }
  print_validation(replica->step(), sum, all);
}

void StepEngine::Impl::print_validation(std::uint64_t step, std::int64_t loss_q,
                                        std::uint32_t batches) {
  if (loss_q == kNotFiniteQ) {  // no number to report: the standing keeps the one before
    parts.print(fmt::format("validation step={} loss=nan", step));
    LOG_WARNING("step", "the validation loss after step {} is not finite", step);
    return;
  }
  const double loss = replica->mean_loss(loss_q, batches);
  parts.print(fmt::format("validation step={} loss={:.6f} q={:#x}", step, loss, loss_q));
  const std::lock_guard lock(mutex);
  standing.set_validation_step(step);
  standing.set_validation_loss(loss);
}

// As asked, or before a generation was ever joined. Rank 0 says STOPPED once its checkpoint, if
// one was asked for, is on disk.
void StepEngine::Impl::stop(bool is_asked_to_save) {
  bool saves = is_asked_to_save;
  {
    const std::lock_guard lock(mutex);
    const bool is_parked = standing.phase() == wire::WORKER_PARKED;
    saves = saves || (standing.has_state() && membership.rank == 0 && is_parked);
  }
  if (saves) {
    const Status saved = save_last();
    if (is_interrupted()) return;
    if (!saved.ok())
      fail_save("the checkpoint before the stop", saved.error(), wire::FAILURE_SCOPE_ATTEMPT);
    if (is_interrupted()) return;  // its device is lost
  }
  {
    const std::lock_guard lock(mutex);
    // Cut off meanwhile: it is asked again in another generation. Who is in none stops all the
    // same.
    if (standing_now().phase() == wire::WORKER_ABORTED) return;
    standing.set_phase(wire::WORKER_STOPPED);
    book_phase();
    standing.set_phase_name("stopped");
  }
  emit({});
}

void StepEngine::Impl::switch_generation(std::uint64_t generation) {
  reach("switch");
  Membership next;
  bool is_member = false;
  auto links = take_prepared(generation, next, is_member);
  if (links) {
    const auto share_of_all = wire::even_share(next.rank, next.size(), replica->micro_batches());
    return enter(next, std::move(links), {share_of_all});
  }
  if (is_interrupted()) return;
  std::shared_ptr<Communicator> old;
  {
    const std::lock_guard lock(mutex);
    old = std::exchange(communicator, nullptr);
    standing.set_phase(wire::WORKER_STOPPED);
    book_phase();
    standing.set_phase_name("left");
  }
  LOG_INFO("step", "left at generation {}, step {}", generation, replica->step());
  emit({});
}

}  // namespace rubato::worker
