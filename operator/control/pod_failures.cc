#include "operator/control/pod_failures.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

namespace rubato::control {

namespace {
constexpr int kKilled = 128 + 9;
constexpr int kTerminated = 128 + 15;

bool was_ended_from_outside(const kube::ContainerStatus& container) {
  const bool by_signal = container.exit_code == kTerminated || container.exit_code == kKilled;
  return by_signal && container.reason != "OOMKilled";
}

// Kubelets have many words for why they do not take a pod, and get new ones. None of its containers
// began; its template's own time limit may be over before they do, too.
bool was_refused_by_kubelet(const kube::Pod& pod) {
  return !pod.reason.empty() && pod.reason != "DeadlineExceeded" &&
         std::all_of(pod.containers.begin(), pod.containers.end(),
                     [](const kube::ContainerStatus& container) {
                       return container.state == kube::ContainerStatus::State::kWaiting;
                     });
}
}  // namespace

bool is_lost_to_infrastructure(const kube::Pod& pod) {
  if (pod.phase != kube::PodPhase::kFailed) return false;
  if (was_refused_by_kubelet(pod)) return true;
  // These may also come to a pod that ran, such as when its kubelet begins anew.
  for (const std::string_view reason :
       {"Evicted", "NodeLost", "NodeRebooted", "NodeShutdown", "NodeAffinity", "Preempting",
        "Shutdown", "Terminated", "UnexpectedAdmissionError"}) {
    if (pod.reason == reason) return true;
  }
  if (pod.reason.starts_with("OutOf")) return true;
  return std::any_of(pod.containers.begin(), pod.containers.end(), was_ended_from_outside);
}

bool failed_of_itself(const kube::Pod& pod) {
  return pod.phase == kube::PodPhase::kFailed && !is_lost_to_infrastructure(pod);
}

std::string describe_end(const kube::Pod& pod) {
  return pod.phase == kube::PodPhase::kFailed
             ? describe_failure(pod)
             : fmt::format("pod {} ended without an error", pod.meta.name);
}

std::string describe_failure(const kube::Pod& pod) {
  std::string text = "pod " + pod.meta.name;
  if (!pod.node_name.empty()) text += " on node " + pod.node_name;
  text += " failed";
  const auto add = [&](const std::string& reason, const std::string& message) {
    if (!reason.empty()) text += fmt::format(" ({})", reason);
    if (!message.empty()) text += ": " + message;
  };
  add(pod.reason, pod.message);
  for (const kube::ContainerStatus& container : pod.containers) {
    if (container.state != kube::ContainerStatus::State::kTerminated || container.exit_code == 0)
      continue;
    text +=
        fmt::format("; container {} ended with exit code {}", container.name, container.exit_code);
    add(container.reason == "Error" ? "" : container.reason, container.message);
  }
  return text;
}

void count_left(const api::TrainingJob& job, const std::map<std::string, const kube::Pod*>& pods,
                api::Allocation& next) {
  if (!job.status.allocation) return;
  std::int64_t failed = next.failed_pods.value_or(0);
  std::int64_t lost = next.lost_pods.value_or(0);
  std::set<std::int64_t> stay;
  for (const api::AllocatedPod& pod : next.pods) stay.insert(pod.ordinal);
  for (const api::AllocatedPod& allocated : job.status.allocation->pods) {
    if (stay.contains(allocated.ordinal)) continue;
    const auto pod = pods.find(allocated.name);
    if (pod == pods.end() || pod->second->meta.deleting || is_lost_to_infrastructure(*pod->second))
      ++lost;
    else if (failed_of_itself(*pod->second))
      ++failed;
  }
  if (failed > 0) next.failed_pods = failed;
  if (lost > 0) next.lost_pods = lost;
}

}  // namespace rubato::control
