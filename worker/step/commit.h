// The commit: folding the members' votes into the one decision that all of them reach. Pure.
#pragma once

#include "common/result.h"
#include "worker/protocol/wire.pb.h"

#include <cstdint>
#include <string>
#include <vector>

namespace rubato::worker {

struct CommitTerms {
  std::uint64_t generation = 0;
  std::uint64_t seq = 0;
  std::uint64_t step = 0;
  std::uint32_t micro_batches = 0;
  std::uint32_t validation_batches = 0;  // how many this round owes; 0: none due
  bool whole_state = false;              // the digests are of all of it, and no round is decided
};

// Where the votes' state digests differ the outcome is DIVERGED, and `diverged` names those who do
// not share the state of a strict majority of the compared; everybody when there is none. Votes
// without a digest are not compared. ENDED where any vote says so and all know that outcome.
// kInternal: votes of different rounds or generations. kInvalid, reason "LedgerMismatch": the
// micro-batches do not add up to the job's count, which is a broken invariant of somebody's.
// kInternal, reason kWrongSum: where all votes have checksums and no states differ, what somebody
// got from the reduction is not the sum of what all gave. Its integers must not be used. Where all
// votes have hops, too, and these tell who made it so, the outcome is DIVERGED with `adds_wrongly`,
// and `diverged` names them: at most half of all.
Result<wire::CommitRecord> fold_votes(const CommitTerms& terms,
                                      const std::vector<wire::CommitVote>& votes);

constexpr const char* kWrongSum = "WrongSum";

// Who held which state, or made the sum wrong, for people. `names`: by rank.
std::string describe_divergence(const CommitTerms& terms,
                                const std::vector<wire::CommitVote>& votes,
                                const wire::CommitRecord& record,
                                const std::vector<std::string>& names);

// "apply", "redo", "non-finite", "diverged", "ended"
const char* name_of(wire::Outcome outcome);

}  // namespace rubato::worker
