#include "operator/control/placement_gate.h"

#include "fixtures.h"
#include "operator/control/caches.h"

namespace rubato::control {
namespace {

using Placing = PlacementGate::Placing;
const std::string kJob = "job-uid-1";

TEST(PlacementGate, NothingIsDecidedWhileAPodIsPlaced) {
  PlacementGate gate;
  EXPECT_FALSE(Placing(gate, kJob, 1)) << "what earlier leaders did is not known yet";
  gate.open({{kJob, 1}});
  {
    const Placing placing(gate, kJob, 1);
    ASSERT_TRUE(placing);
    EXPECT_FALSE(gate.begin_decision(kJob));
    EXPECT_TRUE(gate.begin_decision("another"));
  }
  EXPECT_TRUE(gate.begin_decision(kJob));
}

TEST(PlacementGate, NothingIsPlacedWhileADecisionIsOpenOrAfterAnOlderOne) {
  PlacementGate gate;
  gate.open({});
  ASSERT_TRUE(gate.begin_decision(kJob));
  EXPECT_FALSE(gate.begin_decision(kJob)) << "its outcome is in doubt";
  EXPECT_FALSE(Placing(gate, kJob, 1));
  gate.end_decision(kJob, 2);
  EXPECT_FALSE(Placing(gate, kJob, 1)) << "the cache does not show epoch 2 yet";
  EXPECT_TRUE(Placing(gate, kJob, 2));
}

TEST(PlacementGate, ANewLeaderPlacesNothingAfterAnAllocationThatIsNotTheNewest) {
  PlacementGate gate;
  gate.open({{kJob, 2}});
  EXPECT_FALSE(Placing(gate, kJob, 1)) << "the cache is older than what the API server has";
  EXPECT_TRUE(Placing(gate, kJob, 2));
}

TEST(PlacementGate, AJobOfWhichNothingIsKnownPlacesNothing) {
  PlacementGate gate;
  gate.open({{kJob, 2}});
  EXPECT_FALSE(Placing(gate, "another", 1));
  gate.forget_job(kJob);
  EXPECT_FALSE(Placing(gate, kJob, 2)) << "it was out of sight";
  gate.open({{kJob, 2}});
  EXPECT_TRUE(Placing(gate, kJob, 2));
  ASSERT_TRUE(gate.begin_decision("another"));
  gate.end_decision("another", 1);
  EXPECT_TRUE(Placing(gate, "another", 1));
}

TEST(PlacementGate, ADecisionThatWasNotWrittenChangesNothing) {
  PlacementGate gate;
  gate.open({{kJob, 1}});
  ASSERT_TRUE(gate.begin_decision(kJob));
  gate.end_decision(kJob);
  EXPECT_TRUE(Placing(gate, kJob, 1));
}

TEST(PlacementGate, APodCountsAsBoundUntilItIsSeenBound) {
  PlacementGate gate;
  const auto unbound = pod("job-w0", "", "Pending", kJob);
  gate.binds(*unbound, "n1", MonoTime{});
  ASSERT_EQ(gate.unseen().size(), 1U);
  EXPECT_EQ(gate.unseen().front()->node_name, "n1");
  gate.saw({nullptr, unbound});
  EXPECT_EQ(gate.unseen().size(), 1U) << "an older change";
  gate.saw({unbound, pod("job-w0", "n1", "Pending", kJob)});
  EXPECT_TRUE(gate.unseen().empty());
}

TEST(PlacementGate, APodThatWentOrWasNotBoundIsForgotten) {
  PlacementGate gate;
  const auto unbound = pod("job-w0", "", "Pending", kJob);
  gate.binds(*unbound, "n1", MonoTime{});
  gate.saw({unbound, nullptr});
  EXPECT_TRUE(gate.unseen().empty());
  gate.binds(*unbound, "n1", MonoTime{});
  EXPECT_TRUE(gate.unseen_since_before(MonoTime{}).empty());
  EXPECT_EQ(gate.unseen_since_before(MonoTime{} + 1s).size(), 1U);
  gate.not_bound(unbound->meta.uid);
  EXPECT_TRUE(gate.unseen().empty());
}

TEST(PlacementGate, TheCacheIsReadAsItWillBe) {
  const auto old = pod("job-w0", "", "Pending", kJob);
  const auto bound = pod("job-w0", "n1", "Pending", kJob);
  const auto absent = pod("job-w1", "n2", "Pending", kJob);
  std::vector<std::shared_ptr<const kube::Pod>> pods{pod("a", "n9", "Running"), old,
                                                     pod("z", "n9", "Running")};
  add_unseen({bound, absent}, pods);
  ASSERT_EQ(pods.size(), 4U);
  EXPECT_EQ(pods[1]->node_name, "n1");
  EXPECT_EQ(pods[2]->meta.name, "job-w1");
}

}  // namespace
}  // namespace rubato::control
