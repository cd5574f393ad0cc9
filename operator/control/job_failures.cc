// What counts as a failure, and when it is for good.
#include "operator/control/job_pass.h"

#include <algorithm>

#include <fmt/core.h>

namespace rubato::control {

namespace {

// The table of reasons that no job can help: of the pod's status, and exit codes of a SIGTERM or
// SIGKILL that came from outside.
bool is_infrastructure(const kube::Pod& pod) {
  for (const std::string_view reason :
       {"Evicted", "NodeLost", "NodeRebooted", "NodeShutdown", "NodeAffinity", "Preempting",
        "Shutdown", "Terminated", "UnexpectedAdmissionError"}) {
    if (pod.reason == reason) return true;
  }
  if (pod.reason.starts_with("OutOf")) return true;
  return std::any_of(pod.containers.begin(), pod.containers.end(), [](const auto& container) {
    return container.exit_code == 128 + 15 || container.exit_code == 128 + 9;
  });
}

}  // namespace

// Failures that are charged to maxRestarts: workers that crashed, and pods that failed of
// themselves (ended pods are kept, so they can be counted). What the infrastructure did is not
// charged.
std::uint64_t JobPass::own_failures() const {
  std::uint64_t count = view_ ? view_->failure_count : 0;
  for (const auto& pod : pods_) {
    if (pod->phase == kube::PodPhase::kFailed && !is_infrastructure(*pod)) ++count;
  }
  return count;
}

std::string JobPass::failure() {
  const auto fail = [&](std::string_view reason, std::string message) {
    failed_reason_ = std::string(reason);
    failed_message_ = std::move(message);
    return failed_reason_;
  };
  if (job_.meta.is_deleting()) return "";
  if (job_.spec.runtime != api::Runtime::kBuiltin || !job_.spec.training) {
    return fail(api::reason::kUnsupported, "spec.runtime \"" +
                                               std::string(api::name_of(job_.spec.runtime)) +
                                               "\" is not run yet; use builtin with spec.training");
  }
  if (view_ && view_->phase == coordinator::Phase::kFailed) {
    return fail(view_->failure_reason, view_->failure_message);
  }
  if (view_ &&
      view_->failure_count > static_cast<std::uint64_t>(job_.spec.fault_tolerance.max_restarts)) {
    const std::string last = view_->failures.empty() ? "" : ": " + view_->failures.back().message;
    return fail(api::reason::kMaxRestarts,
                fmt::format("{} failures of its own, more than faultTolerance.maxRestarts = {}{}",
                            own_failures(), job_.spec.fault_tolerance.max_restarts, last));
  }
  if (job_.spec.active_deadline_seconds && job_.status.start_time && !job_.spec.suspend &&
      wall() - *job_.status.start_time > std::chrono::seconds(*job_.spec.active_deadline_seconds)) {
    return fail(api::reason::kDeadlineExceeded,
                fmt::format("ran longer than activeDeadlineSeconds = {}",
                            *job_.spec.active_deadline_seconds));
  }
  return "";
}

}  // namespace rubato::control
