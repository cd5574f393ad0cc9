// The policies `gavel` and `gavelFinish`, and how a session moves jobs from type to type.
#include "tests/unit/scheduler/policy_cases.h"

#include <cmath>

namespace rubato::sched {
namespace {

constexpr TimeMs kRoundMs = 360'000;

using Types = std::map<JobId, std::string>;

// On which type each job is once the plan is done; who holds nothing is not in it.
Types types_after(const ClusterState& state, const Plan& plan) {
  Types types;
  for (const Job& job : state.jobs)
    if (effective_gpus(job) > 0) types[job.id] = job.held.front().gpu_type;
  for (const Action& action : plan.actions) {
    if (action.kind == ActionKind::kPreempt) types.erase(action.job);
    if (!action.add.empty()) types[action.job] = action.add.front().gpu_type;
  }
  return types;
}
Types types_after(const ClusterState& state, const std::string& policy,
                  const Parameters& parameters = {}) {
  return types_after(state, make_plan(state, {.policy = policy, .parameters = parameters}));
}

Job on(const std::string& id, const NodeId& node, const std::string& type, TimeMs since_ms) {
  Job job = running(id, 1, 1, {node});
  job.held[0].gpu_type = type;
  job.allocated_ms = since_ms;
  return job;
}

void measure_on_types(Job& job, double on_fast, double on_slow) {
  job.measured = {{"fast", 1, on_fast}, {"slow", 1, on_slow}};
}

// One GPU of each type. Two jobs gain much by the fast one, two older ones next to nothing.
ClusterState four_on_two_types() {
  ClusterState state =
      cluster({node("n1", 1, 1, "fast"), node("n2", 1, 1, "slow")},
              {job("gains1", 1, 1), job("gains2", 1, 1), job("same1", 1, 1), job("same2", 1, 1)});
  state.now_ms = 100 * kRoundMs;
  for (std::size_t i = 0; i < 4; ++i) {
    state.jobs[i].queued_at = i < 2 ? 35'000 : 30'000;
    measure_on_types(state.jobs[i], i < 2 ? 100 : 11, 10);
  }
  return state;
}

// Which of two alike has the turn is the vertex's business.
Types kinds_after(const ClusterState& state, const std::string& policy,
                  const Parameters& parameters = {}) {
  Types types;
  for (const auto& [id, type] : types_after(state, policy, parameters))
    types[id.substr(0, id.size() - 1)] += type;
  return types;
}

const Types kTraded{{"gains", "fast"}, {"same", "slow"}};

TEST(Gavel, PlansWhatNoSimplerPolicyDoes) {
  const ClusterState state = four_on_two_types();
  EXPECT_EQ(kinds_after(state, "gavel"), kTraded);
  for (const char* simpler : {"fifo", "fifoBackfill", "sjf", "srtf", "srsf", "las", "tiresias",
                              "marginalThroughput", "rubato"})
    EXPECT_NE(kinds_after(state, simpler), kTraded) << simpler;
}

// Its mechanism is the program: with equal shares instead, the oldest have their turn.
TEST(Gavel, WithoutItsProgramTheOldestGoFirst) {
  EXPECT_EQ(types_after(four_on_two_types(), "gavel", {{"objective", 3}}),
            (Types{{"same1", "fast"}, {"same2", "slow"}}));
}

TEST(Gavel, OrderOfJobsInTheStateMeansNothing) {
  ClusterState state = four_on_two_types();
  const Types types = types_after(state, "gavel");
  std::ranges::reverse(state.jobs);
  EXPECT_EQ(types_after(state, "gavel"), types);
}

// What nobody measured is as much faster for a job as it is for others.
TEST(Gavel, GuessesSpeedsFromOtherJobs) {
  ClusterState state = four_on_two_types();
  std::erase_if(state.jobs[0].measured, [](const auto& point) { return point.gpu_type == "fast"; });
  EXPECT_EQ(kinds_after(state, "gavel"), kTraded);
  for (std::size_t i : {1, 2, 3}) state.jobs[i].measured.clear();
  state.jobs[0].measured.clear();
  EXPECT_EQ(types_after(state, "gavel").size(), 2U);
}

// Rounds in which every job starts anew: what each has had of each type in the end.
std::map<JobId, std::map<std::string, double>> received_after(ClusterState state, int rounds,
                                                              const Parameters& parameters) {
  const TimeMs begin_ms = state.now_ms;
  for (Job& job : state.jobs) job.queued_at = static_cast<double>(begin_ms) / 1000;
  for (int i = 0; i < rounds; ++i) {
    for (const auto& [id, type] : types_after(state, "gavel", parameters))
      for (Job& job : state.jobs)
        if (job.id == id) job.attained_by_type[type] += kRoundMs;
    state.now_ms += kRoundMs;
  }
  std::map<JobId, std::map<std::string, double>> received;
  for (const Job& job : state.jobs)
    for (const auto& [type, gpu_ms] : job.attained_by_type)
      received[job.id][type] = static_cast<double>(gpu_ms) / static_cast<double>(rounds * kRoundMs);
  return received;
}

// Shares by hand, of each of two alike together: those that gain have x of the fast GPU, the others
// 1 - x and all of the slow one. Levels relative to equal shares, 100 x / 55 and (11 (1 - x) + 10)
// / 10.5, are equal at 1155/1655. (One type is a quarter to each: (100 + 10) / 4 = 27.5 of two
// jobs.)
TEST(Gavel, RoundsGiveTheSharesInTheEnd) {
  constexpr double kFast = 1155.0 / 1655.0;
  auto received = received_after(four_on_two_types(), 400, {});
  const auto both = [&](const std::string& of, const std::string& type) {
    return received[of + "1"][type] + received[of + "2"][type];
  };
  EXPECT_NEAR(both("gains", "fast"), kFast, 0.01);
  EXPECT_NEAR(both("same", "fast"), 1 - kFast, 0.01);
  EXPECT_NEAR(both("same", "slow"), 1, 0.01);
}

// Three that came 30 000, 20 000 and 100 s ago and have had nothing, for one GPU on which they are
// equally fast.
ClusterState waiting_for_one_gpu(std::int64_t oldest_left_s, std::int64_t middle_left_s,
                                 std::int64_t youngest_left_s) {
  ClusterState state =
      cluster({node("n1", 1, 1)}, {lasting(job("oldest", 1, 1), oldest_left_s * 1000),
                                   lasting(job("middle", 1, 1), middle_left_s * 1000),
                                   lasting(job("youngest", 1, 1), youngest_left_s * 1000)});
  state.now_ms = 100 * kRoundMs;
  constexpr double kAges[] = {30'000, 20'000, 100};
  for (std::size_t i = 0; i < 3; ++i) {
    state.jobs[i].queued_at = static_cast<double>(state.now_ms) / 1000 - kAges[i];
    state.jobs[i].measured = {{"A", 1, 10}};
  }
  return state;
}

// A job of age a with l left and a share x of the GPU takes (a / l + 1 / x) / 3 times as long as
// under the equal split. The largest is least where 0.15 + 1 / x, 2 + 1 / x and 0.1 + 1 / x are
// equal: the middle one, neither the oldest nor the shortest, has the largest share.
TEST(GavelFinish, PlansWhatNoSimplerPolicyDoes) {
  const ClusterState state = waiting_for_one_gpu(200'000, 10'000, 1'000);
  EXPECT_EQ(sizes_after(state, "gavelFinish"), (Sizes{{"middle", 1}}));
  EXPECT_EQ(who_plans_the_same(state, "gavelFinish"), Nobody{});
}

// Its mechanism is the program: by equal shares the oldest goes first. What is left decides: with
// as much as the oldest has, the middle one's 2 is 0.1.
TEST(GavelFinish, WithoutItsProgramOrWhatItKnowsTheOldestGoesFirst) {
  const Sizes oldest = {{"oldest", 1}};
  ClusterState state = waiting_for_one_gpu(200'000, 10'000, 1'000);
  EXPECT_EQ(sizes_after(state, "gavel", {{"objective", 3}}), oldest);
  state.jobs[1].remaining_ms = state.jobs[0].remaining_ms;
  EXPECT_EQ(sizes_after(state, "gavelFinish"), oldest);
}

// For the last to be done as early as can be, shares are as what is left: the longest goes first.
TEST(GavelFinish, ForTheMakespanTheLongestGoesFirst) {
  const ClusterState state = waiting_for_one_gpu(1'000, 200'000, 500);
  const Sizes longest = sizes_after(state, "gavelFinish", {{"objective", 1}});
  EXPECT_EQ(longest, (Sizes{{"middle", 1}}));
  for (const char* simpler : {"fifo", "fifoBackfill", "sjf", "srtf", "srsf", "las", "tiresias",
                              "marginalThroughput", "gavelFinish"})
    EXPECT_NE(sizes_after(state, simpler), longest) << simpler;
}

TEST(Gavel, TurnsChangeAtTheBeginningOfARoundOnly) {
  ClusterState state =
      cluster({node("n1", 1, 0, "fast")}, {on("a", "n1", "fast", 0), job("b", 1, 1)});
  state.now_ms = 100 * kRoundMs;
  state.jobs[0].attained_by_type["fast"] = 100 * kRoundMs;
  EXPECT_EQ(types_after(state, "gavel"), Types{});  // a is preempted for b
  state.now_ms += kRoundMs / 6 - 1;
  EXPECT_EQ(types_after(state, "gavel"), Types{});
  state.now_ms += 1;
  EXPECT_EQ(types_after(state, "gavel"), (Types{{"a", "fast"}}));
  state.now_ms = 101 * kRoundMs;
  state.jobs[0].allocated_ms = state.now_ms;  // it began in this round
  EXPECT_EQ(types_after(state, "gavel"), (Types{{"a", "fast"}}));
  EXPECT_EQ(make_policy("gavel", {}).value()->next_wake(state), 102 * kRoundMs);
}

// Decides what it was told.
class ToldPolicy : public Policy {
 public:
  explicit ToldPolicy(std::vector<std::string> types) : types_(std::move(types)) {}
  Targets decide(const Problem& problem) const override {
    Targets targets{.displaces = Displaces::kLaterInOrder, .types_hold = true};
    for (JobIndex j; j < problem.end_of_jobs(); ++j) {
      targets.order.push_back(j);
      const std::string& type = types_[j.value];
      targets.types.push_back(type.empty() ? std::nullopt : problem.find_type(type));
    }
    return targets;
  }

 private:
  std::vector<std::string> types_;
};

Plan plan_by(const ClusterState& state, const std::vector<std::string>& types,
             bool preempt = true) {
  return make_plan(state, ToldPolicy(types), {.policy = "told", .preempt = preempt});
}

ClusterState two_to_exchange() {
  return cluster({node("n1", 1, 0, "fast"), node("n2", 1, 0, "slow")},
                 {on("a", "n1", "fast", 0), on("b", "n2", "slow", 0)});
}

// Who leaves for another type comes back within the limit of its queue: nobody else starts on that.
TEST(TypesHold, WhoMovesKeepsItsPartOfTheQueue) {
  Job moves = running("moves", 4, 4, {"b", "b", "b", "b"});
  for (Held& held : moves.held) held.gpu_type = "B";
  ClusterState state = cluster({node("a", 4, 4, "A"), node("b", 4, 0, "B"), node("c", 4, 4, "B")},
                               {moves, job("waits", 4, 4)});
  state.queues["default"].quotas["*"].limit = 4;
  const Plan plan = plan_by(state, {"A", ""});
  ASSERT_EQ(plan.actions.size(), 1U);
  EXPECT_EQ(plan.actions[0].job, "moves");
  EXPECT_EQ(plan.actions[0].kind, ActionKind::kPreempt);
  EXPECT_EQ(told(state, plan, "waits").reason, "QueueLimit");
}

TEST(TypesHold, TwoJobsExchangeTheirTypes) {
  const ClusterState state = two_to_exchange();
  const Plan plan = plan_by(state, {"slow", "fast"});
  ASSERT_EQ(plan.actions.size(), 2U);
  for (const Action& action : plan.actions) {
    EXPECT_EQ(action.kind, ActionKind::kPreempt);
    EXPECT_TRUE(action.add.empty());
    EXPECT_EQ(action.remove, std::vector<std::int64_t>{0});
  }
  EXPECT_EQ(told(state, plan, "a").reason, "WaitingForRelease");
  ClusterState later = state;
  for (Node& each : later.nodes) each.free.gpus = 1;
  for (Job& job : later.jobs) {
    job.held.clear();
    job.started = false;
  }
  EXPECT_EQ(types_after(later, plan_by(later, {"slow", "fast"})),
            (Types{{"a", "slow"}, {"b", "fast"}}));
}

TEST(TypesHold, AJobGoesToFreeGpusOfItsType) {
  ClusterState state = two_to_exchange();
  state.jobs.pop_back();
  state.nodes[1].free.gpus = 1;
  const Plan plan = plan_by(state, {"slow"});
  ASSERT_EQ(plan.actions.size(), 1U);
  EXPECT_EQ(to_text(plan.actions[0].cause), "its turn is on slow now");
}

TEST(TypesHold, AJobStaysWhereItIsWhileThereIsNoRoom) {
  ClusterState state = two_to_exchange();
  state.jobs[1].priority = 1;
  EXPECT_TRUE(plan_by(state, {"slow", "slow"}).actions.empty());
  EXPECT_TRUE(plan_by(two_to_exchange(), {"slow", "fast"}, false).actions.empty());
  ClusterState unsettled = two_to_exchange();
  unsettled.jobs[0].settled = unsettled.jobs[1].settled = false;
  EXPECT_TRUE(plan_by(unsettled, {"slow", "fast"}).actions.empty());
}

TEST(TypesHold, AJobStartsOnNoOtherType) {
  ClusterState state = two_to_exchange();
  state.jobs[1] = job("b", 1, 1);
  state.nodes[1].free.gpus = 1;
  state.jobs[0].priority = 1;
  EXPECT_TRUE(plan_by(state, {"fast", "fast"}).actions.empty());
  EXPECT_EQ(types_after(state, plan_by(state, {"fast", ""})),
            (Types{{"a", "fast"}, {"b", "slow"}}));
}

// Whoever comes first in order is not preempted for one that comes later.
TEST(TypesHold, WhoMovesDisplacesLaterOnesOnly) {
  ClusterState state = two_to_exchange();
  EXPECT_TRUE(plan_by(state, {"fast", "fast"}).actions.empty());
  const Plan plan = plan_by(state, {"slow", ""});
  EXPECT_EQ(types_after(state, plan), Types{});
}

}  // namespace
}  // namespace rubato::sched
