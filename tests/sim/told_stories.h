// What stories that are told with care have in common.
#pragma once

#include "tests/sim/whole_cluster.h"

#include <algorithm>
#include <string>
#include <string_view>

namespace rubato::sim {

constexpr Duration kSoon = 20s;   // more than any reaction takes
constexpr Duration kGang = 20s;   // pods are waited for so long (replica.cc)
constexpr Duration kJitter = 3s;  // rounds, kubelets, late messages
constexpr Duration kGrace = 8s;   // of jobs here (whole_cluster.cc)
constexpr const char* kElastic = "default/elastic";

inline JobPlan training(const std::string& name, int min, int max) {
  JobPlan job;
  job.shape.name = name;
  job.shape.steps = 100'000;
  job.min = min;
  job.max = max;
  return job;
}

// Whether it writes this field of a status.
inline bool writes_status(const kube::Operation& operation, std::string_view field) {
  if (operation.body == nullptr || operation.subresource != "status") return false;
  const std::string path = "/status/" + std::string(field);
  const auto& parts = operation.body->items();
  return std::any_of(parts.begin(), parts.end(), [&](const json::Value& part) {
    return part["path"].string_view_or("") == path;
  });
}

// Whether it is a decision about the GPUs of a job.
inline bool is_decision(const kube::Operation& operation) {
  return writes_status(operation, "allocation");
}

// GPUs of the job that its allocation has on the node; -1: there is no such job.
inline int held_on(const WholeCluster& cluster, const std::string& job, const std::string& node) {
  const auto found = cluster.witness().jobs().find("default/" + job);
  if (found == cluster.witness().jobs().end()) return -1;
  if (!found->second.allocation) return 0;
  const auto& pods = found->second.allocation->pods;
  return static_cast<int>(
      std::count_if(pods.begin(), pods.end(), [&](const auto& pod) { return pod.node == node; }));
}

inline std::size_t members_of(const WholeCluster& cluster, const std::string& job) {
  const auto found = cluster.witness().jobs().find("default/" + job);
  return found == cluster.witness().jobs().end() ? 0 : found->second.members.size();
}

// n0 has what the job needs, n1 the GPU that it may have besides.
inline Scenario elastic_on_two_nodes() {
  Scenario scenario;
  scenario.nodes = {{"n0", "fast", 2}, {"n1", "fast", 1}};
  scenario.queues = {{"default", 0}};
  scenario.jobs = {training("elastic", 2, 3)};
  return scenario;
}

inline auto elastic_holds_on_n1(const WholeCluster& cluster, int gpus) {
  return [&cluster, gpus] { return held_on(cluster, "elastic", "n1") == gpus; };
}

}  // namespace rubato::sim
