#include "tests/property/step_protocol/explorer.h"

#include <gtest/gtest.h>

namespace rubato::protocol_model {
namespace {

constexpr std::size_t kStateLimit = 8'000'000;

Exploration walk(const Options& options) {
  Exploration e = explore(Model(options), kStateLimit);
  std::printf("[ walked   ] %zu states, %zu transitions, %zu complete\n", e.states, e.transitions,
              e.complete);
  return e;
}

void expect_sound(const Options& options) {
  const Exploration e = walk(options);
  EXPECT_EQ(e.violation, "") << e.story;
  EXPECT_GT(e.complete, 0u);
}

void expect_found(Options options, Bug bug) {
  options.bug = bug;
  const Exploration e = walk(options);
  EXPECT_NE(e.violation, "");
  EXPECT_NE(e.story, "");
  std::printf("[ found    ] %s, after:\n%s", e.violation.c_str(), e.story.c_str());
}

TEST(StepProtocol, SurvivesAnyCrashOrFalseSuspicion) { expect_sound({.leader_crashes = 0}); }
TEST(StepProtocol, SurvivesThemWhenTheCoordinatorDiesToo) { expect_sound({.steps = 1}); }
TEST(StepProtocol, SurvivesThemAroundARedo) {
  expect_sound({.steps = 1, .redo = true, .leader_crashes = 0});
}
TEST(StepProtocol, SurvivesThemAroundAJoin) { expect_sound({.join = true, .leader_crashes = 0}); }
TEST(StepProtocol, SurvivesThemAroundAJoinWhenTheCoordinatorDiesToo) {
  expect_sound({.steps = 1, .join = true});
}
TEST(StepProtocol, SurvivesThemAroundALeave) {
  expect_sound({.steps = 1, .leave = true, .leader_crashes = 0});
}

// The checks above are worth something only if they fail when the protocol is wrong.
TEST(StepProtocolBugs, VoteBeforeTheReductionIsComplete) {
  expect_found({.leader_crashes = 0}, Bug::kVoteBeforeReduction);
}
TEST(StepProtocolBugs, SalvageWithoutTheRound) {
  expect_found({.leader_crashes = 0}, Bug::kSalvageWithoutSeq);
}
TEST(StepProtocolBugs, NoFence) { expect_found({.leader_crashes = 0}, Bug::kNoFence); }
TEST(StepProtocolBugs, ApplyWithoutADecision) {
  expect_found({.leader_crashes = 0}, Bug::kApplyWithoutDecision);
}
// Two workers left out one after the other, and the one that stayed dies: they are asked in the
// end.
constexpr Options kTwoZombies{.steps = 1, .leader_crashes = 0, .only_dies = 2, .generations = 4};
TEST(StepProtocolBugs, ReductionReportedWhileItIsOverwritten) {
  expect_found(kTwoZombies, Bug::kKeepReductionBuffer);
}
TEST(StepProtocolBugs, MicroBatchesKeptThatAnotherWasDealt) {
  expect_found(kTwoZombies, Bug::kKeepForeignMicroBatches);
}
TEST(StepProtocolBugs, SwitchBeforeAllArePrepared) {
  expect_found({.join = true, .leader_crashes = 0}, Bug::kSwitchWithoutAll);
}

}  // namespace
}  // namespace rubato::protocol_model
