// Members of one process that add by NCCL on the emulated device, beside their links.
#include "tests/emulator/nccl.h"

#include "tests/emulator/calls.h"
#include "tests/emulator/faults.h"
#include "tests/emulator/streams.h"
#include "tests/unit/worker/collective/fleet.h"
#include "tests/unit/worker/support/job_secret.h"
#include "worker/backend/device_collectives.h"
#include "worker/collective/tcp_communicator.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace rubato::worker {
namespace {

using emulator::NcclTrouble;

constexpr auto kVerdict = 50ms;

// A member's memory on the device.
struct Numbers {
  Numbers(Device& device, std::uint32_t rank, std::int64_t count)
      : device(device), stream(device.make_stream()) {
    auto made = device.allocate(2 * Arena::bytes_for(DType::kI32, count));
    EXPECT_TRUE(made.ok()) << made.error().to_string();
    if (!made.ok()) return;
    arena = std::move(made).value();
    in = arena.take(DType::kI32, count);
    out = arena.take(DType::kI32, count);
    for (std::int64_t i = 0; i < count; ++i) host.push_back(value(rank, i));
    device.copy_to_device(*stream, in, host.data());
  }
  static std::int32_t value(std::uint32_t rank, std::int64_t i) {
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(i) * 2654435761u ^ rank);
  }
  std::vector<std::int32_t> result() {
    std::vector<std::int32_t> values(host.size());
    device.copy_to_host(*stream, values.data(), out);
    EXPECT_TRUE(stream->synchronize().ok());
    return values;
  }

  Device& device;
  std::unique_ptr<Stream> stream;
  Arena arena;
  Buffer in, out;
  std::vector<std::int32_t> host;
};

std::vector<std::int32_t> sum_of(std::uint32_t members, std::int64_t count) {
  std::vector<std::int32_t> sum;
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint32_t all = 0;
    for (std::uint32_t rank = 0; rank < members; ++rank)
      all += static_cast<std::uint32_t>(Numbers::value(rank, i));
    sum.push_back(static_cast<std::int32_t>(all));
  }
  return sum;
}

class NcclTest : public ::testing::Test {
 protected:
  void TearDown() override {
    emulator::make_trouble(NcclTrouble::kNone);
    for (const auto& fault : emulator::take_faults()) ADD_FAILURE() << fault.text;
  }
  static std::unique_ptr<Device> open() {
    auto device = open_device({.kind = "cuda"});
    EXPECT_TRUE(device.ok()) << device.error().to_string();
    return std::move(device).value();
  }
  // As many members, each with its device; the first `offering` of them offer NCCL.
  void make_fleet(std::uint32_t size, std::uint32_t offering) {
    devices_.clear();
    for (std::uint32_t i = 0; i < size; ++i) devices_.push_back(open());
    fleet_ = std::make_unique<Fleet>(size, secret_.dir(), *devices_[0]);
    for (std::uint32_t i = 0; i < size; ++i) {
      DeviceCollectives* own = i < offering ? devices_[i]->collectives().value() : nullptr;
      fleet_->members[i].factory = std::make_unique<TcpCommunicatorFactory>(
          *fleet_->members[i].hub, *devices_[i], own, kVerdict);
    }
  }
  void make_fleet(std::uint32_t size) { make_fleet(size, size); }
  // What NCCL takes back does so on the fleet's executor.
  ~NcclTest() override { devices_.clear(); }

