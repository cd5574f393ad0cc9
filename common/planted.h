// Bugs that a test plants to see whether the simulation finds them (tests/sim/planted_main.cc).
// Only a test's own copy of the code is compiled with RUBATO_PLANTED_BUGS; everywhere else
// planted() is the constant false, and nothing of it is left in a program.
#pragma once

namespace rubato {

enum class Bug {
  kNone,
  kSkipFence,        // recovery does not wait until the workers stand still
  kBlindMembership,  // membership is written without its test of generation and leader
  kIgnoreExpired,    // a watch that got 410 does not list again
  kGiveOnEarly,      // a GPU is free while its old pod is still ending
  kKeepOldLeader,    // a new leader does not put its epoch into membership
  kHastyLeader,      // a new leader calls workers lost before a full heartbeat deadline
  kSameEpoch,        // an allocation is written under the epoch before it
  kDropRound,        // recovery goes back to an older round than the newest that was decided
  kFormUnwritten,    // a generation is formed before its record stands
  kForgetPromise,    // capture does not count GPUs that are promised to pods not yet bound
  kForgetOwnWrites,  // the scheduler decides on caches that have not seen its last decisions
  kForgetBindings,   // a binding that the cache does not show yet does not count
  kSampleTwice,      // two survivors keep the same micro-batch
  kReuseOrdinal,     // a new pod gets the name of an older one
  kOverLimit,        // a job grows beyond its queue's limit
  kUnexplained,      // verdicts are not told
  kForgetRescales,   // a new leader does not count what those before it decided
  kStaleStatus,      // what a worker said before an abort counts as its answer
  kStepsAlone,       // steps are compared, and not the digests of states and checkpoints
  // Of workers:
  kStaleRank,        // a recovery leaves a member with the rank it had
  kKeepSums,         // accumulators are not cleared for a new round
  kVoteUnadded,      // a member votes for micro-batches that it has not added
  kReduceNothing,    // a member applies its own sum
  kLevelNothing,     // who is one round behind at a recovery does not apply it
  kForgetAttempts,   // every redo of a step counts as the first
  kNewerSnapshot,    // a snapshot says that it is a round newer than it is
  kForgetRecords,    // a newcomer does not take the step records
  kForgetExponents,  // copies of the state lack the block exponents
  kFinishUnwritten,  // rank 0 has finished before its last checkpoint is written
  kUnsynced,         // checkpoints are named before they are synced
  kPruneNewest,      // the oldest checkpoints are kept
  kUnsettled,        // an abort is answered before what is in hand has ended
  // Of links between workers:
  kRingCopies,      // with more than two members the last part of a sum is copied, not added
  kRingPieceTwice,  // a segment that comes in pieces is added at its beginning each time
  kRingHalfWord,    // what has come of a word is forgotten when the rest comes apart
  kTreeOwnVote,     // a member's own vote stands for those of its first child
  kHubAnyLink,      // whoever comes first has the link that another was awaited for
  kHubOldLink,      // a link of an earlier generation is taken for one of this
  kHubUnfenced,     // a hello below the fence is accepted
  kAbortRingOnly,   // an abort does not end votes that travel by the tree
  // What was once so (docs/reliability.md, "Promises"; tests/sim/planted_rows.cc):
  kAnyoneEnds,        // what is for good for one worker ends the job
  kJudgeUnheard,      // silence is judged before all that arrived is taken down
  kDamageIsFinal,     // a damaged checkpoint is not set aside
  kOldAllocation,     // a new leader's pods are made after any allocation
  kNobodyRises,       // a newcomer that refuses the recorded generation refuses it for ever
  kStepsWait,         // a checkpoint that is due waits for the one before
  kOneDonor,          // all newcomers follow one member
  kNoOwner,           // nobody asks whose checkpoints are on a path
  kOneTry,            // the last checkpoint is tried once
  kLeaseAlone,        // a leader's epoch is above those of Leases alone
  kAnyGrace,          // a stop takes two minutes whatever the grace period is
  kLookOnce,          // what was on disk when a worker was configured is there
  kRestartUnreached,  // whom the largest set does not reach is restarted
  kAttemptsUnsaved,   // attempts at the open step are not taken from the checkpoint
  kAnyGeneration,     // any generation that a worker names is followed
  kForgetRecomputed,  // steps that are computed again are not on record
};

#ifdef RUBATO_PLANTED_BUGS
bool planted(Bug bug);
#else
constexpr bool planted(Bug) { return false; }
#endif

}  // namespace rubato
