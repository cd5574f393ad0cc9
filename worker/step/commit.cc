#include "worker/step/commit.h"

#include "common/planted.h"
#include "common/some_of.h"
#include "common/words.h"
#include "worker/backend/digest.h"
#include "worker/step/replica.h"
#include "worker/step/state_digest.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <span>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace rubato::worker {

namespace {
constexpr std::size_t kNamesMax = 8;  // of each side, in a sentence for people

using RanksByDigest = std::map<std::uint64_t, std::vector<std::uint32_t>>;

RanksByDigest compared(const std::vector<wire::CommitVote>& votes) {
  RanksByDigest sides;
  for (std::uint32_t rank = 0; rank < votes.size(); ++rank) {
    const std::uint64_t digest = votes[rank].state_digest();
    if (digest != 0 && !planted(Bug::kStepsAlone)) sides[digest].push_back(rank);
  }
  return sides;
}

// Whose state is not the majority's; empty when all compared are equal.
std::vector<std::uint32_t> diverged(const std::vector<wire::CommitVote>& votes) {
  const RanksByDigest sides = compared(votes);
  std::vector<std::uint32_t> minority;
  if (sides.size() < 2) return minority;
  std::size_t all = 0;
  for (const auto& [digest, ranks] : sides) all += ranks.size();
  const bool has_majority =
      std::ranges::any_of(sides, [&](const auto& side) { return 2 * side.second.size() > all; });
  for (std::uint32_t rank = 0; rank < votes.size(); ++rank) {
    const auto side = sides.find(votes[rank].state_digest());
    const bool is_minority = side != sides.end() && 2 * side->second.size() <= all;
    if (is_minority || !has_majority) minority.push_back(rank);
  }
  return minority;
}

SumChecksum from_wire(const wire::SumChecksum& sum) { return {sum.elements(), sum.guards()}; }

// Who did not get the sum of what all gave (worker/model/exact_sum.h, "Checksum"). Nobody, where a
// member's build says no checksums.
std::vector<std::uint32_t> wrongly_reduced(const std::vector<wire::CommitVote>& votes) {
  std::vector<std::uint32_t> wrong;
  const auto is_weighed = [](const auto& vote) { return vote.has_given() && vote.has_reduced(); };
  if (!std::ranges::all_of(votes, is_weighed)) return wrong;
  const bool overflow = std::ranges::any_of(votes, &wire::CommitVote::overflow);
  SumChecksum given;
  for (const wire::CommitVote& vote : votes) given += from_wire(vote.given());
  for (std::uint32_t rank = 0; rank < votes.size(); ++rank) {
    const SumChecksum reduced = from_wire(votes[rank].reduced());
    if (reduced.guards != given.guards || (!overflow && reduced.elements != given.elements))
      wrong.push_back(rank);
  }
  return wrong;
}

// Who made it so, as far as the hops say: who adds wrongly; else who does not get what was sent to
// it, as a link gives what it was given or nothing; else who has got what the others have not.
// Nobody, where that would be more than half.
std::vector<std::uint32_t> made_wrong(const std::vector<wire::CommitVote>& votes,
                                      const std::vector<std::uint32_t>& wrong) {
  if (wrong.empty() || !std::ranges::all_of(votes, &wire::CommitVote::has_hops)) return {};
  std::vector<std::uint32_t> adders;
  std::vector<std::uint32_t> receivers;
  for (std::uint32_t rank = 0; rank < votes.size(); ++rank) {
    const wire::HopSums& hops = votes[rank].hops();
    const wire::HopSums& before = votes[(rank + votes.size() - 1) % votes.size()].hops();
    if (hops.excess() != 0) adders.push_back(rank);
    if (hops.got() != before.sent()) receivers.push_back(rank);
  }
  const auto& found = !adders.empty() ? adders : !receivers.empty() ? receivers : wrong;
  return 2 * found.size() <= votes.size() ? found : std::vector<std::uint32_t>();
}

Error wrong_sum(const CommitTerms& terms, const std::vector<std::uint32_t>& wrong,
                std::size_t members) {
  const auto shown = std::span(wrong).first(std::min(wrong.size(), kNamesMax));
  const bool is_one = wrong.size() == 1;
  return Error(Code::kInternal,
               fmt::format("round {} of step {}: of {}, rank{} {}{} got from the all-reduce what "
                           "is not the sum of the gradients that were given",
                           terms.seq, terms.step + 1, counted(members, "member"), is_one ? "" : "s",
                           fmt::join(shown, ", "),
                           wrong.size() > kNamesMax
                               ? fmt::format(" and {} more", wrong.size() - kNamesMax)
                               : ""))
      .set_reason(kWrongSum);
}
}  // namespace

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
  bool ends = false;
  bool may_end = true;  // all know how
  double squared_norms = 0;
  bool have_norms = true;
  std::uint64_t prepared = std::numeric_limits<std::uint64_t>::max();
  for (const wire::CommitVote& vote : votes) {
    if (vote.generation() != terms.generation || vote.seq() != terms.seq) {
      return Error(Code::kInternal, "a vote of another round");
    }
    loss_q += vote.loss_q();
    validation_q = validation_sum(validation_q, vote.validation_q());
    digest += vote.sample_digest();
    micro_batches += vote.micro_batches();
    validation_batches += vote.validation_batches();
    overflow = overflow || vote.overflow();
    non_finite = non_finite || vote.non_finite();
    ends = ends || vote.end() == wire::END_NOW;
    may_end = may_end && vote.end() != wire::END_UNKNOWN;
    squared_norms += vote.squared_norms();
    have_norms = have_norms && (vote.micro_batches() == 0 || vote.squared_norms() > 0);
    prepared = std::min(prepared, vote.prepared_generation());
    record.set_checkpoint(record.checkpoint() || vote.checkpoint());
    record.set_stop(record.stop() || vote.stop());
  }
  if (micro_batches != terms.micro_batches || validation_batches != terms.validation_batches) {
    return Error(Code::kInvalid, "step " + std::to_string(terms.step) + ": " +
                                     counted_of(micro_batches, terms.micro_batches, "micro-batch") +
                                     std::string(agreeing(micro_batches, " was", " were")) +
                                     " voted")
        .set_reason("LedgerMismatch");
  }
  record.set_outcome(ends && may_end ? wire::OUTCOME_ENDED
                     : non_finite    ? wire::OUTCOME_NON_FINITE
                     : overflow      ? wire::OUTCOME_REDO
                                     : wire::OUTCOME_APPLY);
  for (const std::uint32_t rank : diverged(votes)) record.add_diverged(rank);
  if (record.diverged_size() == 0) {
    const auto wrong = wrongly_reduced(votes);
    for (const std::uint32_t rank : made_wrong(votes, wrong)) record.add_diverged(rank);
    record.set_adds_wrongly(record.diverged_size() > 0);
    if (!wrong.empty() && !record.adds_wrongly()) return wrong_sum(terms, wrong, votes.size());
  }
  if (record.diverged_size() > 0) record.set_outcome(wire::OUTCOME_DIVERGED);
  record.set_loss_q(loss_q);
  record.set_micro_batches(micro_batches);
  record.set_sample_digest(digest);
  record.set_validation_q(validation_q);
  record.set_validation_batches(validation_batches);
  if (have_norms && std::isfinite(squared_norms)) record.set_squared_norms(squared_norms);
  if (prepared > terms.generation) record.set_switch_generation(prepared);
  return record;
}