  Membership membership(std::uint64_t generation, std::uint32_t rank) {
    Membership membership = fleet_->membership(generation, rank);
    membership.collective = devices_[0]->collectives().value()->name();
    return membership;
  }
  Result<std::unique_ptr<Communicator>> create(std::uint64_t generation, std::uint32_t rank,
                                               Duration limit = kPatience) {
    return fleet_->members[rank].factory->create(membership(generation, rank),
                                                 SystemClock().now() + limit);
  }
  std::vector<std::unique_ptr<Communicator>> form(std::uint64_t generation,
                                                  Duration limit = kPatience) {
    std::vector<std::unique_ptr<Communicator>> all(devices_.size());
    fleet_->each([&](std::uint32_t rank) {
      auto made = create(generation, rank, limit);
      ASSERT_TRUE(made.ok()) << made.error().to_string();
      all[rank] = std::move(made).value();
    });
    return all;
  }
  // Every member adds, thrice, and votes after each.
  void adds(std::vector<std::unique_ptr<Communicator>>& all, std::int64_t count) {
    const auto expected = sum_of(static_cast<std::uint32_t>(all.size()), count);
    fleet_->each([&](std::uint32_t rank) {
      Numbers numbers(*devices_[rank], rank, count);
      for (int round = 0; round < 3; ++round) {
        const Status done = all[rank]->all_reduce_int32(*numbers.stream, numbers.in, numbers.out);
        ASSERT_TRUE(done.ok()) << done.error().to_string();
        EXPECT_EQ(numbers.result(), expected);
        ASSERT_TRUE(all[rank]->gather("a vote").ok());
      }
    });
  }
  static void until_none_lives() {
    const MonoTime deadline = soon();
    while (emulator::live_communicators() > 0 && SystemClock().now() < deadline)
      std::this_thread::yield();
    EXPECT_EQ(emulator::live_communicators(), 0u);
  }

  JobSecret secret_{"job-1"};
  std::vector<std::unique_ptr<Device>> devices_;
  std::unique_ptr<Fleet> fleet_;
};

TEST_F(NcclTest, AddsAsLinksDo) {
  for (const std::uint32_t size : {1u, 2u, 3u, 5u}) {
    make_fleet(size);
    for (const std::int64_t count : {std::int64_t{3}, std::int64_t{30001}}) {
      auto all = form(static_cast<std::uint64_t>(count));
      EXPECT_EQ(emulator::live_communicators(), size == 1 ? 0 : size);
      adds(all, count);
      all.clear();
      until_none_lives();
    }
  }
}

TEST_F(NcclTest, TheNextGenerationConnectsBesideTheOneInUse) {
  make_fleet(2);
  auto first = form(1);
  auto second = form(2);
  EXPECT_EQ(emulator::live_communicators(), 4u);
  adds(first, 100);
  first.clear();
  adds(second, 100);
}

TEST_F(NcclTest, AllGoOverLinksWhereTheFormSaysSo) {
  make_fleet(2);
  auto all = fleet_->form(1);  // its memberships name nothing
  EXPECT_EQ(emulator::live_communicators(), 0u);
  adds(all, 100);
}

TEST_F(NcclTest, WhatIsNotConnectedInTimeGoesOverLinksAndIsNotOfferedForAWhile) {
  make_fleet(3);
  const std::string name = devices_[0]->collectives().value()->name();
  EXPECT_EQ(name, "nccl-2.28.9");
  EXPECT_EQ(fleet_->members[1].factory->collective(), name);
  emulator::make_trouble(NcclTrouble::kNeverConnects);
  auto all = form(1, 4s);
  emulator::make_trouble(NcclTrouble::kNone);
  until_none_lives();
  adds(all, 1000);
  for (const FleetMember& member : fleet_->members) EXPECT_EQ(member.factory->collective(), "");
}

TEST_F(NcclTest, WhatAddsWronglyAgainIsNotOfferedForAWhile) {
  make_fleet(2);
  CommunicatorFactory& factory = *fleet_->members[1].factory;
  EXPECT_NE(factory.collective(), "");
  factory.note_wrong_sums();
  EXPECT_EQ(factory.collective(), "");
}

