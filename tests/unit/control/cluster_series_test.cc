#include "operator/control/cluster_series.h"

#include "operator/control/metric_catalog.h"
#include "tests/unit/control/fixtures.h"

#include <set>

#include <fmt/format.h>

namespace rubato::control {
namespace {

constexpr const char* kRunning =
    R"("allocation":{"epoch":1,"nextOrdinal":3,"gpus":3,"pods":[
         {"name":"job-w0","ordinal":0,"node":"n1","gpuType":"A","gpus":1},
         {"name":"job-w1","ordinal":1,"node":"n2","gpuType":"B","gpus":2}]},
       "membership":{"generation":2,"leader":1,"phase":"Training","members":[{"pod":"job-w0","podUID":"u0"}]},
       "conditions":[{"type":"Running","status":"True","reason":"Training","message":"m",
         "lastTransitionTime":"2026-11-21T07:01:00Z"}],
       "progress":{"step":7,"steps":100,"tokens":896,"loss":3.5,"percentage":7,"checkpointStep":5,"recomputedSteps":2},
       "performance":{"tokensPerSecond":128,"goodput":0.9,"gradientNoiseScale":4096},
       "usefulGPUSeconds":9,
       "lostGPUSeconds":{"queue":0.5,"rescale":0.25,"failure":0.25,"checkpoint":0},
       "rescales":{"count":4},"restarts":{"count":1,"infrastructure":2},"startTime":"2026-11-21T07:01:00Z")";

std::shared_ptr<const JobObject> named(const std::string& name, const JobObject& like) {
  JobObject object = like;
  object.job.meta.name = name;
  return std::make_shared<const JobObject>(std::move(object));
}

std::string text_of(const ClusterSeries& cluster) {
  Exposition out;
  expose(cluster, out);
  return out.text();
}

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t found = 0;
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++found;
  return found;
}

ClusterSeries cluster_of(std::vector<std::shared_ptr<const JobObject>> jobs) {
  ClusterSeries cluster;
  cluster.jobs = std::move(jobs);
  cluster.nodes = {node("n1", 2), node("n2", 4, R"("unschedulable":true)")};
  cluster.gpu_resource = "rubato.dev/slot";
  cluster.gpu_type_label = "nvidia.com/gpu.product";
  cluster.now = *parse_rfc3339("2026-11-21T07:02:00Z");
  return cluster;
}

TEST(ClusterSeries, SaysWhatTheStatusSays) {
  const std::string text = text_of(cluster_of({job(2, 4, kRunning)}));
  const char* info =
      "rubato_job_info{namespace=\"ns\",job_name=\"job\",uid=\"job-uid-1\",queue=\"default\","
      "priority_class=\"\",runtime=\"builtin\"} 1\n";
  for (const char* line :
       {info,
        "rubato_job_state{namespace=\"ns\",job_name=\"job\",state=\"Running\"} 1\n",
        "rubato_job_created_timestamp_seconds{namespace=\"ns\",job_name=\"job\"} 1795244400\n",
        "rubato_job_started_timestamp_seconds{namespace=\"ns\",job_name=\"job\"} 1795244460\n",
        "rubato_job_gpus{namespace=\"ns\",job_name=\"job\"} 3\n",
        "rubato_job_workers{namespace=\"ns\",job_name=\"job\"} 1\n",
        "rubato_job_step{namespace=\"ns\",job_name=\"job\"} 7\n",
        "rubato_job_target_steps{namespace=\"ns\",job_name=\"job\"} 100\n",
        "rubato_job_loss{namespace=\"ns\",job_name=\"job\"} 3.5\n",
        "rubato_job_tokens_per_second{namespace=\"ns\",job_name=\"job\"} 128\n",
        "rubato_job_goodput_ratio{namespace=\"ns\",job_name=\"job\"} 0.9\n",
        "rubato_job_gradient_noise_scale{namespace=\"ns\",job_name=\"job\"} 4096\n",
        "rubato_job_gpu_seconds{namespace=\"ns\",job_name=\"job\",use=\"useful\"} 9\n",
        "rubato_job_gpu_seconds{namespace=\"ns\",job_name=\"job\",use=\"queue\"} 0.5\n",
        "rubato_job_rescales_total{namespace=\"ns\",job_name=\"job\"} 4\n",
        "rubato_job_restarts_total{namespace=\"ns\",job_name=\"job\",charged=\"false\"} 2\n",
        "rubato_job_recomputed_steps_total{namespace=\"ns\",job_name=\"job\"} 2\n",
        "rubato_jobs{queue=\"default\",state=\"Running\"} 1\n",
        "rubato_jobs{queue=\"default\",state=\"Failed\"} 0\n",
        "rubato_queue_gpus{queue=\"default\",gpu_type=\"B\"} 2\n",
        "rubato_queue_oldest_wait_seconds{queue=\"default\"} 0\n",
        "rubato_cluster_gpus{gpu_type=\"A\"} 6\n",
        "rubato_jobs_without_series 0\n"})
    EXPECT_NE(text.find(line), std::string::npos) << line << "\nin\n" << text;
}

