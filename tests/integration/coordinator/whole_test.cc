// The coordinator, agents and workers together, as real processes.
#include "tests/integration/coordinator/job_processes.h"

#include <csignal>

#include <gtest/gtest.h>

namespace rubato::coordinator {
namespace {

constexpr std::uint64_t kSteps = 400;
constexpr auto kPace = 10ms;  // of a micro-batch while something is to happen before the end

// Nobody is silent in these stories, but a busy machine may be for a while.
JobOptions patient() {
  JobOptions options;
  options.steps = kSteps;
  options.timing.silence = 60s;
  return options;
}

const std::map<std::uint64_t, std::string>& undisturbed() {
  static const std::map<std::uint64_t, std::string> kLosses = [] {
    JobProcesses job(patient());
    job.lead(1);
    job.start_pod();
    EXPECT_TRUE(job.wait([&] { return job.view().phase == Phase::kFinished; }))
        << job.view().reason;
    EXPECT_EQ(job.wait_exit(*job.pods[0]), 0);
    return job.losses();
  }();
  return kLosses;
}

void expect_equal_losses(const JobProcesses& job) {
  const auto losses = job.losses();
  EXPECT_EQ(losses.size(), kSteps);
  EXPECT_EQ(losses, undisturbed());
}

bool reaches(JobProcesses& job, std::uint64_t step) {
  return job.wait([&] { return job.view().step >= step; });
}

std::size_t size_of(JobProcesses& job) { return job.view().members.size(); }

void print_changes(const JobProcesses& job) {
  for (const Change& change : job.view().changes)
    std::printf("[ change   ] %s %u -> %u: stall %.3f s, detect %.3f s, salvaged %u of %u (%s)\n",
                change.kind.c_str(), change.from, change.to, change.stall_seconds,
                change.detect_seconds, change.salvaged, change.salvaged + change.recomputed,
                change.reason.c_str());
}

TEST(Whole, LossesCrashesJoinsAndALeaveChangeNoBit) {
  JobProcesses job(patient());
  job.pace(kPace);
  job.start_workers = 3;
  job.lead(1);
  for (int i = 0; i < 3; ++i) job.start_pod();
  ASSERT_TRUE(reaches(job, 20)) << job.view().reason;
  EXPECT_EQ(size_of(job), 3u);

  // The power of one node goes.
  std::uint64_t before = job.generation();
  job.kill_pod(*job.pods[1]);
  ASSERT_TRUE(job.wait([&] { return job.generation() > before && size_of(job) == 2; }));
  job.pods[1]->wanted = false;
  job.start_pod();  // and another one comes
  ASSERT_TRUE(job.wait([&] { return size_of(job) == 3; })) << job.view().reason;
  ASSERT_TRUE(reaches(job, job.view().step + 10));

  // A worker crashes; its agent starts it anew.
  const auto workers = job.workers(*job.pods[0]);
  ASSERT_EQ(workers.size(), 1u);
  before = job.generation();
  ::kill(workers[0], SIGKILL);
  ASSERT_TRUE(job.wait([&] { return job.generation() >= before + 2 && size_of(job) == 3; }))
      << job.view().reason;
  ASSERT_TRUE(reaches(job, job.view().step + 10));

  // One leaves as planned, and its agent ends with status 0.
  job.pods[2]->leaving = true;
  job.wish();
  EXPECT_EQ(job.wait_exit(*job.pods[2]), 0);
  job.pace(0ms);
  ASSERT_TRUE(job.wait([&] { return job.view().phase == Phase::kFinished; })) << job.view().reason;
  print_changes(job);
  EXPECT_EQ(job.wait_exit(*job.pods[0]), 0);
  EXPECT_EQ(job.wait_exit(*job.pods[3]), 0);
  expect_equal_losses(job);
}

TEST(Whole, TrainingGoesOnWithoutACoordinatorAndTheNextOneFindsIt) {
  JobProcesses job(patient());
  job.pace(kPace);
  job.start_workers = 2;
  job.lead(1);
  job.start_pod();
  job.start_pod();
  ASSERT_TRUE(reaches(job, 20)) << job.view().reason;
  const auto workers = job.workers(*job.pods[0]);
  job.stop_leading();
  const std::uint64_t before = job.losses().size();
  ASSERT_TRUE(job.wait([&] { return job.losses().size() >= before + 20; })) << "it stood still";
  job.lead(2);
  ASSERT_TRUE(job.wait([&] { return job.view().phase == Phase::kTraining; })) << job.view().reason;
  EXPECT_EQ(job.generation(), 1u);  // nobody was disturbed
  EXPECT_EQ(job.workers(*job.pods[0]), workers);
  job.pace(0ms);
  ASSERT_TRUE(job.wait([&] { return job.view().phase == Phase::kFinished; }));
  EXPECT_EQ(job.wait_exit(*job.pods[0]), 0);
  expect_equal_losses(job);
}

TEST(Whole, StopWritesACheckpointAndTheJobResumesFromIt) {
  JobProcesses job(patient());
  job.pace(kPace);
  job.lead(1);
  job.start_pod();
  ASSERT_TRUE(reaches(job, 30));
  job.wish(true);
  ASSERT_TRUE(job.wait([&] { return job.view().phase == Phase::kStopped; })) << job.view().reason;
  EXPECT_EQ(job.wait_exit(*job.pods[0]), 0);
  const std::uint64_t stopped_at = job.view().step;
  EXPECT_EQ(job.view().checkpoint_step, stopped_at);
  job.pods[0]->wanted = false;
  job.stop_leading();
  job.wish(false);
  job.pace(0ms);
  job.lead(2);
  job.start_pod();
  ASSERT_TRUE(job.wait([&] { return job.view().phase == Phase::kFinished; })) << job.view().reason;
  EXPECT_EQ(job.view().recomputed_steps, 0u);
  EXPECT_EQ(job.wait_exit(*job.pods[1]), 0);
  expect_equal_losses(job);
}

}  // namespace
}  // namespace rubato::coordinator
