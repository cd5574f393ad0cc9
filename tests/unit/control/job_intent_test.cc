#include "operator/control/job_intent.h"

#include "tests/unit/control/fixtures.h"

namespace rubato::control {
namespace {

using coordinator::Phase;

constexpr const char* kAllocatedTwo =
    R"("allocation":{"epoch":1,"nextOrdinal":2,"gpus":2,"reason":"2 GPUs are free","pods":[
       {"name":"job-w0","ordinal":0,"node":"n1","gpuType":"A","gpus":1},
       {"name":"job-w1","ordinal":1,"node":"n2","gpuType":"A","gpus":1}]})";
constexpr const char* kNoPods =
    R"("allocation":{"epoch":2,"nextOrdinal":2,"gpus":0,"reason":"the job is suspended","pods":[]})";
constexpr const char* kSuspended = R"("suspend":true)";
constexpr MonoTime kDecidedAt{std::chrono::hours(2)};

coordinator::View view_in(Phase phase) {
  coordinator::View v;
  v.phase = phase;
  v.members = {{"job-w0", "p0", "n1", "A", 0, 1}, {"job-w1", "p1", "n2", "A", 0, 1}};
  return v;
}

// Of a suspend; `end` says whether all have stopped.
coordinator::View stopping(Phase end) {
  coordinator::View v = view_in(Phase::kStopping);
  v.stop_since = kDecidedAt - 1s;
  v.stop_reason = "the job is suspended";
  v.end = end;
  return v;
}

Decision decide(const std::shared_ptr<const JobObject>& object, const coordinator::View* seen,
                bool pods_left = true, const std::string& failure = "") {
  return decide_intent({&object->job, seen, failure, pods_left, kDecidedAt});
}

TEST(JobIntent, TrainsUnlessSomethingSaysOtherwise) {
  const auto training = view_in(Phase::kTraining);
  EXPECT_EQ(decide(job(2, 4, kAllocatedTwo), &training).intent, Intent::kTrain);
  EXPECT_EQ(decide(job(2, 4), nullptr, false).intent, Intent::kTrain);
  EXPECT_EQ(decide(job(2, 4, kAllocatedTwo, kSuspended), &training).intent, Intent::kStop);
  EXPECT_EQ(decide(job(2, 4, kAllocatedTwo), &training, true, "NonFinite").intent, Intent::kOver);
}

TEST(JobIntent, ASuspendIsCalledOffUntilAllHaveStopped) {
  const auto under_way = stopping(Phase::kWaiting);
  EXPECT_EQ(decide(job(2, 4, kAllocatedTwo), &under_way).intent, Intent::kTrain);
  EXPECT_FALSE(finishes_a_stop(job(2, 4, kAllocatedTwo)->job, &under_way));
}

TEST(JobIntent, ASuspendThatIsDoneGivesItsGpusBackFirst) {
  const auto done = stopping(Phase::kStopped);
  const auto first = decide(job(2, 4, kAllocatedTwo), &done);
  EXPECT_EQ(first.intent, Intent::kStop);
  EXPECT_EQ(first.queued_reason, "Requeued");
  const auto then = decide(job(2, 4, kNoPods), &done);  // given back; the pods have not ended yet
  EXPECT_EQ(then.intent, Intent::kStop);
  EXPECT_EQ(then.queued_reason, "WaitingForRelease");
  EXPECT_EQ(decide(job(2, 4, kNoPods), &done, false).intent, Intent::kTrain);
}

TEST(JobIntent, ANewAllocationIsNotTakenForTheStoppedOne) {
  const auto done = stopping(Phase::kStopped);
  const auto anew = job(2, 4,
                        R"("allocation":{"epoch":3,"nextOrdinal":4,"gpus":1,"pods":[
       {"name":"job-w2","ordinal":2,"node":"n1","gpuType":"A","gpus":1}]})");
  EXPECT_EQ(decide(anew, &done).intent, Intent::kTrain);
}

TEST(JobIntent, ARequeueIsCarriedThroughOnceTheWorkersWereAsked) {
  auto parked = view_in(Phase::kParked);
  parked.parked_since = kDecidedAt - 700s;
  const auto first = decide(job(2, 4, kAllocatedTwo, R"("parkSeconds":600)"), &parked);
  EXPECT_EQ(first.intent, Intent::kStop);
  auto asked = view_in(Phase::kStopping);  // not parked any more, for it writes its checkpoint
  asked.stop_since = kDecidedAt;
  asked.stop_reason = first.stop_reason;
  const auto second = decide(job(2, 4, kAllocatedTwo, R"("parkSeconds":600)"), &asked);
  EXPECT_EQ(second.intent, Intent::kStop);
  EXPECT_EQ(second.stop_reason, first.stop_reason);
  EXPECT_EQ(second.queued_reason, "Requeued");
}

TEST(JobIntent, WhoseWorkersWereEndedForGoodHasFailed) {
  const auto object = job(2, 4, kAllocatedTwo);
  const auto training = view_in(Phase::kTraining);
  EXPECT_FALSE(ended_for_good(object->job, &training));
  EXPECT_FALSE(ended_for_good(object->job, nullptr));
  auto failed = view_in(Phase::kFailed);
  failed.failure_reason = "NonFinite";
  failed.failure_message = "the loss is not a number";
  const auto told = ended_for_good(object->job, &failed);
  ASSERT_TRUE(told);
  EXPECT_EQ(told->failure_reason, "NonFinite");
  EXPECT_EQ(told->failure_message, "the loss is not a number");
}

// Its leader went before it wrote the condition, and the record does not say why.
TEST(JobIntent, ANewLeaderFailsWhomAnEarlierOneEndedForGood) {
  const auto object = job(2, 4, kAllocatedTwo);
  const auto loaded = view_in(Phase::kFailed);
  const auto told = ended_for_good(object->job, &loaded);
  ASSERT_TRUE(told);
  EXPECT_EQ(told->failure_reason, "RecoveryFailed");
  EXPECT_NE(told->failure_message.find("an earlier leader"), std::string::npos);
  const auto on_record = [](const std::string& phase) {
    return job(2, 4,
               R"("membership":{"generation":2,"leader":1,"phase":")" + phase +
                   R"(","members":[],"seq":3,"step":41})");
  };
  const auto read = ended_for_good(on_record("Failed")->job, nullptr);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->failure_reason, "RecoveryFailed");
  EXPECT_FALSE(ended_for_good(on_record("Stopped")->job, nullptr));
}

TEST(JobIntent, ThePreemptedSayWhoTookTheirPlace) {
  const auto object = job(
      2, 4,
      R"("allocation":{"epoch":2,"nextOrdinal":2,"gpus":0,"reason":"b has its GPUs","preempted":true,"pods":[]})");
  EXPECT_EQ(decide(object, nullptr).queued_reason, "Preempted");
  EXPECT_EQ(decide(object, nullptr).queued_message, "b has its GPUs");
  const auto given_back = job(  // whatever its words say
      2, 4,
      R"("allocation":{"epoch":2,"nextOrdinal":2,"gpus":0,"reason":"preempted by b","pods":[]})");
  EXPECT_EQ(decide(given_back, nullptr).queued_reason, "WaitingForRelease");
}

}  // namespace
}  // namespace rubato::control