TEST(ClusterSeries, AWaitingJobHasWaitedSinceItWasQueuedOrMade) {
  const auto queued =
      job(1, 1,
          R"("conditions":[{"type":"Queued","status":"True","reason":"WaitingForGPUs","message":"m",
         "lastTransitionTime":"2026-11-21T07:01:30Z"}])");
  EXPECT_NE(text_of(cluster_of({queued})).find("oldest_wait_seconds{queue=\"default\"} 30\n"),
            std::string::npos);
  EXPECT_NE(text_of(cluster_of({queued, named("b", *job(1, 1))})).find("{queue=\"default\"} 120\n"),
            std::string::npos);
  JobObject going = *queued;
  going.job.meta.deletion_time = *parse_rfc3339("2026-11-21T07:01:50Z");
  EXPECT_NE(text_of(cluster_of({named("going", going)}))
                .find("oldest_wait_seconds{queue=\"default\"} 0\n"),
            std::string::npos);
}

TEST(ClusterSeries, TenThousandJobsHaveBoundedSeriesAndThoseWithGpusComeFirst) {
  std::vector<std::shared_ptr<const JobObject>> jobs;
  const auto waiting = job(1, 1);
  for (int i = 0; i < 9999; ++i) {
    JobObject object = *waiting;
    object.job.meta.name = fmt::format("w{:05}", i);
    object.job.spec.queue = fmt::format("q{}", i);  // a hostile set of queues that are not there
    jobs.push_back(std::make_shared<const JobObject>(std::move(object)));
  }
  jobs.push_back(named("holder", *job(2, 4, kRunning)));
  const std::string text = text_of(cluster_of(jobs));
  EXPECT_NE(text.find("rubato_job_gpus{namespace=\"ns\",job_name=\"holder\"} 3\n"),
            std::string::npos);
  EXPECT_EQ(count(text, "\nrubato_job_info{"), kJobsWithSeries);
  EXPECT_NE(text.find("rubato_jobs_without_series 8000\n"), std::string::npos);
  EXPECT_EQ(count(text, "\nrubato_jobs{"), (kQueuesWithSeries + 1) * job_states().size());
  EXPECT_NE(text.find("rubato_jobs{queue=\"(other)\",state=\"Pending\"} 9743\n"),
            std::string::npos);
  EXPECT_LT(text.size(), 8U << 20U);
}

TEST(ClusterSeries, EveryFamilyIsShownOnceAndBegunEvenWithoutJobs) {
  const std::string text = text_of(cluster_of({}));
  for (const MetricGroup& group : metric_catalog()) {
    if (group.title != "Jobs" && group.title != "Queues and the cluster") continue;
    for (const MetricInfo& info : group.metrics)
      EXPECT_EQ(count(text, "# TYPE " + std::string(info.name) + " "), 1U) << info.name;
  }
}

TEST(ClusterSeries, MaintenancesThatAreNoTimesAreCounted) {
  ClusterSeries cluster = cluster_of({});
  EXPECT_EQ(count(text_of(cluster), "\nrubato_cluster_unreadable_maintenances 0\n"), 1U);
  cluster.nodes.push_back(maintained("n3", "tomorrow"));
  cluster.nodes.push_back(maintained("n4", "2026-11-21T09:00:00Z"));
  EXPECT_EQ(count(text_of(cluster), "\nrubato_cluster_unreadable_maintenances 1\n"), 1U);
}

TEST(ClusterSeries, AllStatesAreKnown) {
  std::set<std::string_view> states(job_states().begin(), job_states().end());
  EXPECT_EQ(states.size(), 12U);
  EXPECT_TRUE(states.contains(api::state_of({})));
}

TEST(MetricCatalog, NamesAreUniqueAndFollowTheRules) {
  std::set<std::string_view> seen;
  for (const MetricGroup& group : metric_catalog())
    for (const MetricInfo& info : group.metrics) {
      EXPECT_TRUE(seen.insert(info.name).second) << info.name;
      EXPECT_EQ(info.type == MetricType::kCounter, info.name.ends_with("_total")) << info.name;
      EXPECT_TRUE(info.help.ends_with('.')) << info.name;
    }
}

}  // namespace
}  // namespace rubato::control
