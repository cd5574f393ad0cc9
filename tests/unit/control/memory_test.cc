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
  const WallTime now = *parse_rfc3339("2026-11-21T08:00:00Z");
  const auto waits = [&] { return memory.failed_starts().at("a").spare_only_until - now; };
  memory.note_failed_start("a", 1, 10s, now);
  EXPECT_EQ(waits(), 20s);
  memory.note_failed_start("a", 1, 10s, now);
  EXPECT_EQ(waits(), 40s);
  for (int i = 0; i < 70; ++i) memory.note_failed_start("a", 1, 10s, now);
  EXPECT_EQ(waits(), kSpareOnlyMost);
  memory.note_failed_start("a", 2, 10s, now);  // another spec
  EXPECT_EQ(waits(), 20s);
  memory.note_started("a");
  EXPECT_TRUE(memory.failed_starts().empty());
}

TEST(Memory, AJobIsHeldBackUntilItsTimeAndSaysWhy) {
  Memory memory;
  const WallTime now = *parse_rfc3339("2026-11-21T08:00:00Z");
  memory.hold_back("a", {now + 30s, "GangTimeout", "no pod started"});
  ASSERT_TRUE(memory.held_back("a", now + 29s));
  EXPECT_EQ(to_text(*memory.held_back("a", now)),
            "no pod started; tried again at 2026-11-21T08:00:30Z");
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
  const WallTime now = *parse_rfc3339("2026-11-21T08:00:00Z");
  Memory memory;
  NodeLease lease;
  lease.meta.name = "n1";
  lease.renewed = now - 1h;
  EXPECT_EQ(memory.by_our_clock(lease, now).renewed, now - 1h);
  memory.note_lease(lease, false, now);  // the first list: nothing is known but what it says
  EXPECT_EQ(memory.by_our_clock(lease, now).renewed, now - 1h);
  memory.note_lease(lease, false, now + 1s);  // no renewal
  EXPECT_EQ(memory.by_our_clock(lease, now).renewed, now - 1h);
  lease.renewed += 10s;
  memory.note_lease(lease, false, now + 9s);
  EXPECT_EQ(memory.by_our_clock(lease, now).renewed, now + 9s);
  memory.note_lease(lease, true, now + 10s);
  EXPECT_EQ(memory.by_our_clock(lease, now).renewed, now - 1h + 10s);
}

}  // namespace
}  // namespace rubato::control
