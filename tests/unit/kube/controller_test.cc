#include "kube/controller.h"

#include "sim_fixture.h"

#include <gtest/gtest.h>

namespace rubato::kube {
namespace {

const Key kKey{"ns", "a"};

struct Observed {
  std::vector<Duration> times;  // of the reconciles, since the first add
  MonoTime start;
};

// Runs one controller whose reconciles answer with `outcomes` in turn, then with done().
Observed run_with(const std::vector<Outcome>& outcomes) {
  SimWorld world(1);
  Observed run;
  ControllerConfig config;
  config.name = "test";
  Controller controller(world.home, world.metrics, config,
                        [&](const Key& key, const ReconcileContext&) {
                          EXPECT_EQ(key, kKey);
                          run.times.push_back(world.home.now() - run.start);
                          const std::size_t n = run.times.size();
                          return n <= outcomes.size() ? outcomes[n - 1] : done();
                        });
  controller.start();
  world.sim.settle();
  run.start = world.home.now();
  controller.queue().add(kKey);
  world.sim.run_for(std::chrono::hours(1));
  return run;
}

TEST(Controller, DoneIsDone) { EXPECT_EQ(run_with({done()}).times.size(), 1u); }

TEST(Controller, ComesBackAfterTheTimeAsked) {
  const Observed run = run_with({Outcome::requeue_after(30s)});
  ASSERT_EQ(run.times.size(), 2u);
  EXPECT_EQ(run.times[1], 30s);
}

TEST(Controller, ErrorsBackOff) {
  const Error conflict(Code::kConflict, "changed");
  const Observed run = run_with({conflict, conflict, conflict});
  ASSERT_EQ(run.times.size(), 4u);
  EXPECT_EQ(run.times[1], 5ms);
  EXPECT_EQ(run.times[2], 15ms);
  EXPECT_EQ(run.times[3], 35ms);
}

TEST(Controller, ErrorsThatTellWhen) {
  Error busy(Code::kExhausted, "slow down");
  busy.set_retry_after(std::chrono::seconds(7));
  const Observed run = run_with({busy, Error(Code::kInvalid, "never")});
  ASSERT_EQ(run.times.size(), 2u);  // the last one is terminal
  EXPECT_EQ(run.times[1], 7s);
}

TEST(Controller, WhatIsForbiddenForLongIsAskedForSeldom) {
  const Observed run = run_with(std::vector<Outcome>(kDeniedSoon + 2, Error(Code::kDenied, "no")));
  ASSERT_EQ(run.times.size(), kDeniedSoon + 3u);
  EXPECT_EQ(run.times[1], 5ms);
  EXPECT_LT(run.times[kDeniedSoon], 30s);
  EXPECT_EQ(run.times[kDeniedSoon + 1] - run.times[kDeniedSoon], Duration(kDeniedRetry));
  EXPECT_EQ(run.times[kDeniedSoon + 2] - run.times[kDeniedSoon + 1], Duration(kDeniedRetry));
}

TEST(Controller, WhoIsNotKnownNowMayBeSoon) {
  Error unknown(Code::kDenied, "Unauthorized");
  unknown.set_reason("Unauthorized");
  const Observed run = run_with({unknown});
  ASSERT_EQ(run.times.size(), 2u);
  EXPECT_EQ(run.times[1], 5ms);
}

TEST(Controller, WaitsForItsCaches) {
  SimWorld world(1);
  bool synced = false;
  int reconciled = 0;
  ControllerConfig config;
  config.name = "test";
  config.synced = {[&] { return synced; }};
  Controller controller(world.home, world.metrics, config,
                        [&](const Key&, const ReconcileContext&) {
                          ++reconciled;
                          return done();
                        });
  controller.start();
  controller.queue().add(kKey);
  world.sim.run_for(10s);
  EXPECT_EQ(reconciled, 0);
  synced = true;
  EXPECT_TRUE(world.sim.run_until([&] { return reconciled == 1; }, 1s));
}

TEST(Controller, StopDrains) {
  SimWorld world(1);
  int reconciled = 0;
  ControllerConfig config;
  config.name = "test";
  config.workers = 2;
  Controller controller(world.home, world.metrics, config,
                        [&](const Key&, const ReconcileContext&) {
                          world.home.sleep_for(100ms);
                          ++reconciled;
                          return done();
                        });
  controller.start();
  for (int i = 0; i < 20; ++i) controller.queue().add(Key{"ns", std::to_string(i)});
  bool stopped = false;
  Task task = world.home.spawn("stop", [&](std::stop_token) {
    controller.stop(5s);
    stopped = true;
  });
  ASSERT_TRUE(world.sim.run_until([&] { return stopped; }, 10s));
  EXPECT_EQ(reconciled, 20);
}

}  // namespace
}  // namespace rubato::kube
