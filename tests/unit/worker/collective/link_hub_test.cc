#include "worker/collective/link_hub.h"

#include "common/testing/refusing_executor.h"
#include "tests/unit/common/net/raw_client.h"
#include "tests/unit/worker/collective/fleet.h"
#include "worker/collective/tree_gather.h"

#include <atomic>

namespace rubato::worker {
namespace {

class LinkHubTest : public ::testing::Test {
 protected:
  Result<std::unique_ptr<Link>> dial(const FleetMember& from, const FleetMember& to,
                                     std::uint64_t generation) {
    return from.hub->dial(to.peer, generation, "ring", soon(), cancel_.get_token());
  }
  HostDevice device_;
  JobSecret secret_{"job-1"};
  std::stop_source cancel_;
};

TEST_F(LinkHubTest, CarriesFramesBothWays) {
  Fleet fleet(2, secret_.dir(), device_);
  auto there = dial(fleet.members[0], fleet.members[1], 3);
  ASSERT_TRUE(there.ok()) << there.error().to_string();
  auto here = fleet.members[1].hub->await(fleet.members[0].peer.name, 3, "ring", soon());
  ASSERT_TRUE(here.ok());
  ASSERT_TRUE(there.value()->send_frame("question", soon()).ok());
  EXPECT_EQ(here.value()->receive_frame(soon()).value(), "question");
  ASSERT_TRUE(here.value()->send_frame("answer", soon()).ok());
  EXPECT_EQ(there.value()->receive_frame(soon()).value(), "answer");
}

TEST_F(LinkHubTest, RefusesWhatIsBelowTheFence) {
  Fleet fleet(2, secret_.dir(), device_);
  fleet.members[1].hub->fence(5);
  const auto refused = dial(fleet.members[0], fleet.members[1], 4);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), Code::kExpired);
  EXPECT_TRUE(dial(fleet.members[0], fleet.members[1], 5).ok());
}

// Whatever its fence, and without a trace: who answers is reached.
TEST_F(LinkHubTest, AProbeReachesWhoAnswersAndLeavesNoLink) {
  Fleet fleet(2, secret_.dir(), device_);
  LinkHub& hub = *fleet.members[0].hub;
  const Peer other = fleet.members[1].peer;
  EXPECT_TRUE(hub.probe(other, soon(), {}));
  fleet.members[1].hub->fence(5);
  hub.fence(9);
  EXPECT_TRUE(hub.probe(other, soon(), {}));
  const auto left = fleet.members[1].hub->await(fleet.members[0].peer.name, 5, "probe",
                                                fleet.executor.now() + 10ms);
  EXPECT_EQ(left.error().code(), Code::kTimeout);
  fleet.members[1].hub.reset();
  EXPECT_FALSE(hub.probe(other, soon(), {}));
}

TEST_F(LinkHubTest, ALinkIsOfOneGenerationAlone) {
  Fleet fleet(2, secret_.dir(), device_);
  auto earlier = dial(fleet.members[0], fleet.members[1], 4);
  auto later = dial(fleet.members[0], fleet.members[1], 5);
  ASSERT_TRUE(earlier.ok() && later.ok());
  const auto got = fleet.members[1].hub->await(fleet.members[0].peer.name, 5, "ring", soon());
  ASSERT_TRUE(got.ok());
  ASSERT_TRUE(later.value()->send_frame("of five", soon()).ok());
  EXPECT_EQ(got.value()->receive_frame(soon()).value(), "of five");
}

TEST_F(LinkHubTest, AFenceDropsLinksThatWait) {
  Fleet fleet(2, secret_.dir(), device_);
  auto link = dial(fleet.members[0], fleet.members[1], 4);
  ASSERT_TRUE(link.ok());
  // Once it is placed the fence cuts it; if the fence comes first it is never placed.
  fleet.members[1].hub->fence(5);
  char byte = 0;
  EXPECT_EQ(link.value()->read_all(&byte, 1, soon()).error().code(), Code::kUnavailable);
  const auto gone = fleet.members[1].hub->await(fleet.members[0].peer.name, 4, "ring", soon());
  EXPECT_EQ(gone.error().code(), Code::kExpired);
}

