#include "worker/collective/ring.h"

#include "worker/collective/ring_reduce.h"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
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

// A hop inside one process: one member writes, the next one reads. Elements come in parts.
class Pipe : public Link {
 public:
  static constexpr std::size_t kMost = 333;  // bytes that move at once
  Result<std::size_t> try_read(void* to, std::size_t bytes) override {
    const std::lock_guard lock(mutex_);
    const std::size_t moved = std::min(bytes, bytes_.size());
    std::copy_n(bytes_.begin(), moved, static_cast<char*>(to));
    bytes_.erase(0, moved);
    if (on_read && moved > 0) on_read(static_cast<char*>(to));
    return moved;
  }
  Result<std::size_t> try_write(const void* from, std::size_t bytes) override {
    if (on_write) on_write(from);
    const std::lock_guard lock(mutex_);
    const std::size_t moved = std::min(bytes, kMost);
    bytes_.append(static_cast<const char*>(from), moved);
    return moved;
  }
  void wait_among(std::span<LinkWait>, MonoTime) override { std::this_thread::yield(); }
  void cut() override {}
  bool is_cut() const override { return false; }

  std::function<void(char* to)> on_read;
  std::function<void(const void* from)> on_write;

 protected:
  MonoTime now() const override { return {}; }

 private:
  std::mutex mutex_;
  std::string bytes_;
};

constexpr std::uint32_t kRanks = 3;
constexpr std::int64_t kElements = 2000;

struct Reduced {
  std::array<std::vector<std::int32_t>, kRanks> sums;
  std::array<HopSums, kRanks> hops;
};

// `spoil` may set what a pipe does.
Reduced reduce(const std::function<void(std::array<Pipe, kRanks>&, Reduced&)>& spoil) {
  Reduced all;
  for (auto& sums : all.sums) sums.resize(kElements);
  std::array<Pipe, kRanks> pipes;
  spoil(pipes, all);
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < kRanks; ++rank)
    threads.emplace_back([&, rank] {
      SystemClock clock;
      std::vector<std::byte> staging(600);
      const std::vector<std::int32_t> in(kElements, static_cast<std::int32_t>(rank) - 1000);
      const std::uint32_t before = (rank + kRanks - 1) % kRanks;
      const auto failure = ring_reduce(
          clock, RingPlan(kElements, kRanks, rank), Header{}, {&pipes[rank], (rank + 1) % kRanks},
          {&pipes[before], before}, in.data(), all.sums[rank].data(), staging, &all.hops[rank]);
      EXPECT_FALSE(failure.has_value());
    });
  for (std::thread& thread : threads) thread.join();
  return all;
}

std::vector<std::uint32_t> adders(const Reduced& all) {
  std::vector<std::uint32_t> found;
  for (std::uint32_t rank = 0; rank < kRanks; ++rank)
    if (all.hops[rank].excess != 0) found.push_back(rank);
  return found;
}
std::vector<std::uint32_t> receivers(const Reduced& all) {
  std::vector<std::uint32_t> found;
  for (std::uint32_t rank = 0; rank < kRanks; ++rank)
    if (all.hops[rank].got != all.hops[(rank + kRanks - 1) % kRanks].sent) found.push_back(rank);
  return found;
}
using Ranks = std::vector<std::uint32_t>;

TEST(RingReduce, HopsTellWhoMakesASumWrong) {
  const Reduced right = reduce([](auto&, Reduced&) {});
  EXPECT_EQ(right.sums[0], std::vector<std::int32_t>(kElements, -2997));
  EXPECT_EQ(adders(right), Ranks{});
  EXPECT_EQ(receivers(right), Ranks{});
  // What rank 1 has added is not what stands there when it hands it on.
  const Reduced added = reduce([](auto& pipes, Reduced& all) {
    pipes[1].on_write = [&all, is_over = false](const void* from) mutable {
      for (std::int32_t& sum : all.sums[1])
        if (&sum == from && !std::exchange(is_over, true)) sum = ~sum;
    };
  });
  for (const auto& sums : added.sums) EXPECT_NE(sums, right.sums[0]);
  EXPECT_EQ(adders(added), Ranks{1});
  EXPECT_EQ(receivers(added), Ranks{});
  // One byte is another one when rank 2 has it.
  const Reduced received = reduce([](auto& pipes, Reduced&) {
    pipes[1].on_read = [reads = 0](char* to) mutable {
      if (++reads == 3) *to ^= 1;  // the first is of the header
    };
  });
  for (const auto& sums : received.sums) EXPECT_NE(sums, right.sums[0]);
  EXPECT_EQ(adders(received), Ranks{});
  EXPECT_EQ(receivers(received), Ranks{2});
}

}  // namespace
}  // namespace rubato::worker
