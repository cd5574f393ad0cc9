// HiveD's promise: a queue inside its cells is served as if they were a cluster of its own,
// whatever others do. Traces drawn by seed are played by all queues together, then each queue alone
// on its own nodes; with quotas in place of cells the promise does not hold (the sharing anomaly).
#include "common/rng.h"
#include "tests/unit/scheduler/sim_traces.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace rubato::sched::sim {
namespace {

constexpr Gpus kGpusOfNode = 4;
const CostModel kFree = {.name = "free"};
const std::map<std::string, std::int64_t> kNodesOf = {{"a", 2}, {"b", 3}, {"c", 1}};

enum class Jobs { kWholeNodes, kScattered, kOnOneNode };

std::vector<TraceJob> drawn_jobs(std::uint64_t seed, Jobs kind) {
  Rng rng(seed);
  std::vector<TraceJob> jobs;
  for (int i = 0; i < 40; ++i) {
    const auto name = std::next(kNodesOf.begin(), static_cast<std::ptrdiff_t>(rng.below(3)));
    const Gpus most = kind == Jobs::kOnOneNode ? kGpusOfNode : kGpusOfNode * name->second;
    Gpus gpus = 1 + static_cast<Gpus>(rng.below(static_cast<std::uint64_t>(most)));
    if (kind == Jobs::kWholeNodes) gpus = (gpus + kGpusOfNode - 1) / kGpusOfNode * kGpusOfNode;
    // No two things happen at one instant.
    TraceJob job =
        rigid(fmt::format("j{:02}", i), 0, gpus, 1 + static_cast<double>(rng.below(300)));
    job.submit_ms = static_cast<TimeMs>(rng.below(1'000'000));
    job.queue = name->first;
    job.one_node = kind == Jobs::kOnOneNode;
    jobs.push_back(std::move(job));
  }
  return jobs;
}

std::map<std::string, Queue> queues(bool cells, bool borrowing) {
  std::map<std::string, Queue> all;
  for (const auto& [name, nodes] : kNodesOf) {
    Queue& queue = all[name] = {.name = name, .borrowing = borrowing};
    if (cells)
      queue.cells = {{"A", kNodeLevel, nodes}};
    else
      queue.quotas["A"].guaranteed = nodes * kGpusOfNode;
  }
  return all;
}

std::map<JobId, TimeMs> starts(const SimResult& result) {
  std::map<JobId, TimeMs> all;
  for (const JobResult& job : result.jobs) all[job.id] = job.start_ms;
  return all;
}

std::map<JobId, TimeMs> starts_alone(const std::vector<TraceJob>& jobs, const std::string& policy,
                                     bool in_cells) {
  std::map<JobId, TimeMs> all;
  for (const auto& [name, nodes] : kNodesOf) {
    std::vector<TraceJob> own = jobs;
    std::erase_if(own, [&](const TraceJob& job) { return job.queue != name; });
    if (own.empty()) continue;
    std::map<std::string, Queue> queue;
    if (in_cells) queue[name] = queues(true, false).at(name);
    all.merge(starts(play(fmt::format("{}x{}:A", nodes, kGpusOfNode), own, policy,
                          {.costs = kFree, .queues = queue})));
  }
  return all;
}

std::size_t late(const std::map<JobId, TimeMs>& alone, const std::map<JobId, TimeMs>& shared) {
  return static_cast<std::size_t>(std::ranges::count_if(
      alone, [&](const auto& one) { return shared.at(one.first) > one.second; }));
}

// Jobs that may be anywhere, or have whole nodes, start when they would in a cluster that knows no
// cells: to the millisecond, for nothing else differs.
TEST(SimCells, AreAClusterOfOnesOwn) {
  for (const char* policy : {"fifo", "fifoBackfill", "sjf", "srtf"})
    for (const Jobs kind : {Jobs::kWholeNodes, Jobs::kScattered})
      for (std::uint64_t seed = 1; seed <= 30; ++seed) {
        SCOPED_TRACE(fmt::format("{}, kind {}, seed {}", policy, static_cast<int>(kind), seed));
        const std::vector<TraceJob> jobs = drawn_jobs(seed, kind);
        const auto shared =
            play("6x4:A", jobs, policy, {.costs = kFree, .queues = queues(true, false)});
        ASSERT_EQ(starts(shared), starts_alone(jobs, policy, false));
      }
}

// Jobs that must be on one node depend on which of two equal nodes is taken, so that the cluster of
// their own has cells, too. With quotas of as many GPUs some jobs start later than there.
TEST(SimCells, HaveNoSharingAnomalyAndQuotasHave) {
  for (const char* policy : {"fifo", "fifoBackfill", "sjf", "srtf"}) {
    std::size_t with_quotas = 0;
    for (std::uint64_t seed = 1; seed <= 40; ++seed) {
      SCOPED_TRACE(fmt::format("{}, seed {}", policy, seed));
      const std::vector<TraceJob> jobs = drawn_jobs(seed, Jobs::kOnOneNode);
      const auto alone = starts_alone(jobs, policy, true);
      const auto in = [&](bool cells) {
        return starts(
            play("6x4:A", jobs, policy, {.costs = kFree, .queues = queues(cells, false)}));
      };
      ASSERT_EQ(in(true), alone);
      with_quotas += late(alone, in(false));
    }
    EXPECT_GT(with_quotas, 0u) << policy;
  }
}

const std::vector<std::string> kInRounds = {"gavel", "gavelFinish", "shockwave", "chronus"};

// Two nodes' GPUs, and its queue has the cell of one.
TEST(SimCells, AJobThatIsLargerThanThoseOfItsQueueIsRefused) {
  std::vector<TraceJob> jobs = {rigid("large", 0, 8, 100), rigid("other", 1, 1, 100),
                                rigid("small", 2, 1, 100)};
  jobs[0].queue = jobs[2].queue = "a";
  SimOptions options{.costs = kFree};
  options.queues["a"] = {.name = "a", .borrowing = false, .cells = {{"A", kNodeLevel, 1}}};
  std::vector<std::string> policies = kInRounds;
  policies.emplace_back("fifo");
  for (const std::string& policy : policies) {
    SCOPED_TRACE(policy);
    const SimResult result = play("4x4:A", jobs, policy, options);
    ASSERT_EQ(result.refused.size(), 1u);
    EXPECT_EQ(result.refused[0].why,
              "asks for 8 GPUs; the most of one type that queue \"a\" lets it have is 4");
    EXPECT_GT(finish_s(result, "other"), 0);
    EXPECT_GT(finish_s(result, "small"), 0);
  }
}

// It may use B alone, and its queue has a cell of A: it waits for ever, and the simulation ends
// when all others are done, though these policies wake in each round.
TEST(SimCells, AJobThatNeverStartsIsUnfinished) {
  std::vector<TraceJob> jobs = {rigid("never", 0, 2, 100), rigid("other", 0, 1, 100)};
  jobs[0].queue = "a";
  jobs[0].allow = {"B"};
  SimOptions options{.costs = kFree};
  options.queues["a"] = {.name = "a", .borrowing = false, .cells = {{"A", kNodeLevel, 1}}};
  for (const std::string& policy : kInRounds) {
    SCOPED_TRACE(policy);
    const SimResult result = play("1x4:A,1x4:B", jobs, policy, options);
    EXPECT_EQ(of(result, "never").finish_ms, -1);
    EXPECT_EQ(finish_s(result, "other"), 100);
    EXPECT_LT(result.rounds, 20);
  }
}

}  // namespace
}  // namespace rubato::sched::sim
