#include "kube/leader_election.h"

#include "sim_fixture.h"

#include <functional>

#include <gtest/gtest.h>

namespace rubato::kube {
namespace {

using testing::SimProcess;

const Key kLeaseKey{"default", "rubato-operator"};

// Does what it is asked to write, and says that it failed.
struct HalfHeard : FaultHook {
  std::optional<Error> before(const Operation&) override { return std::nullopt; }
  std::optional<Error> after(const Operation& operation) override {
    if (operation.verb != Verb::kUpdate) return std::nullopt;
    return Error(Code::kInternal, "500 after the effect");
  }
};

struct Replica {
  Replica(SimWorld& world, const std::string& name, std::uint64_t seed, FaultHook* hook = nullptr)
      : process(world.sim.process(name)),
        client(world.server, process, hook, seed),
        elector(client, process, world.metrics, config(name, seed)) {}
  static LeaderElectionConfig config(const std::string& name, std::uint64_t seed) {
    LeaderElectionConfig config;
    config.lease = kLeaseKey;
    config.identity = name;
    config.address = name + ":4430";
    config.seed = seed;
    return config;
  }
  ~Replica() {
    process.thaw();  // a frozen task cannot be joined
  }
  void start() {
    elector.start([this](const Error&) { ++lost; });
  }
  SimProcess& process;
  MemoryClient client;
  LeaderElector elector;
  int lost = 0;
};

// The first leads, and the second has stood by for a while.
bool stand_by(SimWorld& world, Replica& leader, Replica& standby) {
  leader.start();
  const bool leads = world.sim.run_until([&] { return leader.elector.is_leader(); }, 30s);
  standby.start();
  world.sim.run_for(10s);
  return leads;
}

// The leader dies: the other one leads, and not before the Lease is over.
void expect_takeover(SimWorld& world, Replica& leader, Replica& standby,
                     const std::function<void()>& also) {
  const MonoTime crash = world.sim.now();
  leader.process.crash();
  also();
  ASSERT_TRUE(world.sim.run_until([&] { return standby.elector.is_leader(); }, 60s));
  EXPECT_GE(world.sim.now() - crash, 13s);  // 15 s after its last renewal
  EXPECT_EQ(standby.elector.epoch(), 2);
}

TEST(LeaderElection, OneLeadsAndOthersKnowIt) {
  SimWorld world(1);
  Replica a(world, "a", 1);
  Replica b(world, "b", 2);
  a.start();
  ASSERT_TRUE(world.sim.run_until([&] { return a.elector.is_leader(); }, 30s));
  b.start();
  world.sim.run_for(120s);
  EXPECT_TRUE(a.elector.is_leader());
  EXPECT_FALSE(b.elector.is_leader());
  EXPECT_EQ(a.elector.epoch(), 1);
  EXPECT_EQ(b.elector.epoch(), 0);
  EXPECT_EQ(b.elector.observed().holder, "a");
  EXPECT_EQ(b.elector.observed().address, "a:4430");
  EXPECT_GT(a.elector.valid_until(), a.process.now() + 10s);
}

TEST(LeaderElection, ReleaseHandsOverAtOnce) {
  SimWorld world(1);
  Replica a(world, "a", 1);
  Replica b(world, "b", 2);
  ASSERT_TRUE(stand_by(world, a, b));
  bool released = false;
  Task task = a.process.spawn("release", [&](std::stop_token) {
    EXPECT_TRUE(a.elector.release().ok());
    released = true;
  });
  ASSERT_TRUE(world.sim.run_until([&] { return b.elector.is_leader(); }, 6s));
  EXPECT_TRUE(released);
  EXPECT_FALSE(a.elector.is_leader());
  EXPECT_EQ(a.lost, 0);
  EXPECT_EQ(b.elector.epoch(), 2);
}

// `kubectl annotate lease`, between the last renewal and the end.
TEST(LeaderElection, ALeaseThatSomebodyWroteIsReleasedAllTheSame) {
  SimWorld world(1);
  Replica a(world, "a", 1);
  Replica b(world, "b", 2);
  ASSERT_TRUE(stand_by(world, a, b));
  Task task = a.process.spawn("release", [&](std::stop_token) {
    const json::Value note = json::Value::object(
        {{"metadata",
          json::Value::object({{"annotations", json::Value::object({{"note", "seen"}})}})}});
    EXPECT_TRUE(world.server.patch(types::kLease, kLeaseKey, PatchType::kMerge, note).ok());
    EXPECT_TRUE(a.elector.release().ok());
  });
  ASSERT_TRUE(world.sim.run_until([&] { return b.elector.is_leader(); }, 6s));
  EXPECT_EQ(b.elector.epoch(), 2);
}

// Of another one by then: frozen for longer than its time, for example.
TEST(LeaderElection, WhatAnotherHoldsIsNotReleased) {
  SimWorld world(1);
  Replica a(world, "a", 1);
  a.start();
  ASSERT_TRUE(world.sim.run_until([&] { return a.elector.is_leader(); }, 30s));
  Task task = a.process.spawn("release", [&](std::stop_token) {
    const json::Value theirs =
        json::Value::object({{"spec", json::Value::object({{"holderIdentity", "somebody"}})}});
    EXPECT_TRUE(world.server.patch(types::kLease, kLeaseKey, PatchType::kMerge, theirs).ok());
    EXPECT_TRUE(a.elector.release().ok());
  });
  world.sim.run_for(1s);
  const json::Value lease = world.server.get(types::kLease, kLeaseKey).value();
  EXPECT_EQ(lease["spec"]["holderIdentity"].string_or(""), "somebody");
}

TEST(LeaderElection, CrashIsFollowedAfterTheLease) {
  SimWorld world(1);
  Replica a(world, "a", 1);
  Replica b(world, "b", 2);
  ASSERT_TRUE(stand_by(world, a, b));
  expect_takeover(world, a, b, [] {});
}

TEST(LeaderElection, ALostLeaseIsLostForGood) {
  SimWorld world(1);
  Replica a(world, "a", 1);
  a.start();
  ASSERT_TRUE(world.sim.run_until([&] { return a.elector.is_leader(); }, 30s));
  EXPECT_FALSE(a.elector.is_lost());
  a.client.disconnect();
  ASSERT_TRUE(world.sim.run_until([&] { return a.lost == 1; }, 60s));
  a.client.reconnect();
  world.sim.run_for(120s);
  EXPECT_TRUE(a.elector.is_lost());
  EXPECT_FALSE(a.elector.is_leader());
}

// Somebody deletes the Lease: the leader writes it again, in the same epoch. Who looks first finds
// nothing, and does not lead beside it.
TEST(LeaderElection, SurvivesTheDeletionOfItsLease) {
  SimWorld world(1);
  Replica a(world, "a", 1);
  Replica b(world, "b", 2);
  ASSERT_TRUE(stand_by(world, a, b));
  for (int i = 0; i < 40; ++i) {
    ASSERT_TRUE(world.server.remove(types::kLease, kLeaseKey).ok());
    world.sim.run_for(10s + i * 100ms);
    EXPECT_TRUE(a.elector.is_leader()) << i;
    EXPECT_FALSE(b.elector.is_leader()) << i;
    EXPECT_EQ(a.elector.epoch(), 1) << i;
    EXPECT_TRUE(world.server.get(types::kLease, kLeaseKey).ok()) << i;
  }
}

TEST(LeaderElection, ADeletedLeaseOfADeadLeaderIsTakenWhenItsTimeIsOver) {
  SimWorld world(1);
  Replica a(world, "a", 1);
  Replica b(world, "b", 2);
  ASSERT_TRUE(stand_by(world, a, b));
  expect_takeover(world, a, b,
                  [&] { ASSERT_TRUE(world.server.remove(types::kLease, kLeaseKey).ok()); });
}

// Nobody who remembers the Lease is left; what its leaders wrote is.
TEST(LeaderElection, WhoTakesTheLeaseLeadsAboveAllThatIsNamed) {
  SimWorld world(1);
  LeaderElectionConfig config = Replica::config("a", 1);
  std::int64_t named = 7;
  config.epoch_floor = [&] { return named; };
  SimProcess& process = world.sim.process("a");
  MemoryClient client(world.server, process, nullptr, 1);
  LeaderElector elector(client, process, world.metrics, config);
  elector.start([](const Error&) {});
  ASSERT_TRUE(world.sim.run_until([&] { return elector.is_leader(); }, 30s));
  EXPECT_EQ(elector.epoch(), 8);
  const auto transitions = [&] {
    return world.server.get(types::kLease, kLeaseKey).value()["spec"]["leaseTransitions"].int_or(0);
  };
  EXPECT_EQ(transitions(), 8) << "written before it leads";
  named = 11;
  Task task =
      process.spawn("release", [&](std::stop_token) { EXPECT_TRUE(elector.release().ok()); });
  world.sim.run_for(1s);
  EXPECT_EQ(transitions(), 11) << "the next one need not have heard of it";
  Replica b(world, "b", 2);
  b.start();
  ASSERT_TRUE(world.sim.run_until([&] { return b.elector.is_leader(); }, 30s));
  EXPECT_EQ(b.elector.epoch(), 12);
}

TEST(LeaderElection, AWriteThatOnlySeemsToFailIsKnownByWhatItLeft) {
  SimWorld world(1);
  Replica a(world, "a", 1);
  a.start();
  ASSERT_TRUE(world.sim.run_until([&] { return a.elector.is_leader(); }, 30s));
  a.process.crash();
  HalfHeard hook;
  Replica b(world, "b", 2, &hook);
  b.start();
  ASSERT_TRUE(world.sim.run_until([&] { return b.elector.is_leader(); }, 60s));
  EXPECT_EQ(b.elector.epoch(), 2);
  world.sim.run_for(120s);
  EXPECT_TRUE(b.elector.is_leader());
  EXPECT_EQ(b.lost, 0);
}

// Cuts, freezes and faults at random: never two leaders at once, epochs only grow, and when all is
// well again somebody leads.
TEST(LeaderElectionProperty, NeverTwoLeaders) {
  for (std::uint64_t seed = 1; seed <= 15; ++seed) {
    SimWorld world(seed);
    std::vector<std::unique_ptr<Replica>> replicas;
    for (std::uint64_t i = 0; i < 3; ++i) {
      replicas.push_back(std::make_unique<Replica>(world, "r" + std::to_string(i), seed * 10 + i));
      replicas.back()->start();
    }
    Rng rng(seed);
    std::int64_t last_epoch = 0;
    std::string last_leader;
    const auto look = [&] {
      int leaders = 0;
      for (auto& replica : replicas) {
        if (!replica->elector.is_leader()) continue;
        ++leaders;
        const std::int64_t epoch = replica->elector.epoch();
        if (replica->process.name() != last_leader) {
          EXPECT_GT(epoch, last_epoch) << "seed " << seed;
        }
        last_epoch = epoch;
        last_leader = replica->process.name();
      }
      EXPECT_LE(leaders, 1) << "seed " << seed << " at "
                            << world.sim.now().time_since_epoch().count();
    };
    for (int step = 0; step < 200; ++step) {
      Replica& replica = *replicas[rng.below(replicas.size())];
      switch (rng.below(8)) {
        case 0:
          replica.client.disconnect();
          break;
        case 1:
          replica.process.freeze();
          break;
        default:
          replica.client.reconnect();
          replica.process.thaw();
      }
      for (int i = 0; i < 20; ++i) {
        world.sim.run_for(250ms);
        look();
      }
      if (HasFailure()) FAIL() << "seed " << seed << " step " << step;
      // A replica that lost the lease has ended, and starts anew.
      for (std::size_t i = 0; i < replicas.size(); ++i) {
        if (replicas[i]->lost == 0) continue;
        replicas[i] = std::make_unique<Replica>(
            world, "r" + std::to_string(i) + "-" + std::to_string(step), rng.next());
        replicas[i]->start();
      }
    }
  }
}

}  // namespace
}  // namespace rubato::kube
