// Speeds that outlive the jobs which measured them: the leader keeps one ThroughputProfile for each
// kind of job, named by the kind, and capture() reads all of them (job_history.h).
//
// A kind is what decides the speed and nothing else: runtime, model (not the weights that it begins
// with), batch, precision, GPUs a pod, and of each container image, command, arguments, environment
// and resources.
#pragma once

#include "common/json.h"
#include "common/metrics.h"
#include "kube/client.h"
#include "operator/control/cluster_view.h"

#include <string>

namespace rubato::control {

constexpr std::size_t kProfilesMost = 1000;  // with as many in the cluster, no more are made
constexpr int kProfileWritesMost = 16;       // in one pass; the rest are written in the next ones
// One profile is written no more often, but where it lacks a point, and none is after a failure.
constexpr auto kProfilePause = std::chrono::seconds(30);
// A point is written anew once what is measured differs by more than this part of it.
constexpr double kSpeedChange = 0.05;

// Sixteen hexadecimal digits. Equal in all builds: it is written into objects that are kept.
std::string profile_of(const json::Value& spec);
// "builtin gpt2-124m, 64 x 1024 tokens a step, 1 GPU a pod"; no names and no arguments, for whoever
// may see a profile need not see the jobs.
std::string describe_profile(const api::TrainingJobSpec& spec);

// On the scheduler's task.
class ProfileWriter {
 public:
  ProfileWriter(kube::Client& client, Metrics& metrics);
  // After a round. Points of running jobs are the newest: where several run on as many GPUs, their
  // mean counts. Of others, and of jobs that run on something else now, what is not known yet is
  // added. Writes that fail are made again in a later pass. O(jobs).
  void look_at(const World& world, MonoTime now);

 private:
  bool write(const std::string& kind, const ProfileObject* seen, const json::Value& spec);

  kube::Client& client_;
  Metrics& metrics_;
  MonoTime next_{};   // after a write that failed
  std::string done_;  // the kind that was written last
};

}  // namespace rubato::control
