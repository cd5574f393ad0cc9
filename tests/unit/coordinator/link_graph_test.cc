#include "operator/coordinator/link_graph.h"

#include "common/rng.h"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

namespace rubato::coordinator {
namespace {

std::vector<std::size_t> members_of(const std::vector<bool>& set) {
  std::vector<std::size_t> out;
  for (std::size_t i = 0; i < set.size(); ++i)
    if (set[i]) out.push_back(i);
  return out;
}

// Members for whom `is_left` says so do not reach the others.
LinkGraph split(std::size_t members, const std::function<bool(std::size_t)>& is_left) {
  LinkGraph graph(members);
  for (std::size_t a = 0; a < members; ++a)
    for (std::size_t b = a + 1; b < members; ++b)
      if (is_left(a) != is_left(b)) graph.miss(a, b);
  return graph;
}

TEST(LinkGraph, WithoutABrokenLinkAllAreIn) {
  EXPECT_EQ(members_of(LinkGraph(5).largest_set()).size(), 5u);
  EXPECT_TRUE(LinkGraph(5).is_whole());
}

TEST(LinkGraph, OfASplitTheLargerPartStays) {
  for (const std::size_t members : {7u, 70u}) {
    const auto left = members_of(
        split(members, [&](std::size_t i) { return i < members * 4 / 7; }).largest_set());
    EXPECT_EQ(left.size(), members * 4 / 7);
    EXPECT_EQ(left.back(), members * 4 / 7 - 1);
    const auto right = members_of(
        split(members, [&](std::size_t i) { return i < members * 3 / 7; }).largest_set());
    EXPECT_EQ(right.size(), members - members * 3 / 7);
    EXPECT_EQ(right.front(), members * 3 / 7);
  }
}

TEST(LinkGraph, OfEqualPartsTheOneWithTheLastMemberGoes) {
  for (const std::size_t members : {10u, 70u}) {
    const auto block =
        members_of(split(members, [&](std::size_t i) { return i < members / 2; }).largest_set());
    EXPECT_EQ(block.size(), members / 2);
    EXPECT_EQ(block.front(), 0u);
    const auto striped =
        members_of(split(members, [](std::size_t i) { return i % 2 == 0; }).largest_set());
    EXPECT_EQ(striped.size(), members / 2);
    EXPECT_EQ(striped.front(), 0u);
  }
}

TEST(LinkGraph, OneBrokenPairCostsOneAndAStarItsCentre) {
  LinkGraph pair(70);
  pair.miss(3, 9);
  const auto without_one = members_of(pair.largest_set());
  EXPECT_EQ(without_one.size(), 69u);
  EXPECT_EQ(std::ranges::count(without_one, 9u), 0);
  LinkGraph star(70);
  for (std::size_t i = 1; i < 70; ++i) star.miss(0, i);
  const auto without_centre = members_of(star.largest_set());
  EXPECT_EQ(without_centre.size(), 69u);
  EXPECT_EQ(without_centre.front(), 1u);
}

// A path of five: greedy on degrees alone would keep two; three do not touch.
TEST(LinkGraph, SmallGraphsAreExact) {
  Rng rng(5);
  for (int round = 0; round < 200; ++round) {
    const std::size_t members = 2 + rng.below(9);
    LinkGraph graph(members);
    std::set<std::pair<std::size_t, std::size_t>> missed;
    for (std::size_t a = 0; a < members; ++a)
      for (std::size_t b = a + 1; b < members; ++b)
        if (rng.below(3) == 0) missed.emplace(a, b);
    for (const auto& [a, b] : missed) graph.miss(a, b);
    const auto is_whole = [&](std::size_t set) {
      return std::ranges::none_of(missed, [&](const auto& pair) {
        return (set >> pair.first & 1U) != 0 && (set >> pair.second & 1U) != 0;
      });
    };
    std::size_t best = 0;
    for (std::size_t set = 0; set < std::size_t{1} << members; ++set)
      if (is_whole(set)) best = std::max<std::size_t>(best, std::popcount(set));
    std::size_t found = 0;
    for (const std::size_t member : members_of(graph.largest_set())) found |= 1U << member;
    EXPECT_TRUE(is_whole(found));
    EXPECT_EQ(std::popcount(found), best);
  }
}

TEST(LinkGraph, LargeRandomOnesAreWholeAndNobodyCouldComeBack) {
  Rng rng(6);
  LinkGraph graph(90);
  std::set<std::pair<std::size_t, std::size_t>> missed;
  for (int i = 0; i < 300; ++i) {
    const std::size_t a = rng.below(90);
    const std::size_t b = rng.below(90);
    if (a == b) continue;
    graph.miss(a, b);
    missed.emplace(std::min(a, b), std::max(a, b));
  }
  const std::vector<bool> in = graph.largest_set();
  for (const auto& [a, b] : missed) EXPECT_FALSE(in[a] && in[b]);
  for (std::size_t out = 0; out < 90; ++out) {
    if (in[out]) continue;
    EXPECT_TRUE(std::ranges::any_of(missed, [&](const auto& pair) {
      return (pair.first == out && in[pair.second]) || (pair.second == out && in[pair.first]);
    }));
  }
}

TEST(LinkGraph, UpToKProbedMostAllAreProbedAndThenASampleWithTheNeighbours) {
  EXPECT_EQ(probe_targets(2, 5, 1), (std::vector<std::size_t>{3, 4, 0, 1}));
  EXPECT_EQ(probe_targets(0, kProbedMost + 1, 1).size(), kProbedMost);
  const auto some = probe_targets(7, 200, 3);
  EXPECT_EQ(some.size(), kProbedMost);
  const std::set<std::size_t> each(some.begin(), some.end());
  EXPECT_EQ(each.size(), kProbedMost);
  EXPECT_TRUE(each.contains(6) && each.contains(8) && !each.contains(7));
  EXPECT_NE(some, probe_targets(7, 200, 4));
  // No pattern of racks hides from it.
  EXPECT_GT(std::ranges::count_if(some, [](std::size_t i) { return i % 2 == 0; }), 16);
  EXPECT_GT(std::ranges::count_if(some, [](std::size_t i) { return i % 2 == 1; }), 16);
}

// What a sample tells of a split of 200 in two parts.
TEST(LinkGraph, ASampleTellsTheLargerPart) {
  for (const std::size_t larger : {110u, 120u, 180u}) {
    LinkGraph graph(200);
    for (std::size_t i = 0; i < 200; ++i)
      for (const std::size_t other : probe_targets(i, 200, 9))
        if ((i < larger) != (other < larger)) graph.miss(i, other);
    const auto set = members_of(graph.largest_set());
    EXPECT_GE(set.size(), larger - 6);
    for (const std::size_t member : set) EXPECT_LT(member, larger);
  }
}

}  // namespace
}  // namespace rubato::coordinator