TEST_F(LinkHubTest, RefusesAnotherJobAndAnotherIncarnation) {
  Fleet fleet(2, secret_.dir(), device_);
  Fleet strangers(1, secret_.dir(), device_, "job-2");  // the same certificate, another uid
  EXPECT_EQ(dial(strangers.members[0], fleet.members[0], 1).error().code(), Code::kDenied);
  FleetMember replaced;
  replaced.peer = fleet.members[1].peer;
  replaced.peer.name.incarnation = 9;
  EXPECT_EQ(dial(fleet.members[0], replaced, 1).error().code(), Code::kDenied);
}

TEST_F(LinkHubTest, RefusesACertificateOfAnotherAuthority) {
  JobSecret foreign("job-1");  // the same name, another authority
  Fleet fleet(1, secret_.dir(), device_);
  Fleet strangers(1, foreign.dir(), device_);
  const auto refused = dial(strangers.members[0], fleet.members[0], 1);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), Code::kDenied);
}

TEST_F(LinkHubTest, ADialToNobodyEndsAtItsDeadlineOrWhenCancelled) {
  Fleet fleet(1, secret_.dir(), device_);
  FleetMember nobody;
  nobody.peer = fleet.members[0].peer;
  {
    Fleet gone(1, secret_.dir(), device_);
    nobody.peer = gone.members[0].peer;  // its port is closed once `gone` is
  }
  const auto late = fleet.members[0].hub->dial(nobody.peer, 1, "ring", SystemClock().now() + 50ms,
                                               cancel_.get_token());
  EXPECT_FALSE(late.ok());
  cancel_.request_stop();
  EXPECT_EQ(dial(fleet.members[0], nobody, 1).error().code(), Code::kCancelled);
}

// A system that has no thread for a connection keeps it waiting, and the hub goes on.
TEST_F(LinkHubTest, AConnectionWaitsForAThread) {
  Fleet fleet(2, secret_.dir(), device_);
  std::atomic<int> refused = 0;
  testing::RefusingExecutor few(fleet.executor, [&](const std::string& name) {
    return name == "link-handshake" && refused < 3 && ++refused > 0;
  });
  FleetMember late;
  late.peer = {{"pod-late", 0, 1}, "127.0.0.1", 0};
  late.hub = open_hub(few, "job-1", late.peer.name, secret_.dir());
  late.peer.port = late.hub->port();
  const auto link = dial(fleet.members[0], late, 1);
  EXPECT_TRUE(link.ok()) << link.error().to_string();
  EXPECT_EQ(refused, 3);
}

// Who connects and says nothing, from as many hosts as it takes to have all places.
TEST_F(LinkHubTest, ASilentConnectionMakesRoomForAnotherHost) {
  Fleet fleet(2, secret_.dir(), device_);
  const net::Endpoint port{"127.0.0.1", fleet.members[1].peer.port};
  std::vector<std::unique_ptr<net::RawClient>> mute;
  for (const char* from : {"127.0.0.2", "127.0.0.3"})
    for (std::size_t i = 0; i < kPendingPerHost; ++i)
      mute.push_back(std::make_unique<net::RawClient>(port, from));
  const MonoTime start = SystemClock().now();
  const auto link = dial(fleet.members[0], fleet.members[1], 1);
  EXPECT_TRUE(link.ok()) << link.error().to_string();
  EXPECT_LT(SystemClock().now() - start, kLinkHandshakeLimit);
}

// Nor does one who dials end for it.
TEST_F(LinkHubTest, AGenerationWithoutAThreadIsNotFormed) {
  Fleet fleet(kTreeMembers, secret_.dir(), device_);
  testing::RefusingExecutor none(fleet.executor,
                                 [](const std::string& name) { return name == "tree-link"; });
  FleetMember last;
  last.hub = open_hub(none, "job-1", fleet.members.back().peer.name, secret_.dir());
  TcpCommunicatorFactory factory(*last.hub, device_);
  const auto made = factory.create(fleet.membership(1, kTreeMembers - 1), soon());
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code(), Code::kUnavailable);
  EXPECT_EQ(made.error().reason(), "") << "no member is to blame";
}

}  // namespace
}  // namespace rubato::worker
