// Jobs that read data in the simulator, computed by hand.
#include "tests/unit/scheduler/sim_traces.h"

namespace rubato::sched::sim {
namespace {

TraceJob reads(TraceJob job, const std::string& dataset, Bytes bytes, Bytes per_second) {
  job.dataset = Dataset{.name = dataset, .bytes = bytes, .bytes_per_second = per_second};
  return job;
}

SimResult play_with(const Storage& storage, std::vector<TraceJob> jobs, const std::string& policy) {
  return play("1x4:A", std::move(jobs), policy, {.costs = simple_costs(), .storage = storage});
}

// A half is cached, and 250 of the other 500 bytes/s can be read: half its speed.
TEST(SimStorage, AJobIsAsFastAsItReads) {
  const std::vector<TraceJob> jobs{reads(rigid("a", 0, 1, 100), "d", 1000, 1000)};
  EXPECT_NEAR(
      finish_s(play_with({.cache_bytes = 500, .remote_bytes_per_second = 250}, jobs, "fifo"), "a"),
      10 + 200, 0.01);
  EXPECT_EQ(
      finish_s(play_with({.cache_bytes = 1000, .remote_bytes_per_second = 1}, jobs, "fifo"), "a"),
      110);
  EXPECT_EQ(finish_s(play("1x4:A", jobs, "fifo"), "a"), 110);  // nothing is said of storage
}

// Each has 500 bytes of cache under `srtf`: "small" needs 500 of 1000 bytes/s, "large" 950, and
// both have 500. Once "small" has ended, at 110, "large" has 1000 bytes/s, and needs 900. Under
// `silod` "small" has all the cache, and "large" all the bandwidth, which it needs: at full speed
// both.
TEST(SimStorage, SiloDGivesTheCacheToWhomItHelpsMost) {
  const std::vector<TraceJob> jobs{reads(rigid("small", 0, 1, 100), "s", 1000, 1000),
                                   reads(rigid("large", 0, 1, 200), "l", 10'000, 1000)};
  const Storage storage{.cache_bytes = 1000, .remote_bytes_per_second = 1000};
  const SimResult equal = play_with(storage, jobs, "srtf");
  EXPECT_EQ(finish_s(equal, "small"), 110);
  EXPECT_NEAR(finish_s(equal, "large"), 110 + 200 - 100 * 500 / 950.0, 0.01);
  const SimResult shared = play_with(storage, jobs, "silod");
  EXPECT_EQ(finish_s(shared, "small"), 110);
  EXPECT_EQ(finish_s(shared, "large"), 210);
}

// Two that read the same have it in the cache once.
TEST(SimStorage, ADataSetIsCachedOnce) {
  const std::vector<TraceJob> jobs{reads(rigid("a", 0, 1, 100), "d", 1000, 1000),
                                   reads(rigid("b", 0, 1, 100), "d", 1000, 1000)};
  for (const char* policy : {"fifo", "silod"}) {
    const SimResult result =
        play_with({.cache_bytes = 1000, .remote_bytes_per_second = 1}, jobs, policy);
    EXPECT_EQ(finish_s(result, "a"), 110) << policy;
    EXPECT_EQ(finish_s(result, "b"), 110) << policy;
  }
}

}  // namespace
}  // namespace rubato::sched::sim
