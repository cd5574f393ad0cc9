#include "tests/unit/worker/collective/fleet.h"

#include <atomic>
#include <numeric>

namespace rubato::worker {
namespace {

std::vector<std::int32_t> pattern(std::uint32_t rank, std::size_t count) {
  std::vector<std::int32_t> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = static_cast<std::int32_t>(static_cast<std::uint32_t>(i * 2654435761u) ^ rank);
  }
  return values;
}
Buffer buffer(std::vector<std::int32_t>& values) {
  return {values.data(), static_cast<std::int64_t>(values.size()), DType::kI32};
}

class TcpCommunicatorTest : public ::testing::Test {
 protected:
  void reduces(std::uint32_t size, std::size_t count, bool hides) {
    HostDevice device(hides);
    Fleet fleet(size, secret_.dir(), device);
    auto all = fleet.form(1);
    std::vector<std::int32_t> expected(count);
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      const auto part = pattern(rank, count);
      for (std::size_t i = 0; i < count; ++i) {
        expected[i] = static_cast<std::int32_t>(static_cast<std::uint32_t>(expected[i]) +
                                                static_cast<std::uint32_t>(part[i]));
      }
    }
    fleet.each([&](std::uint32_t rank) {
      ImmediateStream stream;
      auto in = pattern(rank, count);
      std::vector<std::int32_t> out(count);
      HopSums hops{.sent = 1, .got = 1, .excess = 1};
      for (int round = 0; round < 3; ++round) {
        const Status done = all[rank]->all_reduce_int32(stream, buffer(in), buffer(out), &hops);
        ASSERT_TRUE(done.ok()) << done.error().to_string();
        EXPECT_EQ(hops.excess, 0u);
        EXPECT_EQ(out, expected);
        EXPECT_EQ(in, pattern(rank, count));
        const auto votes = all[rank]->gather("vote of " + std::to_string(rank));
        ASSERT_TRUE(votes.ok());
        for (std::uint32_t r = 0; r < size; ++r) {
          EXPECT_EQ(votes.value()[r], "vote of " + std::to_string(r));
        }
      }
    });
  }
  JobSecret secret_{"job-1"};
};

TEST_F(TcpCommunicatorTest, SumsOverAnyNumberOfMembers) {
  for (const std::uint32_t size : {1u, 2u, 3u, 5u}) {
    for (const std::size_t count : {std::size_t{0}, std::size_t{3}, std::size_t{300001}}) {
      reduces(size, count, false);
    }
  }
}

TEST_F(TcpCommunicatorTest, SumsMemoryTheHostCannotSee) { reduces(3, 70001, true); }

TEST_F(TcpCommunicatorTest, AbortFreesAWaitingMember) {
  HostDevice device;
  Fleet fleet(2, secret_.dir(), device);
  auto all = fleet.form(1);
  std::vector<std::int32_t> in(1 << 20);
  std::vector<std::int32_t> out(1 << 20);
  std::atomic<bool> begun{false};
  std::thread waiting([&] {
    ImmediateStream stream;
    begun.store(true);
    const Status done = all[0]->all_reduce_int32(stream, buffer(in), buffer(out));
    EXPECT_EQ(done.error().code(), Code::kCancelled);
  });
  while (!begun.load()) std::this_thread::yield();
  all[0]->abort();
  waiting.join();
  EXPECT_FALSE(all[0]->fault().has_value());
}

TEST_F(TcpCommunicatorTest, ALostPeerIsNamedByItsNeighbours) {
  HostDevice device;
  Fleet fleet(3, secret_.dir(), device);
  auto all = fleet.form(1);
  all[1].reset();  // as if the process had died
  fleet.each([&](std::uint32_t rank) {
    if (rank == 1) return;
    ImmediateStream stream;
    std::vector<std::int32_t> in(3 << 20);
    std::vector<std::int32_t> out(3 << 20);
    const Status done = all[rank]->all_reduce_int32(stream, buffer(in), buffer(out));
    ASSERT_FALSE(done.ok());
    const auto fault = all[rank]->fault();
    ASSERT_TRUE(fault.has_value());
    EXPECT_EQ(fault->rank, 1u) << fault->why;
    EXPECT_EQ(fault->peer, fleet.members[1].peer.name);
  });
}

TEST_F(TcpCommunicatorTest, TheNextGenerationFormsBesideTheOneInUse) {
  HostDevice device;
  Fleet fleet(3, secret_.dir(), device);
  auto old_one = fleet.form(4);
  auto new_one = fleet.form(5);
  fleet.each([&](std::uint32_t rank) {
    EXPECT_TRUE(old_one[rank]->gather("a").ok());
    EXPECT_TRUE(new_one[rank]->gather("b").ok());
    old_one[rank]->abort();
    EXPECT_TRUE(new_one[rank]->gather("c").ok());
  });
}

TEST_F(TcpCommunicatorTest, MembersThatLostStepWithEachOtherFindOut) {
  HostDevice device;
  Fleet fleet(2, secret_.dir(), device);
  auto all = fleet.form(1);
  fleet.each([&](std::uint32_t rank) {
    if (rank == 0) {
      EXPECT_FALSE(all[0]->gather("vote").ok());
      all[0]->abort();
      return;
    }
    ImmediateStream stream;
    std::vector<std::int32_t> in(16);
    std::vector<std::int32_t> out(16);
    EXPECT_FALSE(all[1]->all_reduce_int32(stream, buffer(in), buffer(out)).ok());
    all[1]->abort();
  });
}

TEST_F(TcpCommunicatorTest, AFenceEndsAFormationThatWaits) {
  HostDevice device;
  Fleet fleet(3, secret_.dir(), device);
  std::thread forming([&] {  // member 2 never forms, so 0 waits for its link
    const auto made = fleet.members[0].factory->create(fleet.membership(7, 0), soon());
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.error().code(), Code::kExpired);
  });
  fleet.members[0].factory->fence(8);
  forming.join();
}

}  // namespace
}  // namespace rubato::worker
