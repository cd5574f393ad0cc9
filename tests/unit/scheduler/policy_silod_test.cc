// SiloD: cache and remote bandwidth are shared out with the GPUs.
#include "scheduler/policy/silod.h"
#include "scheduler/snapshot/snapshot.h"
#include "tests/unit/scheduler/policy_cases.h"

#include <cmath>

namespace rubato::sched {
namespace {

Job reads(Job job, const std::string& dataset, Bytes bytes, Bytes per_second) {
  job.dataset = Dataset{.name = dataset, .bytes = bytes, .bytes_per_second = per_second};
  return job;
}

// Two run: "small" reads all of its data ten times as often as "large".
ClusterState two_read() {
  ClusterState state = cluster({node("n1", 4, 2)}, {});
  state.jobs = {reads(running("small", 1, 1, {"n1"}), "s", 1000, 100),
                reads(running("large", 1, 1, {"n1"}), "l", 10'000, 100)};
  state.storage = Storage{.cache_bytes = 1000, .remote_bytes_per_second = 60};
  return state;
}

Plan plan_with_storage(const ClusterState& state, const std::string& policy, bool storage = true) {
  return make_plan(state, {.policy = policy, .storage_shares = storage});
}

TEST(SiloD, CacheGoesToWhereMostIsReadOfEachByte) {
  const ClusterState state = two_read();
  const Plan plan = plan_with_storage(state, "silod");
  ASSERT_TRUE(plan.storage.has_value());
  EXPECT_EQ(plan.storage->cache, (std::map<std::string, Bytes>{{"l", 0}, {"s", 1000}}));
  EXPECT_EQ(plan.storage->bandwidth, (std::map<JobId, Bytes>{{"large", 60}, {"small", 0}}));
  // No simpler policy says anything of it, and with its mechanism off it is `srtf`.
  for (const char* simpler : {"fifo", "sjf", "srtf", "srsf", "las", "marginalThroughput"})
    EXPECT_FALSE(plan_with_storage(state, simpler).storage.has_value()) << simpler;
  EXPECT_FALSE(plan_with_storage(state, "silod", false).storage.has_value());
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    const ClusterState other = drawn(seed);
    EXPECT_EQ(order_of(other, "silod"), order_of(other, "srtf"));
    EXPECT_EQ(sizes_after(other, "silod"), sizes_after(other, "srtf"));
  }
}

// Of 600 bytes of cache each has 300; both read 100 at full speed, and share 60 of bandwidth.
TEST(SiloD, WhereNobodyDecidesSharesAreEqual) {
  ClusterState state = two_read();
  state.storage->cache_bytes = 600;
  const std::vector<Gpus> gpus{1, 1};
  const StorageShares shares = uniform_shares(state, gpus);
  EXPECT_EQ(shares.cache, (std::map<std::string, Bytes>{{"l", 300}, {"s", 300}}));
  EXPECT_EQ(shares.bandwidth, (std::map<JobId, Bytes>{{"large", 30}, {"small", 30}}));
  EXPECT_NEAR(part_of_full_speed(state.jobs[0], 1, shares), 30 / 70.0, 1e-9);
  EXPECT_NEAR(part_of_full_speed(state.jobs[1], 1, shares), 30 / 97.0, 1e-9);
}

// Who starts in this round reads; who waits, or stops, does not.
TEST(SiloD, CountsWhoHoldsGpusOnceThePlanIsDone) {
  ClusterState state = two_read();
  state.jobs.push_back(reads(job("starts", 2, 2), "s", 1000, 10));
  state.jobs.push_back(reads(job("waits", 4, 4), "w", 10, 1000));
  state.jobs[3].remaining_ms = 1'000'000'000;
  const Plan plan = plan_with_storage(state, "silod");
  EXPECT_TRUE(plan.storage->bandwidth.contains("starts"));
  EXPECT_FALSE(plan.storage->bandwidth.contains("waits"));
  EXPECT_FALSE(plan.storage->cache.contains("w"));
}

TEST(SiloD, SnapshotsAndPlansSayIt) {
  const Snapshot snapshot{.state = two_read(),
                          .policy = {.policy = "silod", .storage_shares = true}};
  const auto read = read_snapshot(to_text(snapshot));
  ASSERT_TRUE(read.ok()) << read.error().what();
  EXPECT_EQ(*read, snapshot);
  const json::Value plan =
      to_json(make_plan(snapshot.state, snapshot.policy), snapshot.state)["storage"];
  EXPECT_EQ(json::dump(plan),
            R"({"cache":[{"dataset":"l","bytes":0},{"dataset":"s","bytes":1000}],)"
            R"("bandwidth":[{"job":"large","bytesPerSecond":60},)"
            R"({"job":"small","bytesPerSecond":0}]})");
  Snapshot bad = snapshot;
  bad.state.jobs[0].dataset->bytes = 0;
  EXPECT_EQ(read_snapshot(to_text(bad)).error().what(),
            "jobs[0].dataset.bytes: 0, expected a whole number from 1 to 2305843009213693952");
}

ClusterState drawn_readers(std::uint64_t seed) {
  Rng rng(seed);
  ClusterState state = cluster({node("n1", 40, 0)}, {});
  const Bytes size_of[] = {1000 + static_cast<Bytes>(rng.below(9000)),
                           1000 + static_cast<Bytes>(rng.below(9000)),
                           1000 + static_cast<Bytes>(rng.below(9000)), 1};
  for (std::uint64_t i = 0, count = 1 + rng.below(6); i < count; ++i) {
    const std::uint64_t set = rng.below(4);
    const std::string id = "j" + std::to_string(i);
    const bool is_running = rng.chance(0.8);
    Job one = is_running ? running(id, 1, 4, std::vector<NodeId>(1 + rng.below(4), "n1"))
                         : job(id, 50, 50);
    if (set < 3)
      one = reads(one, "d" + std::to_string(set), size_of[set],
                  1 + static_cast<Bytes>(rng.below(500)));
    state.jobs.push_back(one);
  }
  state.storage = Storage{.cache_bytes = static_cast<Bytes>(rng.below(15'000)),
                          .remote_bytes_per_second = 1 + static_cast<Bytes>(rng.below(2000))};
  return state;
}

// The reference. Cache: the most that it saves of remote reads, over all orders of the data sets.
// Bandwidth: the level up to which each job has what it needs, found by halving.
class ByHand {
 public:
  explicit ByHand(const ClusterState& state) : state_(state) {}

  double saved(const std::map<std::string, Bytes>& cache) const {
    double sum = 0;
    for (const Job& job : state_.jobs)
      if (is_reading(job))
        sum += full(job) * static_cast<double>(cache.at(job.dataset->name)) /
               static_cast<double>(job.dataset->bytes);
    return sum;
  }

  double most_saved() const {
    std::map<std::string, Bytes> sizes;
    for (const Job& job : state_.jobs)
      if (is_reading(job)) sizes[job.dataset->name] = job.dataset->bytes;
    std::vector<std::string> order;
    for (const auto& [name, bytes] : sizes) order.push_back(name);
    double most = 0;
    do {
      Bytes left = state_.storage->cache_bytes;
      std::map<std::string, Bytes> cache;
      for (const std::string& name : order) {
        cache[name] = std::min(left, sizes[name]);
        left -= cache[name];
      }
      most = std::max(most, saved(cache));
    } while (std::ranges::next_permutation(order).found);
    return most;
  }

  double level(const std::map<std::string, Bytes>& cache) const {
    const auto total = static_cast<double>(state_.storage->remote_bytes_per_second);
    double low = 0, high = 1e9;
    for (int i = 0; i < 100; ++i) {
      const double middle = (low + high) / 2;
      double sum = 0;
      for (const Job& job : state_.jobs)
        if (is_reading(job)) sum += std::min(middle, need(job, cache));
      (sum <= total ? low : high) = middle;
    }
    return low;
  }

  bool is_reading(const Job& job) const { return job.dataset && !job.held.empty(); }
  double need(const Job& job, const std::map<std::string, Bytes>& cache) const {
    const auto d = static_cast<double>(job.dataset->bytes);
    return full(job) * (d - static_cast<double>(cache.at(job.dataset->name))) / d;
  }

 private:
  double full(const Job& job) const {
    return static_cast<double>(job.dataset->bytes_per_second * std::ssize(job.held));
  }
  const ClusterState& state_;
};

TEST(SiloD, SavesMostAndSharesTheRestByMaxMin) {
  int scarce = 0;
  for (std::uint64_t seed = 1; seed <= kDrawnStates; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const ClusterState state = drawn_readers(seed);
    const StorageShares shares = plan_with_storage(state, "silod").storage.value();
    const ByHand reference(state);
    EXPECT_NEAR(reference.saved(shares.cache), reference.most_saved(), 1e-6);
    const double level = reference.level(shares.cache);
    for (const Job& job : state.jobs) {
      ASSERT_EQ(shares.bandwidth.contains(job.id), reference.is_reading(job));
      if (!reference.is_reading(job)) continue;
      const double need = reference.need(job, shares.cache);
      EXPECT_NEAR(static_cast<double>(shares.bandwidth.at(job.id)), std::min(need, level), 2)
          << job.id;
      scarce += level < need ? 1 : 0;
    }
    EXPECT_TRUE(are_within(shares, *state.storage));
  }
  EXPECT_GT(scarce, 20);
}

}  // namespace
}  // namespace rubato::sched
