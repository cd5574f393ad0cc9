// The transaction: compute, reduce, commit, apply. docs/protocol.md "A round in generation g".
#include "common/log.h"
#include "common/planted.h"
#include "worker/backend/digest.h"
#include "worker/step/engine.h"
#include "worker/step/state_digest.h"

#include <algorithm>
#include <vector>

namespace rubato::worker {

namespace {
wire::SumChecksum to_wire(const SumChecksum& sum) {
  wire::SumChecksum out;
  out.set_elements(sum.elements);
  out.set_guards(sum.guards);
  return out;
}

wire::HopSums to_wire(const HopSums& sums) {
  wire::HopSums out;
  out.set_sent(sums.sent);
  out.set_got(sums.got);
  out.set_excess(sums.excess);
  return out;
}
}  // namespace

bool StepEngine::Impl::is_interrupted() const {
  const std::lock_guard lock(mutex);
  return retired || standing.fenced_below() > standing.generation();
}

bool StepEngine::Impl::begin_commit() {
  const std::lock_guard lock(mutex);
  if (frozen) return false;
  mode = Mode::kCommitting;
  return true;
}

void StepEngine::Impl::end_commit() {
  const std::lock_guard lock(mutex);
  mode = Mode::kWorking;
  changed->notify_all();
}

void StepEngine::Impl::set_phase_name(const char* name) {
  const std::lock_guard lock(mutex);
  book_phase();
  standing.set_phase_name(name);
}

void StepEngine::Impl::book_phase() {
  const MonoTime until = now();
  if (phase_since != MonoTime{} && !standing.phase_name().empty())
    phase_seconds[standing.phase_name()] +=
        std::chrono::duration<double>(until - phase_since).count();
  phase_since = until;
}

void StepEngine::Impl::reach(const char* point) {
  set_phase_name(point);
  parts.reach(point, replica->step());
}

void StepEngine::Impl::reach_aside(const char* point) {
  std::uint64_t step = 0;
  {
    const std::lock_guard lock(mutex);
    step = standing.step();
  }
  parts.reach(point, step);
}

void StepEngine::Impl::train() {
  for (;;) {
    if (is_interrupted()) return;
    serve_snapshots();
    const bool is_last = replica->step() >= job.stop_steps;
    Status done = is_last ? finish() : round();
    if (done.ok() && is_last) return;
    if (!done.ok()) {
      if (done.error().code() == Code::kCancelled) return;
      const std::string& reason = done.error().reason();
      const auto fault = communicator->fault();
      if (fault && reason != kDeviceLost) {
        return suspect(membership.generation, fault->peer, fault->why);
      }
      const bool permanent = reason == "NonFinite" || reason == "LedgerMismatch";
      return fail(reason.empty() ? "StepFailed" : reason, done.error(),
                  permanent ? wire::FAILURE_SCOPE_JOB : wire::FAILURE_SCOPE_ATTEMPT);
    }
    const std::lock_guard lock(mutex);
    if (standing.phase() != wire::WORKER_TRAINING) return;  // left, or stopped as asked
  }
}

// Whoever suspects waits for the coordinator's word.
void StepEngine::Impl::suspect(std::uint64_t generation, const WorkerName& peer,
                               const std::string& why) {
  wire::WorkerEvent event;
  wire::Suspect& news = *event.mutable_suspect();
  news.set_generation(generation);
  news.mutable_peer()->set_pod_uid(peer.pod_uid);
  news.mutable_peer()->set_slot(peer.slot);
  news.mutable_peer()->set_incarnation(peer.incarnation);
  news.set_why(why);
  LOG_WARNING("step", "suspects {}: {}", to_string(peer), why);
  emit(std::move(event));
}

Status StepEngine::Impl::round() {
  TRY_OK(checkpoint_if_due());
  const MonoTime begun = now();
  TRY_OK(validate_share());
  TRY_OK(compute_share());
  const MonoTime computed = now();
  TRY(const wire::CommitRecord record, reduce_and_vote());
  reach("apply");
  // All votes are here, so the round is decided; but a worker that has already told the coordinator
  // where it stands keeps to that, and is levelled by the one who applied.
  if (!begin_commit()) return Error(Code::kCancelled, "aborted before the decision was applied");
  Status done = decide(record);
  end_commit();
  if (!done.ok()) return done;
  reach_aside("publish");
  return publish(record, std::chrono::duration<double>(now() - begun).count(),
                 std::chrono::duration<double>(computed - begun).count());
}

Status StepEngine::Impl::compute_share() {
  std::uint64_t seq = 0;
  {
    const std::lock_guard lock(mutex);
    seq = standing.seq();
  }
  // What an aborted attempt left is kept if all of it is still ours to give.
  const bool fits = share.fits(mine);
  if (share.seq() != seq || !fits) {
    if (!planted(Bug::kKeepSums)) replica->clear();
    share.reset(seq);
    const std::lock_guard lock(mutex);
    standing.clear_held();
  }
  judged_seq.reset();  // computing overwrites what judge() left
  reach("compute");
  std::vector<std::uint32_t> micros;
  for (const wire::MicroRange& range : mine)
    for (std::uint32_t micro = range.begin; micro < range.end; ++micro)
      if (!share.holds(micro)) micros.push_back(micro);
  replica->expect(micros);
  for (const std::uint32_t micro : micros) {
    if (is_interrupted()) return Error(Code::kCancelled, "aborted");
    TRY(const MicroPart part, replica->compute({membership.generation, seq}, micro));
    if (!begin_commit()) return Error(Code::kCancelled, "micro-batch dropped");
    Status added = planted(Bug::kVoteUnadded) ? ok() : replica->accumulate();
    if (added.ok()) share.add(micro, part);
    {
      const std::lock_guard lock(mutex);
      standing.clear_held();
      for (const wire::MicroRange& held : share.ranges()) {
        wire::Range& entry = *standing.add_held();
        entry.set_begin(held.begin);
        entry.set_end(held.end);
      }
      standing.set_micro_done(standing.micro_done() + 1);
    }
    end_commit();
    if (!added.ok()) return added;
    parts.reach("accumulate", replica->step());
  }
  return ok();
}

// Validation is part of the round that follows the state it speaks of: every member evaluates its
// share of a fixed list, and the sums travel in the votes. It is thus a function of the state
// alone, and is simply done again when a round is.
bool StepEngine::Impl::validation_due() const {
  return job.evaluate_every > 0 && replica->step() > 0 && redo_attempts == 0 && !last_non_finite &&
         replica->step() % job.evaluate_every == 0 && replica->validation_micro_batches() > 0;
}

Status StepEngine::Impl::validate_share() {
  validation_q = 0;
  validation_done = 0;
  if (!validation_due()) return ok();
  set_phase_name("validate");
  const std::uint32_t all = std::min(replica->validation_micro_batches(), kValidationMax);
  const std::uint32_t begin = all * membership.rank / membership.size();
  const std::uint32_t end = all * (membership.rank + 1) / membership.size();
  for (std::uint32_t micro = begin; micro < end; ++micro) {
    if (is_interrupted()) return Error(Code::kCancelled, "aborted");
    TRY(const std::int64_t part, replica->validate(micro));
    validation_q = validation_sum(validation_q, part);
    ++validation_done;
  }
  return ok();
}

Result<wire::CommitRecord> StepEngine::Impl::reduce_and_vote() {
  if (is_interrupted()) return Error(Code::kCancelled, "aborted");
  reach("reduce");
  {
    // A reduction kept from an aborted attempt has the same bits, but is about to be overwritten.
    const std::lock_guard lock(mutex);
    standing.set_reduced(false);
  }
  replica->weigh();
  // A device's own way has no hops.
  const bool tells_hops = wrong_sums > 0 && membership.collective.empty();
  HopSums hops;
  TRY_OK(communicator->all_reduce_int32(replica->stream(), replica->accumulators(),
                                        replica->reduced(), tells_hops ? &hops : nullptr));
  if (planted(Bug::kReduceNothing))
    replica->device().copy(replica->stream(), replica->reduced(), replica->accumulators());
  wire::CommitVote vote;
  {
    const std::lock_guard lock(mutex);
    if (frozen) return Error(Code::kCancelled, "aborted");
    standing.set_reduced(true);
  }
  TRY(const Verdict verdict, replica->judge(redo_attempts));
  judged_seq = share.seq();
  vote.set_generation(membership.generation);
  vote.set_seq(share.seq());
  vote.set_loss_q(share.sum().loss_q);
  vote.set_micro_batches(share.size());
  vote.set_sample_digest(share.sum().sample_digest);
  vote.set_overflow(verdict.overflow);
  vote.set_non_finite(verdict.non_finite || share.sum().non_finite);
  vote.set_end(share.sum().ends ? wire::END_NOW : wire::END_GO_ON);
  vote.set_squared_norms(share.sum().squared_norm);
  *vote.mutable_given() = to_wire(verdict.given);
  *vote.mutable_reduced() = to_wire(verdict.reduced);
  if (tells_hops) *vote.mutable_hops() = to_wire(hops);
  vote.set_validation_q(validation_q);
  vote.set_validation_batches(validation_done);
  const bool may_save = owed_checkpoint && now() >= *owed_checkpoint && writer->wait_idle(now());
  {
    const std::lock_guard lock(mutex);
    vote.set_checkpoint(wants_checkpoint || may_save);
    vote.set_stop(wants_stop);
    vote.set_prepared_generation(prepared_vote());
  }
  if (ledger) ledger->vote(membership.generation, share.seq(), replica->step(), share.micros());
  reach("commit");
  TRY(const std::uint64_t digest,
      state_digest(*replica, static_cast<std::uint32_t>(share.seq() % kStateParts), kStateParts,
                   share.seq()));
  vote.set_state_digest(digest);
  CommitTerms terms;
  terms.generation = membership.generation;
  terms.seq = share.seq();
  terms.step = replica->step();
  terms.micro_batches = replica->micro_batches();
  if (validation_due()) {
    terms.validation_batches = std::min(replica->validation_micro_batches(), kValidationMax);
  }
  return fold(terms, vote);
}

// Gathers the votes, and makes of them what all members make of them.
Result<wire::CommitRecord> StepEngine::Impl::fold(const CommitTerms& terms,
                                                  const wire::CommitVote& vote) {
  TRY(const std::vector<std::string> texts, communicator->gather(vote.SerializeAsString()));
  std::vector<wire::CommitVote> votes(texts.size());
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (!votes[i].ParseFromString(texts[i])) return Error(Code::kInternal, "a vote cannot be read");
  }
  const Result<wire::CommitRecord> folded = fold_votes(terms, votes);
  if (!folded.ok()) {
    // A wrong sum is refused by all alike, and what is summed is kept: the reduction is redone.
    if (folded.error().reason() == kWrongSum) note_wrong_sum();
    const std::lock_guard lock(mutex);
    standing.set_reduced(false);
    return folded.error();
  }
  const wire::CommitRecord& record = *folded;
  if (record.outcome() == wire::OUTCOME_DIVERGED) return refuse_round(terms, votes, record);
  // All are of a build that compares, and so of one that knows the tree.
  if (std::ranges::all_of(votes, [](const auto& each) { return each.state_digest() != 0; }))
    communicator->vote_by_tree();
  return record;
}

