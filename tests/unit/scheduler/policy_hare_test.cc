// The policy `hare`.
#include "tests/unit/scheduler/policy_cases.h"

#include <optional>

namespace rubato::sched {
namespace {

// Two types; "wide" asks for 2 to 4 GPUs and is three times as fast on B.
ClusterState two_types() {
  ClusterState state = cluster({node("a", 4, 4, "A"), node("b", 4, 2, "B")}, {job("wide", 2, 4)});
  state.now_ms = 10'000'000;
  state.jobs[0].measured = {{"A", 2, 10}, {"B", 2, 30}};
  return state;
}

// Two GPUs of the fast type are worth more to it than four of the slow one.
TEST(Hare, TakesWhatMakesItFastestOfWhatThereIs) {
  ClusterState state = two_types();
  Job other = running("other", 2, 2, {"b", "b"});
  for (Held& held : other.held) held.gpu_type = "B";
  other.allocated_ms = state.now_ms;
  state.jobs.push_back(other);
  const Targets targets = targets_of(state, "hare");
  EXPECT_EQ(targets.sizes[0], 2);
  EXPECT_EQ(Problem(state).name(*targets.types[0]), "B");
  EXPECT_EQ(sizes_after(state, "hare"), (Sizes{{"other", 2}, {"wide", 2}}));
  // Simpler policies take the type that has most room.
  EXPECT_EQ(who_plans_the_same(state, "hare"), Nobody{});
}

// Its mechanism is that a job need not wait for all its GPUs at once.
TEST(Hare, AJobThatNeedsItsWholeSizeGoesWhereThatIs) {
  ClusterState state = two_types();
  state.jobs[0].min = 4;
  state.nodes[1].gpus_total = 2;
  EXPECT_EQ(Problem(state).name(*targets_of(state, "hare").types[0]), "A");
}

// 10 s on the slow type count as much as 10 / 3 s on the fast one.
TEST(Hare, ServiceCountsByWhatATypeIsWorth) {
  ClusterState state = cluster({node("b", 1, 1, "B")}, {job("had-a", 1, 1), job("had-b", 1, 1)});
  state.now_ms = 10'000'000;
  state.nodes.push_back(node("a", 1, 0, "A"));
  for (Job& one : state.jobs) one.measured = {{"A", 1, 10}, {"B", 1, 30}};
  state.jobs[0].attained_gpu_ms = 9'000;
  state.jobs[0].attained_by_type["A"] = 9'000;
  state.jobs[1].attained_gpu_ms = 4'000;
  state.jobs[1].attained_by_type["B"] = 4'000;
  EXPECT_EQ(order_of(state, "hare"), (std::vector<JobId>{"had-a", "had-b"}));
  EXPECT_EQ(order_of(state, "las"), (std::vector<JobId>{"had-b", "had-a"}));
}

// In its quantum it keeps its type; then it changes for a fifth of speed more.
TEST(Hare, ChangesItsTypeForAGain) {
  ClusterState state =
      cluster({node("a", 2, 0, "A"), node("b", 2, 2, "B")}, {running("j", 2, 2, {"a", "a"})});
  state.now_ms = 10'000'000;
  const auto type_after = [&](double on_b, TimeMs held_ms) {
    state.jobs[0].measured = {{"A", 2, 10}, {"B", 2, on_b}};
    state.jobs[0].allocated_ms = state.now_ms - held_ms;
    return Problem(state).name(*targets_of(state, "hare").types[0]);
  };
  EXPECT_EQ(type_after(30, 59'999), "A");
  EXPECT_EQ(type_after(30, 60'000), "B");
  EXPECT_EQ(type_after(12.1, 60'000), "B");
  EXPECT_EQ(type_after(11.9, 60'000), "A");
}

// What nodes have for a job if no other is there that takes part; where that is less than its
// minimum, all GPUs. All are of one type, and pods of one GPU.
Gpus room_alone(const ClusterState& state, const Job& job) {
  Gpus room = 0;
  Gpus all = 0;
  for (const Node& node : state.nodes) {
    Resources left = node.free;
    left.raise_to_zero();
    for (const Job& other : state.jobs)
      for (const Held& held : other.held)
        if (held.node == node.id && other.refused.empty()) left += other.per_pod;
    while (left.gpus > 0 && left.cpu >= job.per_pod.cpu && left.memory >= job.per_pod.memory) {
      left -= job.per_pod;
      ++room;
    }
    all += node.gpus_total;
  }
  return room >= job.min ? room : all;
}

// Who comes before whom and what each is to have, by an own reading of the rule on drawn states of
// one type.
TEST(Hare, SharesOutAsTheRuleSays) {
  for (std::uint64_t seed = 1; seed <= kDrawnStates; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const ClusterState state = drawn(seed);
    const auto key = [&](const Job& job) {
      const bool in_turn = !job.held.empty() && state.now_ms < job.allocated_ms + 60'000;
      return std::tuple(-job.priority, in_turn ? -1.0 : static_cast<double>(job.attained_gpu_ms),
                        job.queued_at, job.id);
    };
    std::vector<const Job*> jobs;
    for (const Job& job : state.jobs) jobs.push_back(&job);
    std::ranges::sort(jobs, {}, [&](const Job* job) { return key(*job); });
    Gpus left = gpus_there(state);
    Sizes wanted;
    std::vector<JobId> order;
    for (const Job* job : jobs) {
      order.push_back(job->id);
      if (!job->refused.empty() || left < job->min) continue;
      wanted[job->id] = std::min({left, job->max, room_alone(state, *job)});
      left -= wanted[job->id];
    }
    EXPECT_EQ(order_of(state, "hare"), order);
    const Targets targets = targets_of(state, "hare");
    for (std::size_t i = 0; i < state.jobs.size(); ++i) {
      const auto found = wanted.find(state.jobs[i].id);
      EXPECT_EQ(targets.sizes[i], found == wanted.end() ? 0 : found->second) << state.jobs[i].id;
    }
  }
}

}  // namespace
}  // namespace rubato::sched
