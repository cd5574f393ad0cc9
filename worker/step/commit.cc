#include "worker/step/commit.h"

#include <algorithm>
#include <limits>

namespace rubato::worker {

Result<wire::CommitRecord> fold_votes(const CommitTerms& terms,
                                      const std::vector<wire::CommitVote>& votes) {
  wire::CommitRecord record;
  record.set_seq(terms.seq);
  record.set_step(terms.step);
  std::int64_t loss_q = 0;
  std::int64_t validation_q = 0;
  std::uint64_t digest = 0;
  std::uint32_t micro_batches = 0;
  std::uint32_t validation_batches = 0;
  bool overflow = false;
  bool non_finite = false;
  std::uint64_t prepared = std::numeric_limits<std::uint64_t>::max();
  for (const wire::CommitVote& vote : votes) {
    if (vote.generation() != terms.generation || vote.seq() != terms.seq) {
      return Error(Code::kInternal, "a vote of another round");
    }
    loss_q += vote.loss_q();
    validation_q += vote.validation_q();
    digest += vote.sample_digest();
    micro_batches += vote.micro_batches();
    validation_batches += vote.validation_batches();
    overflow = overflow || vote.overflow();
    non_finite = non_finite || vote.non_finite();
    prepared = std::min(prepared, vote.prepared_generation());
    record.set_checkpoint(record.checkpoint() || vote.checkpoint());
    record.set_stop(record.stop() || vote.stop());
  }
  if (micro_batches != terms.micro_batches || validation_batches != terms.validation_batches) {
    return Error(Code::kInvalid, "step " + std::to_string(terms.step) + ": " +
                                     std::to_string(micro_batches) + " micro-batches of " +
                                     std::to_string(terms.micro_batches) + " were voted")
        .set_reason("LedgerMismatch");
  }
  record.set_outcome(non_finite ? wire::OUTCOME_NON_FINITE
                     : overflow ? wire::OUTCOME_REDO
                                : wire::OUTCOME_APPLY);
  record.set_loss_q(loss_q);
  record.set_micro_batches(micro_batches);
  record.set_sample_digest(digest);
  record.set_validation_q(validation_q);
  record.set_validation_batches(validation_batches);
  if (prepared > terms.generation) record.set_switch_generation(prepared);
  return record;
}

const char* name_of(wire::Outcome outcome) {
  switch (outcome) {
    case wire::OUTCOME_APPLY:
      return "apply";
    case wire::OUTCOME_REDO:
      return "redo";
    case wire::OUTCOME_NON_FINITE:
      return "non-finite";
    case wire::OUTCOME_UNSPECIFIED:
    case wire::Outcome_INT_MIN_SENTINEL_DO_NOT_USE_:
    case wire::Outcome_INT_MAX_SENTINEL_DO_NOT_USE_:
      break;
  }
  return "unspecified";
}

}  // namespace rubato::worker
