// sim_planted: plants known bugs, one at a time, and shows that the simulation finds them.
//   sim_planted                     all that can be seen: the story that has found it before, else
//                                   those of 500 seeds, up to the first find
//   sim_planted --search            all by those of 500 seeds
//   sim_planted --bug drop-round    one; --seed N begins elsewhere, --seeds COUNT bounds it
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
  // The first drawn story that has found it. A changed generator may draw another one there.
  std::uint64_t seed;
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

constexpr const char* kUnsettledIsUnseen =
    "not found in 500 stories: what is in hand ends before the next Form comes, unless it is "
    "slower than the record";

// placement_gate_test holds it.
constexpr const char* kBindingIsRare =
    "found after 2271 stories: a pod must leave the allocation between its binding and the event "
    "that shows it, while another job waits for just its GPUs";

// Three tests of JobMachineRecovery hold it.
constexpr const char* kFenceIsRare =
    "found after 2937 stories: the answers to an abort are there before the record is written, "
    "unless an agent is slower than the API server";

constexpr std::array kMutations = {
    Mutation{Bug::kSkipFence, "skip-fence", 0, "recovery does not wait until workers stand still",
             kFenceIsRare},
    Mutation{Bug::kBlindMembership, "blind-membership", 84, "membership without its test"},
    Mutation{Bug::kIgnoreExpired, "ignore-410", 37, "a watch that got 410 does not list again"},
    Mutation{Bug::kGiveOnEarly, "give-on-early", 1, "a GPU is free while its pod still ends"},
    Mutation{Bug::kKeepOldLeader, "keep-old-leader", 1, "a new leader does not bump the record"},
    Mutation{Bug::kHastyLeader, "hasty-leader", 26, "lost before a full heartbeat deadline"},
    Mutation{Bug::kSameEpoch, "same-epoch", 1, "an allocation under the epoch before it"},
    Mutation{Bug::kDropRound, "drop-round", 237, "recovery goes back behind a decided round"},
    Mutation{Bug::kFormUnwritten, "form-unwritten", 19, "a generation formed before its record"},
    Mutation{Bug::kForgetPromise, "forget-promise", 1, "promised GPUs count as free"},
    Mutation{Bug::kForgetOwnWrites, "forget-own-writes", 27, "decides on caches behind its writes"},
    Mutation{Bug::kForgetBindings, "forget-bindings", 0, "a binding counts once the cache shows it",
             kBindingIsRare},
    Mutation{Bug::kSampleTwice, "sample-twice", 0, "two keep the same micro-batch", kTwiceIsUnseen},
    Mutation{Bug::kReuseOrdinal, "reuse-ordinal", 3, "a new pod under an old name"},
    Mutation{Bug::kOverLimit, "over-limit", 2, "growth beyond the queue's limit"},
    Mutation{Bug::kUnexplained, "unexplained", 2, "verdicts are not told"},
    Mutation{Bug::kForgetRescales, "forget-rescales", 26, "a new leader counts from nothing"},
    Mutation{Bug::kStaleStatus, "stale-status", 51, "what was said before an abort answers it"},
    Mutation{Bug::kStepsAlone, "steps-alone", 19, "steps are compared, and not digests"},
    Mutation{Bug::kLookOnce, "look-once", 3, "what was on disk once is there"},
    Mutation{Bug::kStaleRank, "stale-rank", 1, "a recovery leaves a member its old rank"},
    Mutation{Bug::kKeepSums, "keep-sums", 1, "accumulators are not cleared for a new round"},
    Mutation{Bug::kVoteUnadded, "vote-unadded", 1, "a vote for micro-batches not in the sum"},
    Mutation{Bug::kReduceNothing, "reduce-nothing", 1, "a member applies its own sum"},
    Mutation{Bug::kLevelNothing, "level-nothing", 21, "who is a round behind does not apply it"},
    Mutation{Bug::kForgetAttempts, "forget-attempts", 2, "every redo counts as the first"},
    Mutation{Bug::kNewerSnapshot, "newer-snapshot", 5, "a snapshot says it is a round newer"},
    Mutation{Bug::kForgetRecords, "forget-records", 11, "a newcomer takes no step records"},
    Mutation{Bug::kForgetExponents, "forget-exponents", 3, "copies lack the block exponents"},
    Mutation{Bug::kFinishUnwritten, "finish-unwritten", 117, "finished before the last checkpoint"},
    Mutation{Bug::kUnsynced, "unsynced", 10, "checkpoints are named before they are synced"},
    Mutation{Bug::kPruneNewest, "prune-newest", 1, "the oldest checkpoints are kept"},
    Mutation{Bug::kUnsettled, "unsettled", 0, "an abort is answered before its time: no fence",
             kUnsettledIsUnseen},
    Mutation{Bug::kRingCopies, "ring-copies", 1, "the last part of a sum is copied, not added"},
    Mutation{Bug::kRingPieceTwice, "ring-piece-twice", 3,
             "pieces are added at a segment's beginning"},
    Mutation{Bug::kRingHalfWord, "ring-half-word", 3, "a word that comes in two pieces is lost"},
    Mutation{Bug::kTreeOwnVote, "tree-own-vote", 1, "the own vote stands for a child's"},
    Mutation{Bug::kHubAnyLink, "hub-any-link", 1,
             "the link of another is taken for the awaited one"},
    Mutation{Bug::kHubOldLink, "hub-old-link", 0, "a link of an earlier generation is taken",
             kOldLinkIsUnseen},
    Mutation{Bug::kHubUnfenced, "hub-unfenced", 0, "a hello below the fence is accepted",
             kUnfencedIsUnseen},
    Mutation{Bug::kAbortRingOnly, "abort-ring-only", 0, "an abort leaves votes by the tree alone",
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

void print(const Mutation& mutation, const Find& find, double seconds) {
  if (find.found) {
    fmt::print("{:18} found after {:4} seeds, {:5.1f} s, at seed {}: {}\n", mutation.name,
               find.seeds, seconds, find.outcome.trial.seed, find.outcome.result.what);
    return;
  }
  fmt::print("{:18} NOT FOUND in {} seeds, {:.1f} s: {}{}\n", mutation.name, find.seeds, seconds,
             mutation.what,
             mutation.unseen == nullptr ? "" : fmt::format(" ({})", mutation.unseen));
}

struct Words {
  std::string only;
  bool searches = false;
  std::uint64_t first = 1;
  std::uint64_t seeds = 500;
};

int run(const Words& words) {
  const int jobs = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  int missed = 0;
  for (const Mutation& mutation : kMutations) {
    if (words.only.empty() ? mutation.unseen != nullptr : words.only != mutation.name) continue;
    const auto began = std::chrono::steady_clock::now();
    Find find;
    if (words.only.empty() && !words.searches) find = look_for(mutation, mutation.seed, 1, 1);
    if (!find.found) find = look_for(mutation, words.first, words.seeds, jobs);
    print(mutation, find,
          std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
    std::fflush(stdout);
    if (!find.found) ++missed;
  }
  return missed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace sim
}  // namespace rubato

int main(int argc, char** argv) {
  rubato::sim::Words words;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--search") words.searches = true;
    if (i + 1 == argc) break;
    if (word == "--bug") words.only = argv[i + 1];
    if (word == "--seed") words.first = std::strtoull(argv[i + 1], nullptr, 10);
    if (word == "--seeds") words.seeds = std::strtoull(argv[i + 1], nullptr, 10);
  }
  return rubato::sim::run(words);
}
