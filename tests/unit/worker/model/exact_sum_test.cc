#include "worker/model/exact_sum.h"

#include "operator/api/job_spec.h"
#include "tests/unit/worker/backend/kernel_bench.h"
#include "worker/backend/digest.h"
#include "worker/testing/deferred_device.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace rubato::worker::testing {
namespace {

// Two tensors of 3 and 2 blocks.
class ExactSumTest : public KernelBench {
 protected:
  static constexpr std::size_t kFlat = 5 * 256;
  ExactSumTest() {
    table_.add("a", {3, 256}, true);
    table_.add("b", {2, 256}, false);
    exponents_ = blank(DType::kI32, 5);
    mean_ = zeros(kFlat);
  }
  ExactSum make(std::int64_t micro_batches, int numerics = kNumericsVersion) {
    return std::move(ExactSum::create(*device, table_, micro_batches, numerics)).value();
  }
  void add_all(ExactSum& sum, const std::vector<std::vector<float>>& gradients) {
    for (std::size_t m = 0; m < gradients.size(); ++m)
      sum.add(*stream, 0, static_cast<std::int64_t>(m), upload(gradients[m]), exponents_);
  }
  // Gradients with a common part and noise, of many sizes.
  static std::vector<std::vector<float>> gradients(std::size_t count, std::uint64_t seed) {
    std::vector<std::vector<float>> out;
    for (std::size_t m = 0; m < count; ++m) {
      auto g = noise(kFlat, seed * 1000 + m);
      const auto common = noise(kFlat, seed, 0.3);
      for (std::size_t i = 0; i < kFlat; ++i)
        g[i] = (g[i] + common[i]) * std::ldexp(1.0f, -static_cast<int>(i / 256) * 3);
      out.push_back(g);
    }
    return out;
  }

  // A digest of six steps, of which `without_b` has no gradient of tensor b.
  std::string bits_of(int numerics, std::uint64_t without_b) {
    constexpr std::int64_t kCount = 24;
    ExactSum sum = make(kCount, numerics);
    const Buffer exponents = blank(DType::kI32, 5);
    Digest digest;
    for (std::uint64_t step = 0; step < 6; ++step) {
      auto g = gradients(kCount, 100 + step);
      if (step == without_b)
        for (auto& gradient : g) std::fill(gradient.begin() + 3 * 256, gradient.end(), 0.0f);
      if (step == 0) {
        EXPECT_TRUE(sum.calibrate(*stream, upload(g[0]), exponents).ok());
      }
      sum.clear(*stream);
      for (std::int64_t m = 0; m < kCount; ++m)
        sum.add(*stream, static_cast<std::int64_t>(step), m, upload(g[static_cast<std::size_t>(m)]),
                exponents);
      EXPECT_FALSE(sum.overflows(*stream, sum.accumulators()).value());
      sum.mean(*stream, sum.accumulators(), exponents, mean_);
      EXPECT_TRUE(sum.advance(*stream, sum.accumulators(), mean_, exponents).ok());
      const auto sums = ints(sum.accumulators()), scale = ints(exponents);
      const auto mean = floats(mean_);
      digest.add(sums.data(), sums.size() * 4).add(mean.data(), mean.size() * 4);
      digest.add(scale.data(), scale.size() * 4);
    }
    return to_hex(digest.value());
  }

