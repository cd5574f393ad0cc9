#include "operator/control/pod_failures.h"

#include "tests/unit/control/fixtures.h"

namespace rubato::control {
namespace {

kube::Pod ended(const std::string& reason, int exit_code, const std::string& of_container = "") {
  const json::Value value = parse(
      R"({"metadata":{"name":"job-w0","namespace":"ns","uid":"u"},"spec":{},"status":{"phase":"Failed",)"
      R"("reason":")" +
      reason + R"(","containerStatuses":[{"name":"worker","state":{"terminated":{"exitCode":)" +
      std::to_string(exit_code) + R"(,"reason":")" + of_container + R"("}}}]}})");
  return *kube::Pod::decode(value);
}

TEST(PodFailures, ATableOfReasonsSaysWhoseTheyAre) {
  for (const char* reason : {"Evicted", "NodeShutdown", "Preempting", "OutOfcpu", "OutOfpods"})
    EXPECT_TRUE(is_lost_to_infrastructure(ended(reason, 1))) << reason;
  EXPECT_TRUE(is_lost_to_infrastructure(ended("", 143)));
  EXPECT_TRUE(is_lost_to_infrastructure(ended("", 137)));
  EXPECT_TRUE(failed_of_itself(ended("", 137, "OOMKilled")));
  EXPECT_TRUE(failed_of_itself(ended("", 1)));
  EXPECT_TRUE(failed_of_itself(ended("DeadlineExceeded", 1)));
  EXPECT_FALSE(failed_of_itself(*pod("job-w0", "n1", "Running")));
}

// None of its containers began.
kube::Pod refused_pod(const std::string& reason) {
  kube::Pod pod = ended(reason, 0);
  pod.containers.clear();
  return pod;
}

TEST(PodFailures, OfWhatAKubeletRefusesNothingIsCharged) {
  for (const char* reason :
       {"TopologyAffinityError", "SMTAlignmentError", "NodePorts", "SysctlForbidden", "AppArmor",
        "PodOSNotSupported", "UnexpectedAdmissionError", "OutOfcpu", "AWordOfALaterRelease"})
    EXPECT_TRUE(is_lost_to_infrastructure(refused_pod(reason))) << reason;
  // Its template's activeDeadlineSeconds, and an init container that failed, are its own.
  EXPECT_TRUE(failed_of_itself(refused_pod("DeadlineExceeded")));
  kube::Pod waiting = refused_pod("");
  waiting.containers.push_back({.name = "worker", .reason = "PodInitializing"});
  EXPECT_TRUE(failed_of_itself(waiting));
  waiting.reason = "NodePorts";
  EXPECT_TRUE(is_lost_to_infrastructure(waiting));
  EXPECT_TRUE(failed_of_itself(ended("NodePorts", 1)));  // its container ran
}

TEST(PodFailures, AreDescribedInTheKubeletsWords) {
  EXPECT_EQ(describe_failure(ended("", 137, "OOMKilled")),
            "pod job-w0 failed; container worker ended with exit code 137 (OOMKilled)");
  EXPECT_EQ(describe_failure(ended("DeadlineExceeded", 1, "Error")),
            "pod job-w0 failed (DeadlineExceeded); container worker ended with exit code 1");
  EXPECT_EQ(describe_end(ended("", 1)),
            "pod job-w0 failed; container worker ended with exit code 1");
  EXPECT_EQ(describe_end(*pod("job-w0", "n1", "Succeeded")), "pod job-w0 ended without an error");
  kube::Pod unstarted = ended("", 128, "StartError");
  unstarted.node_name = "n1";
  unstarted.containers[0].message = "exec: \"rubato-agent\": executable file not found in $PATH";
  EXPECT_EQ(describe_failure(unstarted),
            "pod job-w0 on node n1 failed; container worker ended with exit code 128 (StartError): "
            "exec: \"rubato-agent\": executable file not found in $PATH");
}

// Each pod leaves an allocation once, and is counted in the write that takes it out.
TEST(PodFailures, AreCountedWhenTheyLeaveTheAllocation) {
  const auto object =
      job(1, 4, R"("allocation":{"epoch":1,"nextOrdinal":4,"gpus":4,"failedPods":7,"pods":[
      {"name":"job-w0","ordinal":0,"node":"n1","gpuType":"A","gpus":1},
      {"name":"job-w1","ordinal":1,"node":"n1","gpuType":"A","gpus":1},
      {"name":"job-w2","ordinal":2,"node":"n2","gpuType":"A","gpus":1},
      {"name":"job-w3","ordinal":3,"node":"n2","gpuType":"A","gpus":1}]})");
  const kube::Pod failed = ended("", 1);
  const auto running = pod("job-w2", "n2", "Running");
  const std::map<std::string, const kube::Pod*> pods{
      {"job-w0", &failed}, {"job-w2", running.get()}, {"job-w3", &failed}};
  api::Allocation next = *object->job.status.allocation;
  count_left(object->job, pods, next);
  EXPECT_EQ(next.failed_pods, 7);  // nobody has left
  std::erase_if(next.pods, [](const auto& pod) { return pod.ordinal < 3; });
  count_left(object->job, pods, next);
  EXPECT_EQ(next.failed_pods, 8);  // w0; w2 left as it was told
  EXPECT_EQ(next.lost_pods, 1);    // w1 is gone
}

}  // namespace
}  // namespace rubato::control
