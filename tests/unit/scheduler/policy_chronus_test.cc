// The policy `chronus`.
#include "common/clock.h"
#include "tests/unit/scheduler/policy_cases.h"

#include <bit>
#include <chrono>

namespace rubato::sched {
namespace {

constexpr TimeMs kLease = 240'000;
constexpr TimeMs kNow = 100 * kLease;

Job due_in_leases(const std::string& id, TimeMs left_leases,
                  std::optional<TimeMs> deadline_leases) {
  Job j = job(id, 1, 1);
  j.remaining_ms = j.duration_ms = left_leases * kLease;
  if (deadline_leases) j.deadline_ms = kNow + *deadline_leases * kLease;
  return j;
}

// Of three for one GPU: a has the nearest deadline and cannot meet it, b can meet its own, and c is
// the oldest and the shortest.
ClusterState one_can_be_met() {
  ClusterState state = cluster(
      {node("n1", 1, 1)},
      {due_in_leases("a", 4, 3), due_in_leases("b", 5, 5), due_in_leases("c", 1, std::nullopt)});
  state.now_ms = kNow;
  state.jobs[0].queued_at = state.jobs[1].queued_at = 9;
  return state;
}

TEST(Chronus, PlansWhatNoSimplerPolicyDoes) {
  EXPECT_EQ(sizes_after(one_can_be_met(), "chronus"), (Sizes{{"b", 1}}));
  EXPECT_EQ(who_plans_the_same(one_can_be_met(), "chronus"), Nobody{});
  EXPECT_EQ(sizes_after(one_can_be_met(), "edf"), (Sizes{{"a", 1}}));
}

// Its mechanism is the promise: without a deadline that can be met, the shortest goes first.
TEST(Chronus, WithoutAPromiseTheShortestGoesFirst) {
  ClusterState state = one_can_be_met();
  state.jobs[1].deadline_ms = kNow + 4 * kLease;
  EXPECT_EQ(sizes_after(state, "chronus"), (Sizes{{"c", 1}}));
}

// a and b could each be met, not both: the one that needs more is dropped, unless it has started.
TEST(Chronus, WhoHasStartedKeepsItsPromise) {
  ClusterState state =
      cluster({node("n1", 1, 1)}, {due_in_leases("a", 3, 3), due_in_leases("b", 2, 4)});
  state.now_ms = kNow;
  EXPECT_EQ(sizes_after(state, "chronus"), (Sizes{{"b", 1}}));
  state.jobs[0].attained_gpu_ms = 1;
  EXPECT_EQ(sizes_after(state, "chronus"), (Sizes{{"a", 1}}));
}

// Half an hour of work in an hour has the GPU, whatever is due years later; that job has it when
// nobody else needs it, before best effort, and first once it could not be done in time otherwise.
TEST(Chronus, AFarDeadlineLeavesNearOnesTheirLeases) {
  ClusterState state =
      cluster({node("n1", 1, 1)}, {due_in_leases("urgent", 8, 15), due_in_leases("far", 2, 15)});
  state.now_ms = kNow;
  state.jobs[1].deadline_ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(kLastTime.time_since_epoch()).count();
  EXPECT_EQ(sizes_after(state, "chronus"), (Sizes{{"urgent", 1}}));
  state.jobs[0].deadline_ms.reset();
  EXPECT_EQ(sizes_after(state, "chronus"), (Sizes{{"far", 1}}));
  state.jobs[0].deadline_ms = kNow + 15 * kLease;
  state.jobs[1] = due_in_leases("far", 1000, 1000);
  state.jobs[1].attained_gpu_ms = 1;
  EXPECT_EQ(sizes_after(state, "chronus"), (Sizes{{"far", 1}}));
  state.jobs[1].deadline_ms = kNow + 1008 * kLease;
  EXPECT_EQ(sizes_after(state, "chronus"), (Sizes{{"urgent", 1}}));
}

// The most jobs that can be met on one GPU, by trying all sets: a set can be met if, for each of
// its deadlines, what is due until then fits.
int most_met(const std::vector<Job>& jobs) {
  int most = 0;
  for (unsigned set = 0; set < 1U << jobs.size(); ++set) {
    bool can = true;
    for (const Job& last : jobs) {
      TimeMs due_ms = 0;
      for (std::size_t i = 0; i < jobs.size(); ++i)
        if ((set >> i & 1U) != 0 && *jobs[i].deadline_ms <= *last.deadline_ms)
          due_ms += *jobs[i].remaining_ms;
      can = can && due_ms <= *last.deadline_ms - kNow;
    }
    if (can) most = std::max(most, std::popcount(set));
  }
  return most;
}

// Lease by lease as the policy says, on one GPU, without any cost: how many are in time.
int met_by_policy(std::vector<Job> jobs) {
  int met = 0;
  const auto policy = make_policy("chronus", {}).value();
  ClusterState state = cluster({node("n1", 1, 1)}, std::move(jobs));
  for (state.now_ms = kNow; !state.jobs.empty(); state.now_ms += kLease) {
    const JobIndex first = policy->decide(Problem(state)).order.front();
    Job& runs = state.jobs[first.value];
    runs.attained_gpu_ms += kLease;
    *runs.remaining_ms -= kLease;
    if (*runs.remaining_ms > 0) continue;
    met += state.now_ms + kLease <= *runs.deadline_ms ? 1 : 0;
    state.jobs.erase(state.jobs.begin() + first.value);
  }
  return met;
}

TEST(Chronus, MeetsAsManyAsCanBeMetOnOneGpu) {
  int dropped = 0;
  for (std::uint64_t seed = 1; seed <= kDrawnStates; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    std::vector<Job> jobs;
    for (std::uint64_t k = 1 + rng.below(6); k > 0; --k)
      jobs.push_back(due_in_leases("j" + std::to_string(k), static_cast<TimeMs>(1 + rng.below(6)),
                                   static_cast<TimeMs>(1 + rng.below(15))));
    const int most = most_met(jobs);
    dropped += most < std::ssize(jobs) ? 1 : 0;
    EXPECT_EQ(met_by_policy(jobs), most);
  }
  EXPECT_GT(dropped, 100);
}

}  // namespace
}  // namespace rubato::sched