  ParameterTable table_;
  Buffer exponents_;
  Buffer mean_;
};

TEST_F(ExactSumTest, TheMeanIsTheMean) {
  constexpr std::size_t kCount = 12;
  const auto g = gradients(kCount, 1);
  ExactSum sum = make(kCount);
  ASSERT_TRUE(sum.calibrate(*stream, upload(g[0]), exponents_).ok());
  sum.clear(*stream);
  add_all(sum, g);
  ASSERT_FALSE(sum.overflows(*stream, sum.accumulators()).value());
  sum.mean(*stream, sum.accumulators(), exponents_, mean_);
  const auto got = floats(mean_);
  for (std::size_t i = 0; i < kFlat; ++i) {
    double want = 0;
    for (const auto& one : g) want += static_cast<double>(one[i]) / kCount;
    // A block's quantum is 2^(e - F); a dozen roundings of less than one, over 12.
    ASSERT_NEAR(static_cast<double>(got[i]), want,
                1e-6 * std::ldexp(1.0, -static_cast<int>(i / 256) * 3));
  }
}

TEST_F(ExactSumTest, GroupingAndOrderCannotBeSeen) {
  constexpr std::size_t kCount = 16;
  const auto g = gradients(kCount, 2);
  Rng rng(4);
  std::uint64_t first = 0;
  for (int trial = 0; trial < 30; ++trial) {
    std::vector<std::size_t> order(kCount);
    for (std::size_t i = 0; i < kCount; ++i) order[i] = i;
    for (std::size_t i = kCount; i > 1; --i) std::swap(order[i - 1], order[rng.below(i)]);
    const std::size_t workers = 1 + rng.below(7);
    std::vector<ExactSum> parts;
    for (std::size_t w = 0; w < workers; ++w) parts.push_back(make(kCount));
    ASSERT_TRUE(parts[0].calibrate(*stream, upload(g[0]), exponents_).ok());
    for (const std::size_t m : order)
      parts[rng.below(workers)].add(*stream, 17, static_cast<std::int64_t>(m), upload(g[m]),
                                    exponents_);
    const Buffer reduced =
        blank(DType::kI32, static_cast<std::size_t>(parts[0].accumulator_count()));
    for (ExactSum& part : parts) part.merge(*stream, part.accumulators(), reduced);
    const auto bits = ints(reduced);
    const std::uint64_t hash = digest_of(bits.data(), bits.size() * 4);
    if (trial == 0) first = hash;
    ASSERT_EQ(hash, first) << "trial " << trial << ", " << workers << " workers";
  }
}

TEST_F(ExactSumTest, ASumWeighsWhatItsPartsDo) {
  constexpr std::size_t kCount = 8;
  for (const bool overflows : {false, true}) {
    auto g = gradients(kCount, 9);
    ExactSum a = make(kCount), b = make(kCount);
    ASSERT_TRUE(a.calibrate(*stream, upload(g[0]), exponents_).ok());
    if (overflows) g[3][300] = g[5][300] = std::numeric_limits<float>::infinity();
    for (ExactSum* sum : {&a, &b}) sum->clear(*stream);
    for (std::size_t m = 0; m < kCount; ++m)
      (m < 5 ? a : b).add(*stream, 0, static_cast<std::int64_t>(m), upload(g[m]), exponents_);
    const Buffer total = blank(DType::kI32, static_cast<std::size_t>(a.accumulator_count()));
    a.merge(*stream, a.accumulators(), total);
    a.merge(*stream, b.accumulators(), total);
    const auto of = [&](ExactSum& sum, ConstBuffer reduced) {
      sum.weigh_given(*stream);
      sum.weigh_reduced(*stream, reduced);
      EXPECT_EQ(sum.overflows(*stream, reduced).value(), overflows);
      return sum.reduced();
    };
    const SumChecksum right = of(a, total);
    EXPECT_EQ(of(b, total), right);
    SumChecksum given = a.given();
    given += b.given();
    EXPECT_EQ(given.guards, right.guards);
    if (overflows) continue;  // what does not fit its integer may weigh anything
    EXPECT_EQ(given, right);
    // One bit, two that changed places, a part that is a place too far on, a part of zeros.
    std::vector<std::vector<std::int32_t>> wrong(4, ints(total));
    wrong[0][700] ^= 1;
    std::swap(wrong[1][3], wrong[1][4]);
    std::rotate(wrong[2].begin() + 256, wrong[2].begin() + 511, wrong[2].begin() + 512);
    std::fill(wrong[3].begin() + 512, wrong[3].begin() + 768, 0);
    for (const auto& one : wrong) EXPECT_NE(of(a, upload(one)).elements, right.elements);
    auto guard = ints(total);
    guard[kFlat] += 1;
    EXPECT_NE(of(a, upload(guard)).guards, right.guards);
  }
}

TEST_F(ExactSumTest, OverflowIsSeenAlikeAndHealsByRaising) {
  constexpr std::size_t kCount = 8;
  auto g = gradients(kCount, 3);
  ExactSum sum = make(kCount);
  ASSERT_TRUE(sum.calibrate(*stream, upload(g[0]), exponents_).ok());
  const auto before = ints(exponents_);
  for (auto& one : g)  // block 1 is a thousand times what was expected
    for (std::size_t i = 256; i < 512; ++i) one[i] *= 1000.0f;
  for (int attempt = 0;; ++attempt) {
    ASSERT_LT(attempt, 4);
    sum.clear(*stream);
    add_all(sum, g);
    if (!sum.overflows(*stream, sum.accumulators()).value()) break;
    ASSERT_TRUE(sum.raise(*stream, sum.accumulators(), attempt, exponents_).ok());
  }
  const auto after = ints(exponents_);
  for (const std::size_t block : {0u, 2u, 3u, 4u}) EXPECT_EQ(after[block], before[block]);
  EXPECT_GT(after[1], before[1]);
  sum.mean(*stream, sum.accumulators(), exponents_, mean_);
  double want = 0;
  for (const auto& one : g) want += static_cast<double>(one[300]) / kCount;
  EXPECT_NEAR(static_cast<double>(floats(mean_)[300]), want, 1e-3);
}

// The guard must catch every sum that leaves int32, however the parts are signed and rounded.
TEST_F(ExactSumTest, NoWrappedSumPassesTheGuard) {
  for (const int numerics : {1, 2, 3}) {
    Rng rng(9);
    int overflowed = 0, passed = 0;
    for (int trial = 0; trial < 200; ++trial) {
      const std::size_t count = 1 + rng.below(9);
      ExactSum sum = make(static_cast<std::int64_t>(count), numerics);
      const Buffer exponents = upload(std::vector<std::int32_t>(5, 0));
      std::vector<double> exact(kFlat);
      for (std::size_t m = 0; m < count; ++m) {
        const auto g = noise(kFlat, rng.next(), std::ldexp(1.0, static_cast<int>(rng.below(6))));
        sum.add(*stream, trial, static_cast<std::int64_t>(m), upload(g), exponents);
        for (std::size_t i = 0; i < kFlat; ++i)
          exact[i] += std::ldexp(static_cast<double>(g[i]), sum.fraction_bits());
      }
      if (sum.overflows(*stream, sum.accumulators()).value()) {
        overflowed += 1;
        continue;
      }
      passed += 1;
      const auto got = ints(sum.accumulators());
      for (std::size_t i = 0; i < kFlat; ++i) {
        ASSERT_LE(std::abs(exact[i]), 2147483648.0);
        ASSERT_LE(std::abs(static_cast<double>(got[i]) - exact[i]), static_cast<double>(count));
      }
    }
    EXPECT_GT(overflowed, 20);
    EXPECT_GT(passed, 20);
  }
}

// Each of 8 192 blocks that cannot be rounded adds the most that a guard takes.
TEST_F(ExactSumTest, GuardsDoNotWrapAtTheMostMicroBatches) {
  const Buffer broken = upload(std::vector<float>(kFlat, std::numeric_limits<float>::infinity()));
  const Buffer exponents = upload(std::vector<std::int32_t>(5, 0));
  for (const std::int64_t count : {std::int64_t{4096}, ExactSum::kMicroBatchesMax}) {
    ExactSum sum = make(count);
    for (std::int64_t m = 0; m < count; ++m) sum.add(*stream, 0, m, broken, exponents);
    EXPECT_TRUE(sum.overflows(*stream, sum.accumulators()).value()) << count;
  }
}

TEST_F(ExactSumTest, ABrokenGradientOverflowsForEver) {
  auto g = gradients(2, 5);
  ExactSum sum = make(2);
  ASSERT_TRUE(sum.calibrate(*stream, upload(g[0]), exponents_).ok());
  g[1][700] = std::numeric_limits<float>::quiet_NaN();
  for (int attempt = 0; attempt < ExactSum::kRedosMax; ++attempt) {
    sum.clear(*stream);
    add_all(sum, g);
    ASSERT_TRUE(sum.overflows(*stream, sum.accumulators()).value());
    ASSERT_TRUE(sum.raise(*stream, sum.accumulators(), attempt, exponents_).ok());
  }
}

TEST_F(ExactSumTest, ExponentsFollowTheGradientDownSlowly) {
  for (const int numerics : {1, 2, 3}) {
    ExactSum sum = make(1, numerics);  // M = 1: what guards saw and the mean are the same
    std::vector<float> g(kFlat, 0.0f);
    g[0] = 3.0f;        // block 0 of tensor a: 2^2
    g[256] = 1e-6f;     // block 1: far below the tensor's largest
    g[3 * 256] = 0.5f;  // block 0 of tensor b: 2^-1
    const Buffer gradient = upload(g);
    const Buffer start = upload(std::vector<std::int32_t>{0, 0, 0, 20, 20});
    const auto step = [&] {
      sum.clear(*stream);
      sum.add(*stream, 0, 0, gradient, start);
      ASSERT_TRUE(sum.advance(*stream, sum.accumulators(), gradient, start).ok());
    };
    step();
    // up at once; down by two at most; never more than 4 below the tensor's largest
    EXPECT_EQ(ints(start), (std::vector<std::int32_t>{2, -2, -2, 18, 18}));
    for (int i = 0; i < 30; ++i) step();
    EXPECT_EQ(ints(start), (std::vector<std::int32_t>{2, -2, -2, -1, -5}));
  }
}

// Experts that no token chose, heads of other tasks: what a step did not use says nothing of the
// next gradient.
TEST_F(ExactSumTest, ATensorThatStepsDoNotUseIsReadyForItsNextGradient) {
  constexpr std::int64_t kCount = 4;
  std::vector<float> all = noise(kFlat, 7);
  std::vector<float> only_a = all;
  std::fill(only_a.begin() + 3 * 256, only_a.end(), 0.0f);
  for (const int numerics : {2, kNumericsVersion}) {
    ExactSum sum = make(kCount, numerics);
    const auto step_overflows = [&](const std::vector<float>& g) {
      sum.clear(*stream);
      for (std::int64_t m = 0; m < kCount; ++m) sum.add(*stream, 0, m, upload(g), exponents_);
      return sum.overflows(*stream, sum.accumulators()).value();
    };
    const auto advance = [&](const std::vector<float>& g) {
      EXPECT_TRUE(sum.advance(*stream, sum.accumulators(), upload(g), exponents_).ok());
    };
    const bool is_redone = numerics == 2;
    // The first gradient does not use b.
    ASSERT_TRUE(sum.calibrate(*stream, upload(only_a), exponents_).ok());
    EXPECT_EQ(step_overflows(all), is_redone);
    // Fifty steps do not use it.
    ASSERT_TRUE(sum.calibrate(*stream, upload(all), exponents_).ok());
    for (int step = 0; step < 50; ++step) {
      ASSERT_FALSE(step_overflows(only_a));
      advance(only_a);
    }
    EXPECT_EQ(step_overflows(all), is_redone);
  }
}

// What the guards of one step say is what the next step needs, whether contributions cancel or not.
TEST_F(ExactSumTest, ExponentsCoverTheSumOfTheLargestContributions) {
  for (const std::int64_t count : {1, 8, 64, 512}) {
    for (const float sign : {1.0f, -1.0f}) {
      ExactSum sum = make(count);
      const Buffer even = upload(std::vector<float>(kFlat, 0.75f));
      const Buffer odd = upload(std::vector<float>(kFlat, 0.75f * sign));
      const Buffer exponents = upload(std::vector<std::int32_t>(5, 13));
      for (int step = 0; step < 20; ++step) {
        sum.clear(*stream);
        for (std::int64_t m = 0; m < count; ++m)
          sum.add(*stream, step, m, m % 2 == 0 ? even : odd, exponents);
        ASSERT_FALSE(sum.overflows(*stream, sum.accumulators()).value());
        ASSERT_TRUE(sum.advance(*stream, sum.accumulators(), even, exponents).ok());
      }
      const auto want =
          static_cast<std::int32_t>(std::ceil(std::log2(0.75 * static_cast<double>(count))));
      EXPECT_EQ(ints(exponents), std::vector<std::int32_t>(5, want)) << count;
    }
  }
}

static_assert(ExactSum::kMicroBatchesMax == api::BatchSpec::kMicroBatchesMax,
              "what the API accepts, the worker can add up, and the other way round");

// On a GPU each wait is a time in which it has nothing to do, in every step: one for what is looked
// at, one for what is handed in.
TEST_F(ExactSumTest, NobodyWaitsTwiceForTheSame) {
  for (const int numerics : {1, kNumericsVersion})
    for (const std::uint64_t waits : {1, 2}) {
      const auto deferred = make_deferred_device(std::move(open_device({})).value(), waits);
      const auto queue = deferred->make_stream();
      ExactSum sum = std::move(ExactSum::create(*deferred, table_, 4, numerics)).value();
      Arena arena = std::move(deferred->allocate(Arena::bytes_for(DType::kF32, kFlat) +
                                                 Arena::bytes_for(DType::kI32, 5)))
                        .value();
      const Buffer mean = arena.take(DType::kF32, kFlat), exponents = arena.take(DType::kI32, 5);
      const Status done = sum.advance(*queue, sum.accumulators(), mean, exponents);
      EXPECT_EQ(done.ok() ? "" : done.error().reason(), waits == 2 ? "" : kDeviceLost);
    }
}

TEST_F(ExactSumTest, RefusesMoreMicroBatchesThanGuardsHold) {
  EXPECT_FALSE(ExactSum::create(*device, table_, 0).ok());
  EXPECT_TRUE(ExactSum::create(*device, table_, 4096).ok());
  EXPECT_FALSE(ExactSum::create(*device, table_, ExactSum::kMicroBatchesMax + 1).ok());
  EXPECT_FALSE(ExactSum::create(*device, table_, 4096, 1).ok());
  EXPECT_FALSE(ExactSum::create(*device, table_, 8, 0).ok());
  EXPECT_FALSE(ExactSum::create(*device, table_, 8, kNumericsVersion + 1).ok());
  EXPECT_EQ(make(8).fraction_bits(), 27);
  EXPECT_EQ(make(4096).fraction_bits(), 27);
  EXPECT_EQ(make(1, 1).fraction_bits(), 28);
  EXPECT_EQ(make(8, 1).fraction_bits(), 26);
  EXPECT_EQ(make(64, 1).fraction_bits(), 25);
  EXPECT_EQ(make(4095, 1).fraction_bits(), 22);
}

// Jobs that began under an older version go on under it: its bits may not change. Each digest is
// that of the program before there was a next version. Step 3 has no gradient of tensor b.
TEST_F(ExactSumTest, OlderVersionsKeepTheirBits) {
  EXPECT_EQ(bits_of(1, 6), "50d37810f184fe60");
  EXPECT_EQ(bits_of(2, 3), "b6b2e34cb564418a");
}

}  // namespace
}  // namespace rubato::worker::testing