TEST_F(NcclTest, AFenceEndsWhoWaitsForNcclToConnect) {
  make_fleet(2);
  emulator::make_trouble(NcclTrouble::kNeverConnects);
  fleet_->each([&](std::uint32_t rank) {
    if (rank == 1) {
      while (emulator::live_communicators() < 2) std::this_thread::yield();
      for (const FleetMember& member : fleet_->members) member.factory->fence(2);
    }
    // Both members are of this test's threads, so one of them stands for the control thread, too.
    if (rank == 0) {
      std::thread other([&] { EXPECT_EQ(create(1, 1).error().code(), Code::kExpired); });
      EXPECT_EQ(create(1, 0).error().code(), Code::kExpired);
      other.join();
    }
  });
  until_none_lives();
}

// One member never adds; the other waits for its GPU until it is freed.
TEST_F(NcclTest, AnAbortFreesWhoWaitsForAGpuThatWaits) {
  for (const NcclTrouble trouble : {NcclTrouble::kNone, NcclTrouble::kSilent}) {
    make_fleet(2);
    emulator::make_trouble(trouble);
    auto all = form(1);
    Numbers numbers(*devices_[0], 0, 1000);
    std::thread waiting([&] {
      const Status done = all[0]->all_reduce_int32(*numbers.stream, numbers.in, numbers.out);
      EXPECT_EQ(done.error().code(), Code::kCancelled);
    });
    // With the other gone, NCCL says so, or nothing; neither names anybody.
    all[1].reset();
    while (emulator::live_communicators() > 1) std::this_thread::yield();
    all[0]->abort();
    waiting.join();
    EXPECT_FALSE(all[0]->fault().has_value());
    all.clear();
    until_none_lives();
  }
}

TEST_F(NcclTest, AnAbortThatDoesNotComeBackEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        make_fleet(2);
        auto all = form(1);
        emulator::make_trouble(NcclTrouble::kHangsInAbort);
        all[0]->abort();
        for (;;) ::pause();
      },
      ::testing::ExitedWithCode(kStuckStatus), "NCCL does not come back from an abort");
}

// Whichever call of either library fails: sums are right, or it is said that they are not there.
TEST_F(NcclTest, EachCallThatFailsIsToldOrMadeUpFor) {
  std::size_t calls = 0;
  for (std::size_t nth = 0; nth <= calls; ++nth) {
    emulator::reset();
    make_fleet(2);
    for (const auto& device : devices_) ASSERT_TRUE(device->collectives().ok());
    std::vector<std::unique_ptr<Numbers>> numbers;
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      numbers.push_back(std::make_unique<Numbers>(*devices_[rank], rank, 100));
      ASSERT_TRUE(numbers[rank]->stream->synchronize().ok());
    }
    emulator::start_calls();
    if (nth > 0) emulator::fail_call(nth - 1);
    std::vector<std::unique_ptr<Communicator>> all(2);
    std::array<std::atomic<bool>, 2> is_done = {};
    std::mutex mutex;
    bool has_failed = false;
    fleet_->each([&](std::uint32_t rank) {
      auto made = create(1, rank, nth == 0 ? Duration(kPatience) : Duration(500ms));
      if (!made.ok()) return;
      {
        const std::lock_guard lock(mutex);
        all[rank] = std::move(made).value();
        if (has_failed) all[rank]->abort();
      }
      const Numbers& its = *numbers[rank];
      is_done[rank] = all[rank]->all_reduce_int32(*its.stream, its.in, its.out).ok();
      if (is_done[rank]) return;
      const std::lock_guard lock(mutex);  // what the coordinator does then
      has_failed = true;
      for (const auto& each : all)
        if (each) each->abort();
    });
    if (nth == 0) calls = emulator::calls().size();
    emulator::fail_call(~std::size_t{0});
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      EXPECT_TRUE(nth > 0 || is_done[rank]);
      if (!is_done[rank]) continue;
      EXPECT_EQ(numbers[rank]->result(), sum_of(2, 100)) << "call " << nth;
    }
    all.clear();
    until_none_lives();
  }
}

}  // namespace
}  // namespace rubato::worker
