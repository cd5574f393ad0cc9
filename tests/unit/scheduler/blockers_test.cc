#include "scheduler/blockers.h"

#include "scheduler/policy/registry.h"
#include "tests/unit/scheduler/drawn_clusters.h"

#include <set>
#include <string>

#include <gtest/gtest.h>

namespace rubato::sched {
namespace {

using Ids = std::vector<JobId>;

TEST(Blockers, AreThoseThatHoldWhatItNeeds) {
  const auto state =
      cluster({node("n1", 2, 0), node("n2", 2, 0), node("n3", 1, 1)},
              {running("a", 2, 2, {"n1", "n1"}), running("b", 2, 2, {"n2", "n2"}), job("c", 3, 3)});
  EXPECT_EQ(blockers_of(state, {}, "c"), Ids{"b"});  // one is enough, and b is the later one
  EXPECT_EQ(blockers_of(state, {}, "a"), Ids{});     // it is placed
  const auto wants_more =
      cluster({node("n1", 2, 0), node("n2", 2, 0)},
              {running("a", 2, 2, {"n1", "n1"}), running("b", 2, 2, {"n2", "n2"}), job("c", 4, 4),
               job("never", 5, 5)});
  EXPECT_EQ(blockers_of(wants_more, {}, "c"), (Ids{"b", "a"}));
  EXPECT_EQ(blockers_of(wants_more, {}, "never"), Ids{});
}

TEST(Blockers, AreThoseThatComeFirst) {
  std::vector<Job> jobs{running("a", 1, 1, {"n1"}), job("large", 2, 2), job("small", 1, 1)};
  jobs[1].queued_at = 1;
  jobs[2].queued_at = 2;
  const auto state = cluster({node("n1", 2, 1)}, jobs);
  const PolicyConfig fifo{.policy = "fifo"};
  EXPECT_EQ(verdict_of(make_plan(state, fifo), state, "small").reason, Reason::kBehind);
  EXPECT_EQ(blockers_of(state, fifo, "small"), Ids{"large"});
  EXPECT_EQ(blockers_of(state, fifo, "large"), Ids{"a"});
}

TEST(Blockers, OfAFullQueueAreItsOwnJobs) {
  Job stranger = running("stranger", 2, 2, {"n1", "n1"});
  stranger.queue = "other";
  ClusterState state =
      cluster({node("n1", 8, 4)}, {running("a", 2, 2, {"n1", "n1"}), stranger, job("b", 3, 3)});
  state.queues["other"] = {.name = "other"};
  state.queues["default"].quotas["*"].limit = 3;
  EXPECT_EQ(blockers_of(state, {}, "b"), Ids{"a"});
  state.queues["default"].held_by_leavers["A"] = 2;  // their jobs are gone already
  EXPECT_EQ(blockers_of(state, {}, "b"), Ids{});
}

TEST(Blockers, AreNoneWhereNodesAreWaitedFor) {
  Node cordoned = node("n2", 2, 2);
  cordoned.schedulable = false;
  const auto state =
      cluster({node("n1", 2, 1), cordoned}, {running("a", 1, 1, {"n1"}), job("b", 3, 3)});
  EXPECT_EQ(blockers_of(state, {}, "b"), Ids{});
}

ClusterState without_all(ClusterState state, const Ids& gone) {
  for (const JobId& id : gone) state = without(std::move(state), id);
  return state;
}

// Without its blockers a job is placed, each of them is needed for that, and where there are none
// it would not be placed alone either.
TEST(BlockersProperty, WithoutThemAJobIsPlaced) {
  const std::set<std::string> drawn_often{"marginalThroughput", "fifo", "srtf", "drf"};
  for (const Descriptor& about : all_policies()) {
    const std::string& policy = about.name;
    const PolicyConfig config{.policy = policy};
    const std::uint64_t last = drawn_often.contains(policy) ? 200
                               : policy == kDefaultPolicy   ? 60
                                                            : 4;
    int found = 0;
    for (std::uint64_t seed = 1; seed <= last; ++seed) {
      const ClusterState state = drawn_cluster(seed, config);
      const Plan plan = make_plan(state, config);
      for (const Job& job : state.jobs) {
        SCOPED_TRACE(policy + (", seed " + std::to_string(seed)) + ", job " + job.id);
        const Reason reason = verdict_of(plan, state, job.id).reason;
        const bool waits = verdict_of(plan, state, job.id).outcome == Outcome::kNotNow &&
                           reason != Reason::kNodesUnavailable && reason != Reason::kNodesAvoided &&
                           reason != Reason::kEveryNodeAvoided;
        const auto is_placed_without = [&](const Ids& gone) {
          const ClusterState rest = without_all(state, gone);
          return verdict_of(make_plan(rest, config), rest, job.id).outcome == Outcome::kPlaced;
        };
        const Ids blockers = blockers_of(state, config, job.id);
        if (!waits) {
          EXPECT_TRUE(blockers.empty());
          continue;
        }
        if (blockers.empty()) {
          Ids others;
          for (const Job& other : state.jobs)
            if (other.id != job.id) others.push_back(other.id);
          EXPECT_FALSE(is_placed_without(others));
          continue;
        }
        ++found;
        EXPECT_TRUE(is_placed_without(blockers));
        for (const JobId& one : blockers) {
          Ids others = blockers;
          std::erase(others, one);
          EXPECT_FALSE(is_placed_without(others)) << one << " is not needed";
        }
      }
    }
    if (drawn_often.contains(policy)) {
      EXPECT_GT(found, 50) << policy;
    }
  }
}

}  // namespace
}  // namespace rubato::sched
