#include "worker/step/noise_scale.h"

#include "common/rng.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace rubato::worker {
namespace {

double normal(Rng& rng) {  // of variance 1, as a sum of twelve
  double sum = -6;
  for (int i = 0; i < 12; ++i) sum += rng.unit();
  return sum;
}

// Gradients of 100 elements: 0.1 each, and noise of variance 0.04 each. So |G|² = 1 and tr(Σ) = 4.
void add_step(NoiseScale& noise, Rng& rng, std::uint32_t micro_batches) {
  constexpr int kElements = 100;
  std::vector<double> mean(kElements, 0);
  double squared_norms = 0;
  for (std::uint32_t micro = 0; micro < micro_batches; ++micro)
    for (double& element : mean) {
      const double gradient = 0.1 + 0.2 * normal(rng);
      squared_norms += gradient * gradient;
      element += gradient / micro_batches;
    }
  double of_mean = 0;
  for (const double element : mean) of_mean += element * element;
  noise.add(micro_batches, squared_norms, std::sqrt(of_mean));
}

TEST(NoiseScale, IsWhatTheGradientsWereDrawnWithAtAnyNumberOfMicroBatches) {
  for (const std::uint32_t micro_batches : {2u, 8u, 64u}) {
    Rng rng(micro_batches);
    NoiseScale noise;
    for (int step = 0; step < 100; ++step) add_step(noise, rng, micro_batches);
    ASSERT_TRUE(noise.micro_batches());
    EXPECT_NEAR(*noise.micro_batches(), 4, 0.5) << micro_batches;
  }
}

TEST(NoiseScale, SaysNothingOfWhatCannotBeKnown) {
  NoiseScale noise;
  EXPECT_FALSE(noise.micro_batches());
  noise.add(1, 4, 2);
  noise.add(8, std::numeric_limits<double>::infinity(), 1);
  noise.add(8, 1, std::nan(""));
  EXPECT_FALSE(noise.micro_batches());
  noise.add(8, 8, 1);  // all alike
  EXPECT_FALSE(noise.micro_batches());
  NoiseScale lost;
  lost.add(8, 8, 0);  // they cancel out
  EXPECT_FALSE(lost.micro_batches());
}

TEST(NoiseScale, GoesOnFromWhatItsAveragesSay) {
  Rng rng(3);
  NoiseScale noise;
  add_step(noise, rng, 8);
  NoiseScale other(noise.trace(), noise.signal());
  noise.add(8, 40, 1);
  other.add(8, 40, 1);
  EXPECT_EQ(noise.micro_batches(), other.micro_batches());
}

TEST(NoiseScale, IsMeasuredNowAndThenWhereAStepHasSeveralMicroBatches) {
  int measured = 0;
  for (std::uint64_t step = 0; step < 10 * kNoiseMeasuredEvery; ++step) {
    EXPECT_FALSE(measures_noise(step, 1));
    measured += measures_noise(step, 2) ? 1 : 0;
  }
  EXPECT_EQ(measured, 10);
  EXPECT_FALSE(measures_noise(0, 8)) << "the first gradient is like no other";
}

}  // namespace
}  // namespace rubato::worker
