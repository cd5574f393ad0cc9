// The policies that are an order and nothing else: who comes before whom, asked of each pair.
#include "tests/unit/scheduler/policy_cases.h"

#include <functional>

namespace rubato::sched {
namespace {

// Of a job; the least comes first. Among equals who came first.
using Rank = std::function<std::vector<std::int64_t>(const Job&)>;

struct OrderCase {
  const char* policy;
  Rank rank;
  Displaces displaces;
  bool head_blocks = false;
};

constexpr TimeMs kTimeOfOrder = 10'000'000;

std::int64_t count_held(const Job& job) { return std::ssize(job.held); }

const std::vector<OrderCase>& order_cases() {
  static const std::vector<OrderCase> kAll = {
      {"fifo", [](const Job&) { return std::vector<std::int64_t>{}; }, Displaces::kNobody, true},
      {"fifoBackfill", [](const Job&) { return std::vector<std::int64_t>{}; }, Displaces::kNobody},
      {"sjf", [](const Job& job) { return std::vector{job.duration_ms.value_or(0)}; },
       Displaces::kNobody},
      {"srtf", [](const Job& job) { return std::vector{job.remaining_ms.value_or(0)}; },
       Displaces::kLaterInOrder},
      {"srsf", [](const Job& job) { return std::vector{job.remaining_ms.value_or(0) * job.min}; },
       Displaces::kLaterInOrder},
      // Whoever began less than a minute ago, then by GPU time.
      {"las",
       [](const Job& job) {
         const bool began_now = count_held(job) > 0 && kTimeOfOrder - job.allocated_ms < 60'000;
         return std::vector<std::int64_t>{began_now ? 0 : 1, began_now ? 0 : job.attained_gpu_ms};
       },
       Displaces::kLaterInOrder},
      // Up to 3250 GPU-seconds, up to 7200, above; in each those that hold GPUs, longest first.
      {"tiresias",
       [](const Job& job) {
         const std::int64_t third = job.attained_gpu_ms >= 7'200'000 ? 1 : 0;
         const std::int64_t second = job.attained_gpu_ms >= 3'250'000 ? 1 : 0;
         const bool waits = count_held(job) == 0;
         return std::vector<std::int64_t>{second + third, waits ? 1 : 0,
                                          waits ? 0 : job.allocated_ms};
       },
       Displaces::kLaterInOrder}};
  return kAll;
}

// Some of the GPU times of each of Tiresias' queues, and some at its limits.
ClusterState drawn_for_orders(std::uint64_t seed) {
  ClusterState state = drawn(seed);
  Rng rng(seed + 1'000'000);
  constexpr GpuMs kTimes[] = {0, 3'249'999, 3'250'000, 7'199'999, 7'200'000, 20'000'000};
  for (Job& job : state.jobs) job.attained_gpu_ms = kTimes[rng.below(std::size(kTimes))];
  return state;
}

TEST(Orders, EachPairIsAsTheRuleOfItsPolicySays) {
  for (const OrderCase& one : order_cases()) {
    SCOPED_TRACE(one.policy);
    int by_rank = 0;  // pairs of which neither priority nor coming decides
    for (std::uint64_t seed = 1; seed <= kDrawnStates; ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      const ClusterState state = drawn_for_orders(seed);
      ASSERT_EQ(state.now_ms, kTimeOfOrder);
      const Targets targets = targets_of(state, one.policy);
      EXPECT_EQ(targets.displaces, one.displaces);
      EXPECT_EQ(targets.head_blocks, one.head_blocks);
      std::map<JobId, std::size_t> place;
      for (const JobId& id : order_of(state, one.policy)) place.emplace(id, place.size());
      ASSERT_EQ(place.size(), state.jobs.size());
      for (const Job& a : state.jobs) {
        for (const Job& b : state.jobs) {
          bool first = a.id < b.id;
          if (a.queued_at != b.queued_at) first = a.queued_at < b.queued_at;
          const bool came_first = first;
          if (one.rank(a) != one.rank(b)) first = one.rank(a) < one.rank(b);
          if (a.priority == b.priority && first != came_first) ++by_rank;
          if (a.priority != b.priority) first = a.priority > b.priority;
          EXPECT_EQ(place.at(a.id) < place.at(b.id), first) << a.id << " " << b.id;
        }
      }
    }
    const bool is_by_arrival = one.rank(Job{}).empty();
    if (!is_by_arrival) {
      EXPECT_GT(by_rank, 100);
    }
  }
}

// A job that does not fit: fifo lets nobody pass it, the others do; those that preempt make room.
TEST(Orders, WhoPassesAndWhoMakesRoom) {
  ClusterState state = cluster(
      {node("n1", 2, 1)}, {running("runs", 1, 1, {"n1"}), job("large", 2, 2), job("small", 1, 1)});
  state.now_ms = kTimeOfOrder;
  state.jobs[0].allocated_ms = kTimeOfOrder - 600'000;
  state.jobs[0].attained_gpu_ms = 9'000'000;
  state.jobs[0].duration_ms = state.jobs[0].remaining_ms = 9'000'000;
  state.jobs[1].queued_at = 1;
  state.jobs[2].queued_at = 2;
  for (const std::size_t i : {1U, 2U})
    state.jobs[i].duration_ms = state.jobs[i].remaining_ms = 1'000'000 * static_cast<TimeMs>(i);
  const Sizes stays = {{"runs", 1}};
  const Sizes passed = {{"runs", 1}, {"small", 1}};
  EXPECT_EQ(sizes_after(state, "fifo"), stays);
  EXPECT_EQ(sizes_after(state, "fifoBackfill"), passed);
  EXPECT_EQ(sizes_after(state, "sjf"), passed);
  for (const char* preempts : {"srtf", "srsf", "las", "tiresias"})
    EXPECT_EQ(sizes_after(state, preempts).count("runs"), 0u) << preempts;
}

}  // namespace
}  // namespace rubato::sched
