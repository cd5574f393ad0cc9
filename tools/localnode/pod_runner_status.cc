// What PodRunner writes to the API server.
#include "common/log.h"
#include "tools/localnode/pod_runner.h"

#include <algorithm>

namespace rubato::localnode {

namespace {

using json::Value;
constexpr Duration kWriteRetry = 200ms;
constexpr Duration kWriteRetryMost = 5s;

}  // namespace

json::Value PodRunner::condition(const char* type, bool value) {
  const auto known = conditions_.find(type);
  if (known == conditions_.end() || known->second.first != value)
    conditions_[type] = {value, executor_.clock().wall()};
  return Value::object({{"type", type},
                        {"status", value ? "True" : "False"},
                        {"lastTransitionTime", to_rfc3339(conditions_[type].second)}});
}

json::Value PodRunner::container_statuses(bool init) const {
  Value statuses = Value::array();
  for (const auto& container : containers_) {
    if ((container->kind != Kind::kMain) != init) continue;
    Value state = Value::object();
    if (container->exited) {
      Value ended = Value::object({{"exitCode", container->exit_code},
                                   {"reason", container->exit_code == 0 ? "Completed" : "Error"},
                                   {"startedAt", to_rfc3339(container->began)},
                                   {"finishedAt", to_rfc3339(container->ended)}});
      if (container->exit_code > 128) ended.set("signal", container->exit_code - 128);
      if (!container->start_error.empty()) {
        ended.set("reason", "StartError");
        ended.set("message", container->start_error);
      }
      state.set("terminated", std::move(ended));
    } else {
      state.set("running", Value::object({{"startedAt", to_rfc3339(container->began)}}));
    }
    const bool is_init = container->kind == Kind::kInit;
    statuses.push_back(Value::object(
        {{"name", container->name},
         {"image", container->spec["image"].string_or("")},
         {"imageID", ""},
         {"ready", is_init ? container->exited && container->exit_code == 0 : !container->exited},
         {"started", container->started && (is_init || !container->exited)},
         {"restartCount", 0},
         {"state", std::move(state)}}));
  }
  return statuses;
}

void PodRunner::write_status(const char* phase, const std::string& reason,
                             const std::string& message) {
  const bool running = std::string_view(phase) == "Running";
  bool ready = running;
  Value status = Value::object({{"phase", phase},
                                {"podIP", pod_ip_},
                                {"podIPs", Value::array({Value::object({{"ip", pod_ip_}})})},
                                {"hostIP", settings_.host_ip},
                                {"startTime", to_rfc3339(began_)},
                                {"reason", reason.empty() ? Value() : Value(reason)},
                                {"message", message.empty() ? Value() : Value(message)}});
  {
    std::lock_guard lock(mutex_);
    for (const auto& container : containers_)
      if (container->kind != Kind::kInit) ready = ready && !container->exited;
    if (Value init = container_statuses(true); init.size() > 0)
      status.set("initContainerStatuses", std::move(init));
    status.set("containerStatuses", container_statuses(false));
  }
  status.set("conditions",
             Value::array({condition("PodScheduled", true), condition("Initialized", initialized_),
                           condition("ContainersReady", ready), condition("Ready", ready)}));
  const Value patch = Value::object(
      {{"metadata", Value::object({{"uid", kube::uid_of(pod_)}})}, {"status", std::move(status)}});
  const auto write = [&]() -> Status {
    const auto written =
        client_.patch(kube::types::kPod, kube::key_of(pod_), kube::PatchType::kMerge, patch,
                      {.subresource = "status", .field_manager = "rubato-localnode"});
    return written.ok() ? ok() : Status(written.error());
  };
  const bool is_end = !running && std::string_view(phase) != "Pending";
  insist("status", write, [&] { return !is_end && (kill_at_ || have_ended(Kind::kMain)); });
}

void PodRunner::remove_object() {
  const auto remove = [&] {
    const Status removed = client_.remove(kube::types::kPod, kube::key_of(pod_),
                                          {.uid = kube::uid_of(pod_), .grace_period_seconds = 0});
    const bool is_another = !removed.ok() && removed.error().code() == Code::kConflict;
    return is_another ? ok() : removed;  // of the same name
  };
  insist("removal", remove, [] { return false; });
}

// An API server that is away comes back; one that starts may refuse for a moment what it grants.
// `is_moot`, under mutex_: something else is to be written now.
void PodRunner::insist(const char* what, const std::function<Status()>& write,
                       const std::function<bool()>& is_moot) {
  for (Duration pause = kWriteRetry;; pause = std::min(2 * pause, kWriteRetryMost)) {
    const Status done = write();
    if (done.ok() || done.error().code() == Code::kNotFound) return;
    const bool is_refused = done.error().code() == Code::kInvalid;
    if (is_refused || pause == kWriteRetry)
      LOG_WARNING("localnode", "{}: {} is not written{}: {}", kube::name_of(pod_), what,
                  is_refused ? "" : " yet", done.error().to_string());
    if (is_refused) return;
    std::unique_lock lock(mutex_);
    if (changed_->wait_until(lock, executor_.now() + pause,
                             [&] { return abandoned_ || is_moot(); }))
      return;
  }
}

}  // namespace rubato::localnode
