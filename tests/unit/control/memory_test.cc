#include "operator/control/memory.h"

#include <gtest/gtest.h>

namespace rubato::control {
namespace {

using coordinator::GpuSeconds;

TEST(Memory, GpuTimeGoesOnOverCountsOfTheCoordinator) {
  Memory memory;
  const GpuSeconds written{.useful = 100, .queue = 5};
  const MonoTime first{1h};
  const MonoTime second{2h};
  EXPECT_EQ(memory.gpu_seconds("u", written, first, {.useful = 10}).useful, 110);
  // The status that we read may be older than what we wrote: it is asked only once.
  EXPECT_EQ(memory.gpu_seconds("u", {}, first, {.useful = 20}).useful, 120);
  const GpuSeconds all = memory.gpu_seconds("u", {}, second, {.useful = 1, .failure = 2});
  EXPECT_EQ(all, (GpuSeconds{.useful = 121, .queue = 5, .failure = 2}));
}

TEST(Memory, AJobWhosePodsEndEarlySaysWhatBecameOfTheLast) {
  Memory memory;
  const MonoTime now{1h};
  memory.note_ended_early("a", "u1", "pod w0 failed", now);
  EXPECT_FALSE(memory.held_back("a", now)) << "the first may be anything";
  memory.note_ended_early("a", "u2", "pod w1 failed: no such file", now);
  memory.note_ended_early("a", "u2", "once more", now);
  ASSERT_TRUE(memory.held_back("a", now));
  EXPECT_EQ(memory.held_back("a", now)->why,
            "its pods ended early, the last one: pod w1 failed: no such file");
  memory.note_ended_early("a", "u3", std::string(1 << 20, 'w'), now);
  EXPECT_LT(memory.held_back("a", now)->why.size(), 2000u);
}

TEST(Memory, TheSameAgainIsNoNews) {
  Memory memory;
  EXPECT_TRUE(memory.is_news("a", "Running", "+Training"));
  EXPECT_FALSE(memory.is_news("a", "Running", "+Training"));
  EXPECT_TRUE(memory.is_news("b", "Running", "+Training"));
  EXPECT_TRUE(memory.is_news("a", "Suspended", "+Suspended"));
  EXPECT_TRUE(memory.is_news("a", "Running", "-Suspended"));
  EXPECT_TRUE(memory.is_news("a", "Running", "+Training"));
  memory.forget_job("a");
  EXPECT_TRUE(memory.is_news("a", "Running", "+Training"));
}

TEST(Memory, WhatTheStatusSaidBeforeThisLeaderIsNoNews) {
  Memory memory;
  memory.note_told_before("a", "Running", "+Training");
  EXPECT_FALSE(memory.is_news("a", "Running", "+Training"));
  memory.note_told_before("a", "Suspended", "");
  memory.note_told_before("a", "Suspended", "+Suspended");  // written, and not yet told
  EXPECT_TRUE(memory.is_news("a", "Suspended", "+Suspended"));
}

TEST(Memory, TheMoreStartsFailInARowTheLongerAJobGetsWhatIsFreeOnly) {
  Memory memory;
  const MonoTime now{1h};
  const auto waits = [&] { return memory.failed_starts().at("a").spare_only_until - now; };
  std::int64_t epoch = 0;
  memory.note_failed_start("a", {1, ++epoch}, 10s, now);
  EXPECT_EQ(waits(), 20s);
  memory.note_failed_start("a", {1, epoch}, 10s, now);
  EXPECT_EQ(waits(), 20s) << "its GPUs could not be given back at once";
  memory.note_failed_start("a", {1, ++epoch}, 10s, now);
  EXPECT_EQ(waits(), 40s);
  for (int i = 0; i < 70; ++i) memory.note_failed_start("a", {1, ++epoch}, 10s, now);
  EXPECT_EQ(waits(), kSpareOnlyMost);
  memory.note_failed_start("a", {2, ++epoch}, 10s, now);  // another spec
  EXPECT_EQ(waits(), 20s);
  memory.note_started("a");
  EXPECT_TRUE(memory.failed_starts().empty());
}

TEST(Memory, AJobIsHeldBackUntilItsTimeAndSaysWhy) {
  Memory memory;
  const MonoTime now{1h};
  memory.hold_back("a", {now + 30s, "GangTimeout", "no pod started"});
  ASSERT_TRUE(memory.held_back("a", now + 29s));
  const WallTime wall = *parse_rfc3339("2026-11-21T08:00:00Z");
  EXPECT_EQ(to_text(*memory.held_back("a", now + 10s), now + 10s, wall),
            "no pod started; tried again at 2026-11-21T08:00:20Z");
  EXPECT_FALSE(memory.held_back("a", now + 30s));
  EXPECT_FALSE(memory.held_back("b", now));
  memory.forget_job("a");
  EXPECT_FALSE(memory.held_back("a", now));
}

TEST(Memory, APodThatIsGivenUpIsRememberedWhileItIsThere) {
  Memory memory;
  EXPECT_EQ(memory.waits_since("a", "p1", MonoTime{1h}), MonoTime{1h});
  EXPECT_EQ(memory.waits_since("a", "p1", MonoTime{2h}), MonoTime{1h});
  memory.give_up("a", "p1");
  memory.give_up("a", "p2");
  memory.give_up("b", "p3");
  EXPECT_EQ(memory.given_up(), (std::set<std::string>{"p1", "p2", "p3"}));
  EXPECT_EQ(memory.given_up("c"), std::set<std::string>{});
  memory.forget_unstarted("a", [](const std::string& key) { return key == "p2"; });
  EXPECT_EQ(memory.given_up(), (std::set<std::string>{"p2", "p3"}));
  EXPECT_EQ(memory.waits_since("a", "p1", MonoTime{3h}), MonoTime{3h});
  memory.forget_job("a");
  EXPECT_EQ(memory.given_up(), (std::set<std::string>{"p3"}));
}

TEST(Memory, OfManyLostPodsThoseThatAreGoneAreForgotten) {
  Memory memory;
  memory.note_lost("b", "other");
  const auto is_there = [](const std::string& pod) { return pod == "7"; };
  for (std::size_t i = 0; i < kLostKept; ++i) memory.note_lost("a", std::to_string(i));
  memory.forget_lost("a", is_there);
  EXPECT_EQ(memory.lost_pods("a").size(), kLostKept) << "few are kept";
  memory.note_lost("a", "last");
  memory.forget_lost("a", is_there);
  EXPECT_EQ(memory.lost_pods("a"), std::set<std::string>{"7"});
  EXPECT_EQ(memory.lost_pods(), (std::set<std::string>{"7", "other"}));
}

// Clocks differ, and jump: what counts is when a renewal came to us.
TEST(Memory, LeasesAreTimedByOurClock) {
  const MonoTime now{10h};
  const WallTime wall = *parse_rfc3339("2026-11-21T08:00:00Z");
  Memory memory;
  NodeLease lease;
  lease.meta.name = "n1";
  lease.duration = 40s;
  lease.renewed = wall - 1h;
  const auto seen = [&](MonoTime then) {
    return memory.renewal(lease, then, wall + (then - now)).seen;
  };
  EXPECT_EQ(seen(now), now - 1h);
  memory.note_lease(lease, false, now, wall);  // the first list: nothing is known but what it says
  EXPECT_EQ(seen(now), now - 1h);
  EXPECT_EQ(memory.renewal(lease, now, wall - 8h).seen, now - 1h) << "our wall clock was set back";
  EXPECT_EQ(memory.renewal(lease, now, wall).duration, 40s);
  memory.note_lease(lease, false, now + 1s, wall + 1s);  // no renewal
  EXPECT_EQ(seen(now + 1s), now - 1h);
  lease.renewed += 10s;
  EXPECT_EQ(seen(now + 9s), now + 9s) << "it will be noted in a moment";
  memory.note_lease(lease, false, now + 9s, wall - 8h);
  EXPECT_EQ(seen(now + 20s), now + 9s);
  memory.note_lease(lease, true, now + 10s, wall);
  EXPECT_EQ(seen(now), now - 1h + 10s);
  lease.renewed = wall + 1h;  // the node's clock is ahead
  EXPECT_EQ(seen(now), now);
  lease.renewed = kFirstTime;
  EXPECT_LT(seen(now), now - 24h);
}

TEST(Memory, ASuspicionGoesWhenTheLeaseIsRenewedOrTheNodeIsGone) {
  const MonoTime now{1h};
  const WallTime wall = *parse_rfc3339("2026-11-21T08:00:00Z");
  Memory memory;
  NodeLease lease;
  lease.meta.name = "n1";
  lease.renewed = wall;
  memory.note_lease(lease, false, now, wall);
  const auto is_there = [] { return true; };
  memory.suspect_node("n1", now + 1s, is_there);
  memory.suspect_node("n2", now + 1s, is_there);
  memory.suspect_node("n3", now + 1s, [] { return false; });
  memory.note_lease(lease, false, now + 5s, wall + 5s);  // it says nothing new
  EXPECT_EQ(memory.suspects().size(), 2u);
  lease.renewed += 10s;
  memory.note_lease(lease, false, now + 10s, wall - 1h);
  EXPECT_EQ(memory.suspects(), (std::map<std::string, MonoTime>{{"n2", now + 1s}}));
  memory.forget_node("n2");
  EXPECT_TRUE(memory.suspects().empty());
}

TEST(Memory, TheOftenerAJobMayNotGrowTheLongerItStaysAsItIs) {
  Memory memory;
  MonoTime now{1h};
  EXPECT_EQ(memory.limit_growth("a", 2, now).until, now + 10s);
  EXPECT_EQ(memory.limit_growth("a", 2, now + 1s).until, now + 10s) << "another pod of that try";
  now += 10s;
  EXPECT_EQ(memory.limit_growth("a", 2, now).until, now + 20s);
  now += 20s;
  EXPECT_EQ(memory.limit_growth("a", 3, now).until, now + 10s) << "it came further";
  for (int i = 0; i < 70; ++i) now = memory.limit_growth("a", 3, now).until;
  EXPECT_EQ(memory.limit_growth("a", 3, now).until, now + kGrowthLimitMost);
  EXPECT_EQ(memory.growth_limits().at("a").gpus, 3);
  now = memory.growth_limits().at("a").until + kGrowthLimitMost + 1s;
  EXPECT_EQ(memory.limit_growth("a", 3, now).until, now + 10s) << "it could be grown for long";
  memory.forget_job("a");
  EXPECT_TRUE(memory.growth_limits().empty());
}

TEST(Memory, WhatIsForbiddenIsAskedAgainAtASteadyPace) {
  Memory memory;
  const MonoTime now{1h};
  const Error full(Code::kDenied, "exceeded quota");
  EXPECT_FALSE(memory.refusal("a", "pod w1", now));
  for (const MonoTime then : {now, now + kRefusalPause, now + 2 * kRefusalPause}) {
    memory.note_refused("a", "pod w1", full, kRefusalPause, then);
    ASSERT_TRUE(memory.refusal("a", "pod w1", then + kRefusalPause - 1ms));
    EXPECT_EQ(memory.refusal("a", "pod w1", then)->error.what(), "exceeded quota");
    EXPECT_FALSE(memory.refusal("a", "pod w1", then + kRefusalPause));
  }
  EXPECT_FALSE(memory.refusal("a", "pod w2", now)) << "it was not asked for";
  EXPECT_FALSE(memory.refusal("b", "pod w1", now));
}

TEST(Memory, AfterAnErrorItIsAskedSoonAndThenSeldom) {
  Memory memory;
  MonoTime now{1h};
  const auto pause = [&] {
    memory.note_refused("a", "pod w1", Error(Code::kInternal, "broken"), kErrorPause, now);
    return memory.refusal("a", "pod w1", now)->until - now;
  };
  EXPECT_EQ(pause(), kErrorPause);
  now += kErrorPause;
  EXPECT_EQ(pause(), 2 * kErrorPause);
  for (int i = 0; i < 70; ++i) now += pause();
  EXPECT_EQ(pause(), kRefusalPause);
  now += kRefusalPause + kRefusalQuiet + 1ms;
  EXPECT_EQ(pause(), kErrorPause) << "that was long ago";
  memory.forget_refusals("a");
  EXPECT_FALSE(memory.refusal("a", "pod w1", now));
}

// An object's events are bounded, and others are to be heard beside those of what is refused.
TEST(Memory, WhatIsRefusedForLongIsToldAtPausesThatDouble) {
  Memory memory;
  const MonoTime begin{1h};
  int told = 0;
  for (MonoTime now = begin; now < begin + 5min; now += 10s)
    told += memory.may_tell("a", "FailedCreate", now) ? 1 : 0;
  EXPECT_EQ(told, 5);  // after 0, 10, 30, 70 and 150 s
  EXPECT_TRUE(memory.may_tell("a", "FailedDelete", begin));
  EXPECT_TRUE(memory.may_tell("b", "FailedCreate", begin));
  MonoTime now = begin + 5min;
  for (int i = 0; i < 2000; ++i, now += 10s) (void)memory.may_tell("a", "FailedCreate", now);
  EXPECT_FALSE(memory.may_tell("a", "FailedCreate", now));
  memory.forget_refusals("a");
  EXPECT_TRUE(memory.may_tell("a", "FailedCreate", now)) << "meanwhile it was allowed";
}

TEST(Memory, ProgressIsWrittenEachSecondWhileFewJobsTrainAndWritesAreBounded) {
  EXPECT_EQ(progress_period(0, 1s), 1s);
  EXPECT_EQ(progress_period(20, 1s), 1s);
  EXPECT_EQ(progress_period(60, 1s), 3s);
  for (const std::size_t jobs : {100, 500, 1000}) EXPECT_EQ(progress_period(jobs, 1s), 5s) << jobs;
  EXPECT_EQ(progress_period(4000, 1s), 20s);
  EXPECT_EQ(progress_period(60, 5s), 5s);
  double before = 0;
  for (std::size_t jobs = 1; jobs <= 20'000; jobs *= 2) {
    const double writes = static_cast<double>(jobs) /
                          std::chrono::duration<double>(progress_period(jobs, 1s)).count();
    EXPECT_GE(writes, before) << jobs;
    EXPECT_LE(writes, 200.001) << jobs;
    before = writes;
  }
}

TEST(Memory, ADeletionCountsFromWhenThisLeaderSawIt) {
  Memory memory;
  EXPECT_EQ(memory.deleted_since("a", MonoTime{1h}), MonoTime{1h});
  EXPECT_EQ(memory.deleted_since("a", MonoTime{2h}), MonoTime{1h});
  EXPECT_EQ(memory.finished_since("a", MonoTime{2h}), MonoTime{2h}) << "another matter";
  memory.forget_job("a");
  EXPECT_EQ(memory.deleted_since("a", MonoTime{3h}), MonoTime{3h});
}

TEST(Memory, WhenThePodsOfAGenerationWereMadeIsSaidOfNewOnesOnly) {
  Memory memory;
  EXPECT_FALSE(memory.newest_made("a", 1, {"w0"})) << "an earlier leader made it";
  memory.note_made("a", "w1", MonoTime{1h});
  memory.note_made("a", "w2", MonoTime{2h});
  memory.note_made("a", "w2", MonoTime{3h});  // its name is used once
  for (int write = 0; write < 2; ++write)     // the first may fail
    EXPECT_EQ(memory.newest_made("a", 2, {"w0", "w1", "w2"}), MonoTime{2h});
  EXPECT_FALSE(memory.newest_made("a", 3, {"w0", "w1", "w2"})) << "nobody is new";
  memory.note_made("a", "w3", MonoTime{4h});
  memory.note_made("a", "w4", MonoTime{5h});
  memory.forget_made("a", [](const std::string& pod) { return pod == "w3"; });
  EXPECT_EQ(memory.newest_made("a", 4, {"w3", "w4"}), MonoTime{4h});
}

}  // namespace
}  // namespace rubato::control
