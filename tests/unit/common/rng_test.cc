#include "common/rng.h"

#include <array>

#include <gtest/gtest.h>

namespace rubato {
namespace {

// The published test vector of SplitMix64 for seed 1234567.
TEST(Rng, MatchesThePublishedStream) {
  Rng rng(1234567);
  EXPECT_EQ(rng.next(), 6457827717110365317ULL);
  EXPECT_EQ(rng.next(), 3203168211198807973ULL);
  EXPECT_EQ(rng.next(), 9817491932198370423ULL);
}

TEST(Rng, BelowIsInRangeAndEven) {
  Rng rng(7);
  std::array<int, 10> seen{};
  for (int i = 0; i < 10'000; ++i) ++seen.at(rng.below(10));
  for (const int count : seen) {
    EXPECT_GT(count, 850);
    EXPECT_LT(count, 1150);
  }
  EXPECT_EQ(rng.below(1), 0u);
}

TEST(Rng, UnitIsBelowOne) {
  Rng rng(9);
  double sum = 0;
  for (int i = 0; i < 10'000; ++i) {
    const double u = rng.unit();
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    sum += u;
  }
  EXPECT_NEAR(sum / 10'000, 0.5, 0.02);
}

TEST(Rng, ForkDependsOnSeedAndLabelOnly) {
  Rng a(1);
  Rng b(1);
  a.next();
  EXPECT_EQ(a.fork(5).next(), b.fork(5).next());
  EXPECT_NE(a.fork(5).next(), a.fork(6).next());
  EXPECT_NE(Rng(1).fork(5).next(), Rng(2).fork(5).next());
}

}  // namespace
}  // namespace rubato