// The next reduction of this round tells of each hop; where a device's own way is wrong again,
// links take its place.
void StepEngine::Impl::note_wrong_sum() {
  ++wrong_sums;
  if (wrong_sums > 1 && !membership.collective.empty()) factory->note_wrong_sums();
}

// Before the first round, and before a checkpoint is begun: whose state is not the majority's must
// not be trained on or written.
Status StepEngine::Impl::compare_states() {
  if (!membership.compare_states) return ok();
  reach("compare");
  CommitTerms terms;
  terms.generation = membership.generation;
  terms.step = replica->step();
  terms.whole_state = true;
  {
    const std::lock_guard lock(mutex);
    if (frozen) return Error(Code::kCancelled, "aborted");
    terms.seq = standing.seq();
  }
  wire::CommitVote vote;
  vote.set_generation(terms.generation);
  vote.set_seq(terms.seq);
  TRY(const std::uint64_t digest, state_digest(*replica, 0, 1, terms.seq));
  vote.set_state_digest(digest);
  TRY_OK(fold(terms, vote));
  return ok();
}

// Members have computed with different states, or some make a sum wrong again: nobody applies the
// round. Who is named knows it, and drops its state here and now, before anybody could ask for it.
Error StepEngine::Impl::refuse_round(const CommitTerms& terms,
                                     const std::vector<wire::CommitVote>& votes,
                                     const wire::CommitRecord& record) {
  if (!begin_commit()) return Error(Code::kCancelled, "aborted before the round was refused");
  {
    const std::lock_guard lock(mutex);
    standing.set_reduced(false);
    if (std::ranges::count(record.diverged(), membership.rank) > 0) {
      standing.set_has_state(false);
      standing.set_phase(wire::WORKER_READY);
      standing.clear_held();
    }
  }
  end_commit();
  std::vector<std::string> names;
  names.reserve(membership.members.size());
  for (const Peer& peer : membership.members) names.push_back(to_string(peer.name));
  const std::string difference = describe_divergence(terms, votes, record, names);
  wire::WorkerEvent event;
  event.mutable_committed()->set_generation(membership.generation);
  *event.mutable_committed()->mutable_record() = record;
  event.mutable_committed()->set_difference(difference);
  emit(std::move(event));
  return Error(Code::kInternal,
               fmt::format("round {} of step {}: {}", terms.seq, terms.step + 1, difference))
      .set_reason("Diverged");
}

