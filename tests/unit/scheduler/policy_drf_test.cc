// The policy `drf`.
#include "tests/unit/scheduler/policy_cases.h"

namespace rubato::sched {
namespace {

Job asking(const std::string& id, const std::string& queue, MilliCpu cpu, Bytes memory) {
  Job j = job(id, 1, 1);
  j.queue = queue;
  j.per_pod = {1, cpu, memory};
  return j;
}

// Section 4.1 of the paper: 9 CPUs and 18 GB; a task of A takes 1 CPU and 4 GB, one of B 3 CPUs and
// 1 GB. A's jobs are all older. GPUs are plenty.
ClusterState example() {
  Node all = node("n1", 90, 90);
  all.free = {90, 9'000, 18};
  ClusterState state = cluster({all}, {});
  for (const char* queue : {"A", "B"}) state.queues[queue] = {.name = queue};
  for (int i = 0; i < 6; ++i) {
    state.jobs.push_back(asking("a" + std::to_string(i), "A", 1'000, 4));
    state.jobs.push_back(asking("b" + std::to_string(i), "B", 3'000, 1));
    state.jobs.back().queued_at = 100;
    state.jobs.back().duration_ms = state.jobs.back().remaining_ms = 1'000'000;
    state.jobs.back().attained_gpu_ms = 1'000'000;
  }
  return state;
}

TEST(Drf, TheExampleOfThePaper) {
  const ClusterState state = example();
  EXPECT_EQ(sizes_after(state, "drf"),
            (Sizes{{"a0", 1}, {"a1", 1}, {"a2", 1}, {"b0", 1}, {"b1", 1}}));
  EXPECT_EQ(who_plans_the_same(state, "drf"), Nobody{});
}

// 6 GPUs and 28 CPUs; a task of B takes 8 CPUs. By GPUs alone each queue has 3. By dominant shares
// B has 8/28 after one task and 16/28 after two, so A, at 1/6 a task, has 4 before B's third.
TEST(Drf, WithoutCpuAndMemoryTheQueuesTakeTurns) {
  Node all = node("n1", 6, 6);
  all.free = {6, 28, 100};
  ClusterState state = cluster({all}, {});
  for (const std::string queue : {"A", "B"}) {
    state.queues[queue] = {.name = queue};
    for (int i = 0; i < 6; ++i)
      state.jobs.push_back(asking(queue + std::to_string(i), queue, queue == "A" ? 1 : 8, 1));
  }
  EXPECT_EQ(sizes_after(state, "drf"),
            (Sizes{{"A0", 1}, {"A1", 1}, {"A2", 1}, {"A3", 1}, {"B0", 1}, {"B1", 1}}));
  EXPECT_EQ(sizes_after(state, "drf", {{"hostWeight", 0}}),
            (Sizes{{"A0", 1}, {"A1", 1}, {"A2", 1}, {"B0", 1}, {"B1", 1}, {"B2", 1}}));
}

TEST(Drf, AHeavierQueueHasMore) {
  ClusterState state = cluster({node("n1", 3, 3)}, {});
  state.queues["A"] = {.name = "A"};
  state.queues["B"] = {.name = "B", .weight = 2};
  for (int i = 0; i < 3; ++i) {
    state.jobs.push_back(asking("a" + std::to_string(i), "A", 1, 1));
    state.jobs.push_back(asking("b" + std::to_string(i), "B", 1, 1));
  }
  EXPECT_EQ(sizes_after(state, "drf"), (Sizes{{"a0", 1}, {"b0", 1}, {"b1", 1}}));
}

// Algorithm 1 written plainly: each step looks at all jobs, and shares are compared as fractions.
// Weights are 1 or 2.
std::vector<JobId> drf_reference(const ClusterState& state) {
  std::array<std::int64_t, 3> whole{};
  const auto amounts = [](const Resources& r) {
    return std::array<std::int64_t, 3>{r.gpus, r.cpu, r.memory};
  };
  for (std::size_t k = 0; k < 3; ++k) {
    for (const Node& n : state.nodes) whole[k] += std::max<std::int64_t>(0, amounts(n.free)[k]);
    for (const Job& j : state.jobs) whole[k] += std::ssize(j.held) * amounts(j.per_pod)[k];
  }
  std::array<std::int64_t, 3> taken{};
  std::map<std::string, std::array<std::int64_t, 3>> used;
  // Is a's share less than b's (-1), the same (0), or more (1)?
  const auto compare = [&](const std::string& a, const std::string& b) {
    const auto dominant = [&](const std::string& queue) {
      std::pair<std::int64_t, std::int64_t> most{0, 1};
      for (std::size_t k = 0; k < 3; ++k)
        if (whole[k] > 0 && used[queue][k] * most.second > most.first * whole[k])
          most = {used[queue][k], whole[k]};
      most.second *= static_cast<std::int64_t>(state.queues.at(queue).weight);
      return most;
    };
    const auto [ax, ay] = dominant(a);
    const auto [bx, by] = dominant(b);
    return ax * by < bx * ay ? -1 : static_cast<int>(ax * by > bx * ay);
  };
  std::vector<JobId> order, last;
  std::vector<const Job*> jobs;
  for (const Job& j : state.jobs) jobs.push_back(&j);
  while (!jobs.empty()) {
    const auto next = std::ranges::min_element(jobs, [&](const Job* a, const Job* b) {
      if (a->priority != b->priority) return a->priority > b->priority;
      if (const int less = compare(a->queue, b->queue); less != 0) return less < 0;
      if (a->queue != b->queue) return a->queue < b->queue;
      return std::pair(a->queued_at, a->id) < std::pair(b->queued_at, b->id);
    });
    const Job& job = **next;
    jobs.erase(next);
    bool fits = job.refused.empty();
    for (std::size_t k = 0; k < 3; ++k)
      fits = fits && taken[k] + job.min * amounts(job.per_pod)[k] <= whole[k];
    (fits ? order : last).push_back(job.id);
    for (std::size_t k = 0; k < 3 && fits; ++k) {
      taken[k] += job.min * amounts(job.per_pod)[k];
      used[job.queue][k] += job.min * amounts(job.per_pod)[k];
    }
    const bool is_end = std::ranges::none_of(
        jobs, [&](const Job* other) { return other->priority == job.priority; });
    if (!is_end) continue;
    order.insert(order.end(), last.begin(), last.end());
    last.clear();
  }
  return order;
}

TEST(Drf, IsAlgorithmOneOnDrawnStates) {
  for (std::uint64_t seed = 1; seed <= kDrawnStates; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    ClusterState state = drawn(seed);
    for (Node& n : state.nodes) n.free.memory = std::max<Bytes>(n.free.memory, 0);
    std::erase_if(state.queues, [](const auto& queue) { return queue.first == "default"; });
    EXPECT_EQ(order_of(state, "drf"), drf_reference(state));
  }
}

}  // namespace
}  // namespace rubato::sched
