// The step thread's orders: how a generation begins.
#include "common/log.h"
#include "common/planted.h"
#include "common/words.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/step/engine.h"

#include <utility>

namespace rubato::worker {

namespace {
std::vector<wire::MicroRange> ranges_of(const wire::Share& share) {
  std::vector<wire::MicroRange> ranges;
  for (const wire::Range& range : share.ranges()) ranges.push_back({range.begin(), range.end()});
  return ranges;
}

// A disk that does not answer or may not be read, and whose word for people is none.
bool is_unanswered(const Error& error) {
  const bool is_unread = error.code() == Code::kUnavailable || error.code() == Code::kDenied;
  return is_unread && error.reason().empty();
}
}  // namespace

int StepEngine::Impl::run() {
  emit({});
  for (;;) {
    std::optional<wire::WorkerCommand> order;
    bool stops = false;
    {
      std::unique_lock lock(mutex);
      const bool was_busy = mode != Mode::kIdle;
      mode = Mode::kIdle;
      settled_below = standing.fenced_below();
      changed->notify_all();
      if (was_busy && !retired) {  // news for whoever waits for this worker to settle
        wire::WorkerEvent event;
        *event.mutable_standing() = standing_now();
        parts.emit(event);
      }
      const auto may_stop = [&] {
        return wants_stop && standing.phase() != wire::WORKER_STARTING &&
               standing.phase() != wire::WORKER_STOPPED &&
               standing.phase() != wire::WORKER_FINISHED &&
               standing_now().phase() != wire::WORKER_ABORTED &&
               standing.phase() != wire::WORKER_TRAINING;
      };
      wait_for(lock, [&] {
        return retired || !orders.empty() || may_stop() ||
               (standing.has_state() && server->wants_snapshot());
      });
      if (retired) break;
      mode = Mode::kWorking;
      if (!orders.empty()) {
        order = std::move(orders.front());
        orders.pop_front();
      } else {
        stops = may_stop();
      }
    }
    if (order) {
      obey(*order);
    } else if (stops) {
      stop(false);
    } else {
      serve_snapshots();
      std::unique_lock lock(mutex);  // all copies in use: not again at once
      if (server->wants_snapshot()) changed->wait_until(lock, now() + 50ms);
    }
  }
  bool is_lost = false;
  const std::shared_ptr<Communicator> last = [&] {
    const std::lock_guard lock(mutex);
    is_lost = has_lost_device;
    return std::exchange(communicator, nullptr);
  }();
  if (is_lost) return kStuckStatus;
  writer->wait_idle(now() + kLastWriteWait);
  return 0;
}

void StepEngine::Impl::obey(const wire::WorkerCommand& order) {
  if (order.has_configure()) return configure(order.configure());
  if (!replica) {
    LOG_WARNING("step", "an order before Configure is ignored");
    return;
  }
  if (order.has_look()) {
    set_phase_name("look");  // said by the next beat: the disk may take its time
    look(order.look().number());
    return set_phase_name("idle");
  }
  if (order.has_follow()) return follow(order.follow());
  if (order.has_form()) return form(order.form());
}

void StepEngine::Impl::configure(const wire::Configure& order) {
  if (replica) return emit({});  // asked again: the standing says it all
  set_phase_name("configure");
  auto made = parts.configure(order.training(), order.fingerprint());
  // Under which numerics the job goes on, its checkpoints say: their disk is asked until it
  // answers, or until the coordinator knows.
  DiskWait wait(now());
  while (!made.ok() && is_unanswered(made.error())) {
    if (fails_denied(made.error(), wait)) return;
    LOG_WARNING("step", "{}; tries again", made.error().what());
    {
      std::unique_lock lock(mutex);
      standing.set_micro_done(standing.micro_done() + 1);  // it lives
      const bool has_orders =
          changed->wait_until(lock, now() + kLookRetry, [&] { return retired || !orders.empty(); });
      if (has_orders) return;
    }
    made = parts.configure(order.training(), order.fingerprint());
  }
  if (!made.ok()) {
    const std::string& reason = made.error().reason();
    return fail(reason.empty() ? "BadTraining" : reason, made.error().what(),
                wire::FAILURE_SCOPE_WORKER);
  }
  ConfiguredJob configured = std::move(made).value();
  if (configured.replica->micro_batches() != order.micro_batches()) {
    return fail("BadTraining", "the coordinator counts other micro-batches than batch says",
                wire::FAILURE_SCOPE_WORKER);
  }
  auto fingerprint = configured.replica->fingerprint();
  if (!fingerprint.ok())
    return fail("BadTraining", fingerprint.error().what(), wire::FAILURE_SCOPE_WORKER);
  job = configured.plan;
  ledger = std::move(configured.ledger);
  replica = std::move(configured.replica);
  if (!job.export_path.empty())
    exporter =
        std::make_unique<StepExporter>(parts.executor, StepExport(parts.files, job.export_path));
  const auto found = find_checkpoint();
  if (!found.ok()) LOG_WARNING("checkpoint", "{}; it is looked at again", found.error().what());
  auto made_factory = parts.make_factory(replica->device());
  {
    const std::lock_guard lock(mutex);
    made_factory->fence(standing.fenced_below());
    factory = std::move(made_factory);
    standing.set_phase(wire::WORKER_READY);
    note_found(found.value_or(std::nullopt), kLooksByItself);
    standing.set_fingerprint(fingerprint.value());
  }
  LOG_INFO("step", "configured {}: {} a step, {}", order.job(),
           counted(replica->micro_batches(), "micro-batch"), fingerprint.value());
  emit({});
}

// Below the fence, or not above the generation we are in: refused. With the mutex held.
bool StepEngine::Impl::is_fresh(std::uint64_t generation) const {
  if (generation >= standing.fenced_below() && generation > standing.generation()) return true;
  LOG_INFO("step", "refused generation {}: in {}, fenced below {}", generation,
           standing.generation(), standing.fenced_below());
  return false;
}

void StepEngine::Impl::form(const wire::Form& order) {
  Membership next = to_membership(order, parts.self);
  const bool fits = next.rank < next.size() && next.size() <= replica->micro_batches();
  {
    // What an Abort has frozen since stays so: nothing is taken up without a look at the fence.
    std::unique_lock lock(mutex);
    if (!is_fresh(order.generation())) return;
    if (!fits) {
      lock.unlock();
      return fail("BadForm", "not a member, or more members than micro-batches",
                  wire::FAILURE_SCOPE_ATTEMPT);
    }
    frozen = false;
    if (order.stop_steps() != 0 && (order.mode() == wire::FORM_START || !is_ended()))
      job.stop_steps = order.stop_steps();
    standing.set_generation(order.generation());
    standing.set_phase(wire::WORKER_TRAINING);
    standing.clear_parked_digest();
  }
  set_phase_name("form");
  parts.reach("form", replica->step());
  const Status state = order.mode() == wire::FORM_START ? start(order) : level(order);
  if (!state.ok()) {
    {
      const std::lock_guard lock(mutex);
      standing.set_phase(wire::WORKER_READY);
      standing.set_has_state(false);
    }
    return fail_start(order, state.error());
  }
  if (planted(Bug::kStaleRank) && membership.rank < next.size()) next.rank = membership.rank;
  take_membership(next);
  if (order.parked()) {
    set_phase_name("compare");  // before it says PARKED: its digest is to come
    {
      const std::lock_guard lock(mutex);
      standing.set_phase(wire::WORKER_PARKED);
    }
    emit({});
    const Status compared = note_parked_digest();
    set_phase_name("parked");
    if (!compared.ok()) fail("StepFailed", compared.error(), wire::FAILURE_SCOPE_ATTEMPT);
    return emit({});
  }
  emit({});
  reach_aside("connect");
  auto made = factory->create(next, now() + kFormLimit);
  if (!made.ok()) {
    if (made.error().code() == Code::kExpired || made.error().code() == Code::kCancelled) return;
    const std::string& reason = made.error().reason();
    if (reason == kNextUnreachable || reason == kParentUnreachable) {
      const std::uint32_t to =
          reason == kNextUnreachable ? (next.rank + 1) % next.size() : tree_parent(next.rank);
      return suspect(next.generation, next.members[to].name, made.error().what());
    }
    return fail("FormFailed", made.error().what(), wire::FAILURE_SCOPE_ATTEMPT);
  }
  std::vector<wire::MicroRange> ranges{
      wire::even_share(next.rank, next.size(), replica->micro_batches())};
  if (order.has_share()) {
    ranges = ranges_of(order.share());
  } else if (order.shares_size() > static_cast<int>(next.rank)) {
    ranges = ranges_of(order.shares(static_cast<int>(next.rank)));
  }
  enter(next, std::shared_ptr<Communicator>(std::move(made).value()), std::move(ranges));
  train();
}

void StepEngine::Impl::fail_start(const wire::Form& order, const Error& error) {
  const bool is_start = order.mode() == wire::FORM_START;
  const std::string& reason = error.reason();
  // A damaged checkpoint is out of the way when this is said: the next start takes another.
  if (is_start && reason == kCheckpointDamaged && !planted(Bug::kDamageIsFinal)) {
    const Status aside = set_aside(order.checkpoint_step(), error.what());
    if (!aside.ok()) LOG_ERROR("checkpoint", "{}", aside.error().what());
    return fail(reason, error.what(), wire::FAILURE_SCOPE_ATTEMPT);
  }
  // For good, here; another node may do.
  const bool is_for_good = error.code() == Code::kInvalid || reason == kCheckpointPathTaken ||
                           reason == kInitFromUnusable;
  fail(!reason.empty() ? reason : (is_start ? "StartFailed" : "CannotLevel"), error,
       is_for_good ? wire::FAILURE_SCOPE_WORKER : wire::FAILURE_SCOPE_ATTEMPT);
}

// From the seed or from a checkpoint.
Status StepEngine::Impl::start(const wire::Form& order) {
  history.clear();
  redo_attempts = 0;
  forget_checkpoints();
  if (order.from_checkpoint()) {
    TRY(LoadedCheckpoint loaded, replica->load_checkpoint(order.checkpoint_step()));
    history = std::move(loaded.records);
    redo_attempts = planted(Bug::kAttemptsUnsaved) ? 0 : loaded.redo_attempts;
  } else {
    TRY_OK(check_nothing_to_load());
    TRY_OK(replica->init_from_seed());
  }
  wrong_sums = 0;
  last_non_finite.reset();
  non_finite_count = 0;
  noise = {};
  share.reset(replica->step());
  {
    const std::lock_guard lock(mutex);
    standing.set_has_state(true);
    standing.set_seq(replica->step());
    standing.set_step(replica->step());
    standing.set_tokens(replica->step() * replica->tokens_per_step());
    standing.clear_held();
    standing.clear_last();
    standing.set_reduced(false);
  }
  server->set_seq(replica->step());
  replica->clear();
  print_history();
  return ok();
}

// To base_seq: where we stand, or one decision further.
Status StepEngine::Impl::level(const wire::Form& order) {
  std::uint64_t seq = 0;
  bool has_state = false;
  bool is_reduced = false;
  {
    const std::lock_guard lock(mutex);
    seq = standing.seq();
    has_state = standing.has_state();
    is_reduced = standing.reduced();
  }
  if (!has_state) return Error(Code::kExpired, "no state to level");
  if (seq == order.base_seq()) return ok();
  if (seq + 1 != order.base_seq() || !is_reduced || order.decision().seq() != seq) {
    return Error(Code::kExpired, fmt::format("at round {}, asked for {}", seq, order.base_seq()));
  }
  reach_aside("level");
  if (planted(Bug::kLevelNothing)) {
    const std::lock_guard lock(mutex);
    standing.set_seq(order.base_seq());
    return ok();
  }
  if (!begin_commit()) return Error(Code::kExpired, "aborted again");
  Status done = decide(order.decision());
  end_commit();
  if (!done.ok()) return done;
  push_to_followers(order.decision());
  if (order.decision().outcome() == wire::OUTCOME_APPLY) print_step(history.back(), 0);
  return ok();
}

void StepEngine::Impl::enter(const Membership& next, std::shared_ptr<Communicator> links,
                             std::vector<wire::MicroRange> ranges) {
  std::shared_ptr<Communicator> old;
  {
    const std::lock_guard lock(mutex);
    if (next.generation < standing.fenced_below() || retired) links->abort();
    old = std::exchange(communicator, std::move(links));
    standing.set_generation(next.generation);
    standing.set_phase(wire::WORKER_TRAINING);
    if (prepared && prepared->membership.generation <= next.generation) prepared.reset();
  }
  take_membership(next);
  mine = std::move(ranges);
  first_after_change = true;
  compared_seq.reset();
  validation_done = 0;
  validation_q = 0;
  if (next.rank == 0) export_history();
  LOG_INFO("step", "generation {}: rank {} of {}, at step {}", next.generation, next.rank,
           next.size(), replica->step());
  emit({});
}

// ---- Planned generations: formed beside the one in use
// -------------------------------------------

void StepEngine::Impl::forming_loop() {
  std::unique_lock lock(mutex);
  for (;;) {
    wait_for(lock, [&] { return retired || (!planned.empty() && factory); });
    if (retired) return;
    const wire::Form order = planned.front();
    planned.pop_front();
    forming_generation = order.generation();
    Prepared next;
    next.membership = to_membership(order, parts.self);
    next.is_member = next.membership.rank < next.membership.size();
    next.stop_steps = order.stop_steps();
    if (next.is_member) {
      lock.unlock();
      reach_aside("prepare");
      auto made = factory->create(next.membership, now() + kFormLimit);
      if (!made.ok() && made.error().code() != Code::kExpired) {
        fail("FormFailed", made.error().what(), wire::FAILURE_SCOPE_ATTEMPT);
      }
      lock.lock();
      if (!made.ok()) {
        forming_generation = 0;
        continue;
      }
      next.communicator = std::move(made).value();
    }
    forming_generation = 0;
    if (order.generation() < standing.fenced_below()) continue;
    next.is_ready = true;
    prepared = std::move(next);
    changed->notify_all();
    lock.unlock();
    reach_aside("prepared");
    wire::WorkerEvent event;
    event.mutable_prepared()->set_generation(order.generation());
    emit(std::move(event));
    lock.lock();
  }
}

// Waits, a bounded time, for what the forming thread makes; null for a leaver or when it failed.
std::shared_ptr<Communicator> StepEngine::Impl::take_prepared(std::uint64_t generation,
                                                              Membership& next, bool& is_member) {
  std::unique_lock lock(mutex);
  const auto is_there = [&] { return prepared && prepared->membership.generation == generation; };
  changed->wait_until(lock, now() + kFormLimit, [&] {
    return retired || standing.fenced_below() > generation || is_there();
  });
  is_member = false;
  if (!is_there()) return nullptr;
  next = prepared->membership;
  is_member = prepared->is_member;
  if (prepared->stop_steps != 0 && !is_ended()) job.stop_steps = prepared->stop_steps;
  auto links = prepared->communicator;
  prepared.reset();
  return links;
}

}  // namespace rubato::worker