// Who stands still has no links over which states could be compared: the coordinator does it,
// before it has one of them written. In parts, so that an Abort does not wait for all of it.
Status StepEngine::Impl::note_parked_digest() {
  std::uint64_t seq = 0;
  {
    const std::lock_guard lock(mutex);
    seq = standing.seq();
  }
  Digest whole;
  for (std::uint32_t part = 0; part < kStateParts; ++part) {
    if (is_interrupted()) return ok();
    TRY(const std::uint64_t digest, state_digest(*replica, part, kStateParts, seq));
    whole.add_u64(digest);
  }
  const std::lock_guard lock(mutex);
  standing.set_parked_digest(std::max<std::uint64_t>(whole.value(), 1));
  return ok();
}

// The only place where a decision changes the state. `reduced()` must hold the round's reduction
// unless the outcome is non-finite.
Status StepEngine::Impl::decide(const wire::CommitRecord& record) {
  if (record.outcome() == wire::OUTCOME_APPLY) {
    if (judged_seq != record.seq()) {
      TRY(const Verdict verdict, replica->judge(redo_attempts));
      if (verdict.overflow || verdict.non_finite) {
        return Error(Code::kInternal, "the reduction here is not the one that was decided on");
      }
    }
    TRY(const StepRecord step, replica->apply(record.loss_q(), record.sample_digest()));
    history.push_back(step);
    if (record.squared_norms() > 0)
      noise.add(record.micro_batches(), record.squared_norms(), replica->norm_of_mean());
    redo_attempts = 0;
    last_non_finite.reset();
    non_finite_count = 0;
  } else if (record.outcome() == wire::OUTCOME_REDO) {
    TRY_OK(replica->raise(redo_attempts));
    if (!planted(Bug::kForgetAttempts)) ++redo_attempts;
  } else if (record.outcome() == wire::OUTCOME_ENDED) {
    job.stop_steps = replica->step();
  } else {
    TRY_OK(note_non_finite(record));
  }
  if (ledger) {
    ledger->decided(membership.generation, record.seq(), record.step(), name_of(record.outcome()),
                    record.sample_digest());
  }
  wrong_sums = 0;
  const std::lock_guard lock(mutex);
  standing.set_seq(record.seq() + 1);
  standing.set_step(replica->step());
  standing.set_reduced(false);
  standing.clear_held();
  *standing.mutable_last() = record;
  standing.set_tokens(replica->step() * replica->tokens_per_step());
  if (!history.empty()) standing.set_loss(history.back().loss());
  standing.set_noise_scale(noise_in_tokens());
  // A request is met by the record that carries it, whoever asked.
  if (record.checkpoint()) wants_checkpoint = false;
  server->set_seq(record.seq() + 1);
  return ok();
}

double StepEngine::Impl::noise_in_tokens() const {
  return noise.micro_batches().value_or(0) * static_cast<double>(replica->tokens_per_step()) /
         replica->micro_batches();
}

bool StepEngine::Impl::is_ended() const {
  return standing.has_state() && standing.last().outcome() == wire::OUTCOME_ENDED;
}

Status StepEngine::Impl::note_non_finite(const wire::CommitRecord& record) {
  const bool again = last_non_finite && last_non_finite->step() == record.step() &&
                     last_non_finite->loss_q() == record.loss_q() &&
                     last_non_finite->sample_digest() == record.sample_digest();
  ++non_finite_count;
  last_non_finite = record;
  if (!again && non_finite_count < kNonFiniteMax) return ok();
  return Error(Code::kInvalid,
               fmt::format("step {}: the loss or its gradient is not finite, {} times in a row",
                           record.step() + 1, non_finite_count))
      .set_reason("NonFinite");
}

}  // namespace rubato::worker
