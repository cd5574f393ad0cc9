// What a capture makes of the waits that the leader remembers, and of nodes' signs of life.
#include "operator/control/cluster_view.h"
#include "operator/control/node_fit.h"
#include "tests/unit/control/fixtures.h"

namespace rubato::control {
namespace {

World at_eight() {
  World w;
  w.nodes = {node("n1", 2)};
  w.now = MonoTime{std::chrono::hours(1)};
  w.wall = *parse_rfc3339("2026-11-21T08:00:00Z");
  return w;
}

std::string why_not(const World& w) { return capture(w, config()).nodes.at(0).why_not; }
std::string spare_only(const World& w) { return capture(w, config()).jobs.at(0).spare_only; }
std::string refusal_of(const World& w) { return capture(w, config()).jobs.at(0).refused; }

TEST(Capture, ASuspectNodeGetsNothingUntilItsLeaseRenews) {
  World w = at_eight();
  w.suspects["n1"] = w.now - 5s;
  EXPECT_NE(why_not(w), "");
  w.renewals["n1"] = {.seen = w.now - 6s, .duration = 40s};
  EXPECT_NE(why_not(w), "");
  w.renewals["n1"] = {.seen = w.now - 1s, .duration = 40s};
  EXPECT_EQ(why_not(w), "");
  w.renewals["n1"] = {.seen = w.now - 41s, .duration = 40s};
  w.suspects.clear();
  EXPECT_EQ(why_not(w), "its Lease is not renewed");
}

// Its status says so later. It is asked again for each decision, for a plan takes its time.
TEST(Capture, AJobWhoseWorkersAreDoneIsDecidedOnNoMore) {
  World w = at_eight();
  w.jobs = {job(1, 2)};
  coordinator::View seen;
  w.view_of = [&](const std::string&) { return std::optional(seen); };
  const std::string& uid = w.jobs[0]->job.meta.uid;
  EXPECT_FALSE(has_ended(w, uid));
  EXPECT_EQ(capture(w, config()).jobs.size(), 1u);
  for (const auto phase : {coordinator::Phase::kFinished, coordinator::Phase::kFailed}) {
    seen.phase = phase;
    EXPECT_TRUE(has_ended(w, uid));
    EXPECT_TRUE(capture(w, config()).jobs.empty());
  }
}

TEST(Capture, ACordonedNodeIsNotSilent) {
  const MonoTime now{std::chrono::hours(1)};
  const auto cordoned = node("n1", 2, R"("unschedulable":true)");
  const Renewal renewal{.seen = now - 41s, .duration = 40s};
  EXPECT_EQ(why_silent(*cordoned, nullptr, {}, now, config()), "");
  EXPECT_EQ(why_silent(*cordoned, &renewal, {}, now, config()), "its Lease is not renewed");
  EXPECT_EQ(why_unschedulable(*cordoned, &renewal, {}, now, config()), "cordoned");
}

TEST(Capture, AJobWhoseStartFailedGetsWhatIsFreeUntilItsTimeOrAnotherSpec) {
  World w = at_eight();
  w.jobs = {job(1, 2)};
  const api::TrainingJob& made = w.jobs[0]->job;
  w.failed_starts[made.meta.uid] = {2, made.meta.generation, w.now + 1s};
  EXPECT_EQ(spare_only(w),
            "nobody makes room for it before 2026-11-21T08:00:01Z, for its pods did not start in "
            "time, 2 times in a row");
  w.failed_starts[made.meta.uid].spare_only_until = w.now;
  EXPECT_EQ(spare_only(w), "");
  w.failed_starts[made.meta.uid] = {2, made.meta.generation + 1, w.now + 1s};
  EXPECT_EQ(spare_only(w), "");
}

TEST(Capture, AWallClockThatIsSetChangesNoWait) {
  World w = at_eight();
  w.jobs = {job(1, 2)};
  const std::string& uid = w.jobs[0]->job.meta.uid;
  w.held_back[uid] = {w.now + 30s, "GangTimeout", "no pod started"};
  EXPECT_EQ(refusal_of(w), "no pod started; tried again at 2026-11-21T08:00:30Z");
  w.renewals["n1"] = {.seen = w.now - 1s, .duration = 40s};
  for (const Duration jump : {Duration(-8h), Duration(8h)}) {
    w.wall += jump;
    EXPECT_NE(refusal_of(w), "");
    EXPECT_EQ(why_not(w), "");
  }
  w.wall -= 8h;
  w.now += 30s;
  EXPECT_EQ(refusal_of(w), "");
  w.now += 10s;
  EXPECT_EQ(why_not(w), "its Lease is not renewed");
}

// As a leader whose clock was an hour ahead left it.
TEST(Capture, ANodeIsNotAvoidedForLongerThanAnybodyWaits) {
  World w = at_eight();
  const auto avoided = [&](const char* until) {
    w.jobs = {job(1, 2,
                  R"("avoidedNodes":[{"node":"n1","reason":"DataNotFound","times":1,"until":")" +
                      std::string(until) + R"("}])")};
    return !capture(w, config()).jobs.at(0).avoid.empty();
  };
  EXPECT_TRUE(avoided("2026-11-21T08:30:00Z"));
  EXPECT_FALSE(avoided("2026-11-21T09:00:30Z"));
  w.gang_start = std::chrono::hours(2);  // so long a pod may take
  EXPECT_TRUE(avoided("2026-11-21T09:00:30Z"));
}

}  // namespace
}  // namespace rubato::control