std::string describe_divergence(const CommitTerms& terms,
                                const std::vector<wire::CommitVote>& votes,
                                const wire::CommitRecord& record,
                                const std::vector<std::string>& names) {
  if (record.adds_wrongly()) {
    std::vector<std::string> shown;
    for (const std::uint32_t rank : record.diverged()) shown.push_back(names[rank]);
    return "the sum of the gradients is wrong again, by " + some_of(shown, kNamesMax);
  }
  std::vector<std::string> sides;
  for (const auto& [digest, ranks] : compared(votes)) {
    std::vector<std::string> shown;
    for (std::size_t i = 0; i < std::min(ranks.size(), kNamesMax); ++i)
      shown.push_back(names[ranks[i]]);
    if (ranks.size() > kNamesMax) shown.push_back(fmt::format("{} more", ranks.size() - kNamesMax));
    sides.push_back(fmt::format("{} at {}", to_hex(digest), fmt::join(shown, ", ")));
  }
  const std::string part =
      terms.whole_state ? ""
                        : fmt::format("part {} of {} of ", terms.seq % kStateParts, kStateParts);
  return fmt::format("{}the state is {}", part, fmt::join(sides, ", but "));
}

const char* name_of(wire::Outcome outcome) {
  switch (outcome) {
    case wire::OUTCOME_APPLY:
      return "apply";
    case wire::OUTCOME_REDO:
      return "redo";
    case wire::OUTCOME_NON_FINITE:
      return "non-finite";
    case wire::OUTCOME_DIVERGED:
      return "diverged";
    case wire::OUTCOME_ENDED:
      return "ended";
    case wire::OUTCOME_UNSPECIFIED:
    case wire::Outcome_INT_MIN_SENTINEL_DO_NOT_USE_:
    case wire::Outcome_INT_MAX_SENTINEL_DO_NOT_USE_:
      break;
  }
  return "unspecified";
}

}  // namespace rubato::worker
