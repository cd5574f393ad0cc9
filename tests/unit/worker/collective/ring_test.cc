#include "worker/collective/ring.h"

#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace rubato::worker {
namespace {

TEST(RingPlan, WhatOneSendsTheNextReceives) {
  for (std::uint32_t size = 2; size <= 7; ++size) {
    for (const std::int64_t count : {0, 1, 5, 1000, 1023}) {
      for (std::uint32_t rank = 0; rank < size; ++rank) {
        const RingPlan mine(count, size, rank);
        const RingPlan theirs(count, size, (rank + 1) % size);
        for (std::uint32_t step = 0; step < mine.steps(); ++step) {
          EXPECT_EQ(mine.sent(step).first, theirs.received(step).first);
          EXPECT_EQ(mine.sent(step).count, theirs.received(step).count);
          if (step > 0) {
            EXPECT_EQ(mine.sent(step).first, mine.received(step - 1).first);
          }
        }
      }
    }
  }
}

TEST(AddInt32, WrapsAndLeavesItsInputs) {
  const std::vector<std::int32_t> in{1, std::numeric_limits<std::int32_t>::max(), -7};
  const std::vector<std::int32_t> part{2, 1, 7};
  std::vector<std::int32_t> out(3);
  add_int32(out.data(), in.data(), part.data(), 3);
  EXPECT_EQ(out, (std::vector<std::int32_t>{3, std::numeric_limits<std::int32_t>::min(), 0}));
}

}  // namespace
}  // namespace rubato::worker
