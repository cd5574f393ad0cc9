#include "scheduler/perf/type_ratios.h"

#include <gtest/gtest.h>

namespace rubato::sched {
namespace {

using Speeds = TypeRatios::ByGpuType;

TEST(TypeRatios, AGuessIsByHowMuchFasterOthersAre) {
  TypeRatios ratios(3);
  ratios.add({10, 20, 0});
  ratios.add({10, 80, 0});
  const Speeds guessed = ratios.speeds_of({5, 0, 0});
  EXPECT_EQ(guessed[0], 5);
  EXPECT_NEAR(guessed[1], 20, 1e-9);   // sqrt(2 * 8) times as fast
  EXPECT_NEAR(guessed[2], 5.5, 1e-9);  // nobody was there
}

TEST(TypeRatios, WhoWasMeasuredNowhereIsAsTheOthers) {
  EXPECT_EQ(TypeRatios(2).speeds_of({0, 0}), (Speeds{1, 1}));
  TypeRatios ratios(2);
  ratios.add({10, 40});
  const Speeds guessed = ratios.speeds_of({0, 0});
  EXPECT_NEAR(guessed[1] / guessed[0], 4, 1e-9);
}

TEST(TypeRatios, AHopeIsTheBestThatWasSeen) {
  TypeRatios ratios(3);
  ratios.add({10, 20, 0});
  ratios.add({10, 80, 0});
  const Speeds hoped = ratios.hopes_of({5, 0, 0});
  EXPECT_EQ(hoped[0], 5);
  EXPECT_NEAR(hoped[1], 40, 1e-9);
  EXPECT_NEAR(hoped[2], 5.5, 1e-9);
}

}  // namespace
}  // namespace rubato::sched
