// planted_rows: puts the faults of docs/reliability.md, "Promises", back as they were, one at a
// time (common/planted.h), and wants a test of that row to fail with the fault and to pass without
// it. It is linked with the objects of one test program at a time, and planted copies of the files
// that these test:
//   planted_coordinator_test coordinator_test
#include "common/planted.h"

#include <cstdio>
#include <cstring>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace rubato {
namespace {
Bug present = Bug::kNone;
}

bool planted(Bug bug) { return bug == present; }

namespace {

constexpr unsigned kTestSeconds = 300;  // for a test, which may hang with its fault

struct Row {
  int number;  // in the table
  Bug bug;
  const char* program;
  const char* test;
};

constexpr const char* kCoordinator = "coordinator_test";
constexpr const char* kStep = "step_test";
constexpr const char* kStories = "sim_stories_test";

constexpr Row kRows[] = {
    {1, Bug::kAnyoneEnds, kCoordinator,
     "JobMachineRefusal.ANewcomerThatCannotTakePartDisturbsNobody"},
    {2, Bug::kJudgeUnheard, kCoordinator, "JobMachineEvidence.SilenceIsJudgedUpToWhatIsTakenDown"},
    {3, Bug::kDamageIsFinal, kStep,
     "EngineCheckpointTest.ADamagedOneIsNamedAndSetAsideAndAnOlderOneTried"},
    {4, Bug::kOldAllocation, "control_test",
     "PlacementGate.ANewLeaderPlacesNothingAfterAnAllocationThatIsNotTheNewest"},
    {4, Bug::kOldAllocation, kStories,
     "FoundStories.AGpuIsNotPromisedTwiceByALeaderWhoseJobsAreOld"},
    {4, Bug::kNobodyRises, kCoordinator,
     "JobMachineChange.AllRiseToAGenerationThatANewcomerDoesNotRefuse"},
    {5, Bug::kStepsAlone, kCoordinator, "JobMachineLook.DigestsAreComparedAndNotStepsAlone"},
    {5, Bug::kStepsAlone, kStep, "FoldVotes.TheMinorityIsNamed"},
    {6, Bug::kStepsWait, kStep, "EngineCheckpointTest.ASlowDiskCostsNoStep"},
    {7, Bug::kOneDonor, kCoordinator, "JobMachineChange.EightNewcomersAtOnceShareTheDonors"},
    {8, Bug::kNoOwner, "worker_checkpoint_test",
     "CheckpointTest.AnotherJobsPathIsRefusedBeforeAnythingIsOverwritten"},
    {9, Bug::kOneTry, kStep, "EngineCheckpointTest.TheLastCheckpointIsTriedAgainWhileStateIsHeld"},
    {10, Bug::kLeaseAlone, "kube_sim_test",
     "LeaderElection.WhoTakesTheLeaseLeadsAboveAllThatIsNamed"},
    {11, Bug::kAnyGrace, kCoordinator, "JobMachineEnds.AStepThatIsLongerThanTheStopIsAbandoned"},
    {12, Bug::kLookOnce, kCoordinator, "JobMachineLook.AStartAsksWhatIsOnDiskNow"},
    {13, Bug::kRestartUnreached, kCoordinator,
     "JobMachineLinks.ASplitCostsOneGenerationAndTheLargerPartGoesOn"},
    {14, Bug::kAttemptsUnsaved, kStep,
     "EngineStateTest.TheAttemptsAtTheOpenStepGoOnFromACheckpoint"},
    {14, Bug::kBlindMembership, kCoordinator,
     "RecordStoreTest.AnotherJobOfTheSameNameIsNotWritten"},
    {14, Bug::kAnyGeneration, kCoordinator,
     "JobMachineLeader.AGenerationThatNobodyCanHaveToldIsNotFollowed"},
    {15, Bug::kForgetRecomputed, kCoordinator,
     "JobMachineLeader.StepsThatAreComputedAgainAreOnRecord"},
};

// In a process of its own, which a fault may end or hang.
bool passes(const Row& row, Bug bug) {
  std::fflush(stdout);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(kTestSeconds);
    present = bug;
    testing::GTEST_FLAG(filter) = row.test;
    // What a test says that is to fail, no one need read.
    if (bug != Bug::kNone && (std::freopen("/dev/null", "w", stdout) == nullptr ||
                              std::freopen("/dev/null", "w", stderr) == nullptr))
      ::_exit(0);
    const int failed = RUN_ALL_TESTS();
    std::fflush(stdout);
    ::_exit(failed);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int run(const char* program) {
  int rows = 0;
  int wrong = 0;
  for (const Row& row : kRows) {
    if (std::strcmp(row.program, program) != 0) continue;
    ++rows;
    const bool is_green = passes(row, Bug::kNone);
    const bool is_red = !passes(row, row.bug);  // nor does it fail when there is no such test
    std::printf("row %2d: %s %s without its fault, %s with it\n", row.number, row.test,
                is_green ? "passes" : "FAILS", is_red ? "fails" : "PASSES");
    if (!is_green || !is_red) ++wrong;
  }
  if (rows == 0) std::printf("no row is held by %s\n", program);
  return rows > 0 && wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace rubato

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  return argc == 2 ? rubato::run(argv[1]) : 2;
}
