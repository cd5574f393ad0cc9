// sim_planted: plants known bugs, one at a time, and shows that the simulation finds them.
//   sim_planted                     all that can be seen, each within 1 000 seeds, up to the first
//   find sim_planted --bug drop-round    one; --seed N begins elsewhere, --seeds COUNT bounds it
#include "common/planted.h"
#include "tests/sim/runner.h"

#include <array>
#include <chrono>
#include <cstdlib>
#include <thread>

namespace rubato {

namespace {
Bug present = Bug::kNone;
}

bool planted(Bug bug) { return bug == present; }

namespace sim {
namespace {

struct Mutation {
  Bug bug;
  const char* name;
  const char* what;
  // Why nobody outside can see it, or only in very many stories; then only --bug runs it.
  const char* unseen = nullptr;
};

// recovery_plan_test and step_protocol_test hold it.
constexpr const char* kTwiceIsUnseen =
    "a second guard: those whom a recovery asks come from one generation, whose shares lie apart, "
    "and a worker that was left out drops what it holds when it is told to follow";

// link_hub_test holds it.
constexpr const char* kUnfencedIsUnseen =
    "a second guard: nobody awaits a link of a generation below its own fence, so one lies unused";

// link_hub_test holds it.
constexpr const char* kOldLinkIsUnseen =
    "such a link waits only where votes went by the ring alone (builds differ), and its other end "
    "is "
    "closed: the members recover, which costs time alone";

// tree_gather_test holds it.
constexpr const char* kAbortIsUnseen =
    "an abort reaches the peers as well, whose ends free who waits; where one is cut off too, the "
    "one who waits is restarted, which costs time alone";

// placement_gate_test holds it.
constexpr const char* kBindingIsRare =
    "found after 2271 stories: a pod must leave the allocation between its binding and the event "
    "that shows it, while another job waits for just its GPUs";

// Three tests of JobMachineRecovery hold it.
constexpr const char* kFenceIsRare =
    "found after 2937 stories: the answers to an abort are there before the record is written, "
    "unless an agent is slower than the API server";

constexpr std::array kMutations = {
    Mutation{Bug::kSkipFence, "skip-fence", "recovery does not wait until workers stand still",
             kFenceIsRare},
    Mutation{Bug::kBlindMembership, "blind-membership", "membership without its test"},
    Mutation{Bug::kIgnoreExpired, "ignore-410", "a watch that got 410 does not list again"},
    Mutation{Bug::kGiveOnEarly, "give-on-early", "a GPU is free while its pod still ends"},
    Mutation{Bug::kKeepOldLeader, "keep-old-leader", "a new leader does not bump the record"},
    Mutation{Bug::kHastyLeader, "hasty-leader", "lost before a full heartbeat deadline"},
    Mutation{Bug::kSameEpoch, "same-epoch", "an allocation under the epoch before it"},
    Mutation{Bug::kDropRound, "drop-round", "recovery goes back behind a decided round"},
    Mutation{Bug::kFormUnwritten, "form-unwritten", "a generation formed before its record"},
    Mutation{Bug::kForgetPromise, "forget-promise", "promised GPUs count as free"},
    Mutation{Bug::kForgetOwnWrites, "forget-own-writes", "decides on caches behind its writes"},
    Mutation{Bug::kForgetBindings, "forget-bindings", "a binding counts once the cache shows it",
             kBindingIsRare},
    Mutation{Bug::kSampleTwice, "sample-twice", "two keep the same micro-batch", kTwiceIsUnseen},
    Mutation{Bug::kReuseOrdinal, "reuse-ordinal", "a new pod under an old name"},
    Mutation{Bug::kOverLimit, "over-limit", "growth beyond the queue's limit"},
    Mutation{Bug::kUnexplained, "unexplained", "verdicts are not told"},
    Mutation{Bug::kForgetRescales, "forget-rescales", "a new leader counts from nothing"},
    Mutation{Bug::kStaleRank, "stale-rank", "a recovery leaves a member its old rank"},
    Mutation{Bug::kKeepSums, "keep-sums", "accumulators are not cleared for a new round"},
    Mutation{Bug::kVoteUnadded, "vote-unadded", "a vote for micro-batches not in the sum"},
    Mutation{Bug::kReduceNothing, "reduce-nothing", "a member applies its own sum"},
    Mutation{Bug::kLevelNothing, "level-nothing", "who is a round behind does not apply it"},
    Mutation{Bug::kForgetAttempts, "forget-attempts", "every redo counts as the first"},
    Mutation{Bug::kNewerSnapshot, "newer-snapshot", "a snapshot says it is a round newer"},
    Mutation{Bug::kForgetRecords, "forget-records", "a newcomer takes no step records"},
    Mutation{Bug::kForgetExponents, "forget-exponents", "copies lack the block exponents"},
    Mutation{Bug::kFinishUnwritten, "finish-unwritten", "finished before the last checkpoint"},
    Mutation{Bug::kUnsynced, "unsynced", "checkpoints are named before they are synced"},
    Mutation{Bug::kPruneNewest, "prune-newest", "the oldest checkpoints are kept"},
    Mutation{Bug::kRingCopies, "ring-copies", "the last part of a sum is copied, not added"},
    Mutation{Bug::kRingPieceTwice, "ring-piece-twice", "pieces are added at a segment's beginning"},
    Mutation{Bug::kRingHalfWord, "ring-half-word", "a word that comes in two pieces is lost"},
    Mutation{Bug::kTreeOwnVote, "tree-own-vote", "the own vote stands for a child's"},
    Mutation{Bug::kHubAnyLink, "hub-any-link", "the link of another is taken for the awaited one"},
    Mutation{Bug::kHubOldLink, "hub-old-link", "a link of an earlier generation is taken",
             kOldLinkIsUnseen},
    Mutation{Bug::kHubUnfenced, "hub-unfenced", "a hello below the fence is accepted",
             kUnfencedIsUnseen},
    Mutation{Bug::kAbortRingOnly, "abort-ring-only", "an abort leaves votes by the tree alone",
             kAbortIsUnseen},
};

struct Find {
  bool found = false;
  std::uint64_t seeds = 0;  // run until then
  Outcome outcome;
};

Find look_for(const Mutation& mutation, std::uint64_t first, std::uint64_t seeds, int jobs) {
  present = mutation.bug;
  Find find;
  std::uint64_t next = first;
  run_all(
      jobs,
      [&]() -> std::optional<Trial> {
        if (next >= first + seeds) return std::nullopt;
        Trial trial;
        trial.seed = next++;
        return trial;
      },
      [&](const Outcome& outcome) {
        ++find.seeds;
        if (outcome.result.ok) return true;
        find.found = true;
        find.outcome = outcome;
        return false;
      });
  present = Bug::kNone;
  return find;
}

int run(const std::string& only, std::uint64_t first, std::uint64_t seeds) {
  const int jobs = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  int missed = 0;
  for (const Mutation& mutation : kMutations) {
    if (only.empty() ? mutation.unseen != nullptr : only != mutation.name) continue;
    const auto began = std::chrono::steady_clock::now();
    const Find find = look_for(mutation, first, seeds, jobs);
    const double real =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    if (find.found)
      fmt::print("{:18} found after {:4} seeds, {:5.1f} s, at seed {}: {}\n", mutation.name,
                 find.seeds, real, find.outcome.trial.seed, find.outcome.result.what);
    else
      fmt::print("{:18} NOT FOUND in {} seeds, {:.1f} s: {}{}\n", mutation.name, find.seeds, real,
                 mutation.what,
                 mutation.unseen == nullptr ? "" : fmt::format(" ({})", mutation.unseen));
    std::fflush(stdout);
    if (!find.found) ++missed;
  }
  return missed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace sim
}  // namespace rubato

int main(int argc, char** argv) {
  std::string only;
  std::uint64_t first = 1;
  std::uint64_t seeds = 1000;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string word = argv[i];
    if (word == "--bug") only = argv[i + 1];
    if (word == "--seed") first = std::strtoull(argv[i + 1], nullptr, 10);
    if (word == "--seeds") seeds = std::strtoull(argv[i + 1], nullptr, 10);
  }
  return rubato::sim::run(only, first, seeds);
}
