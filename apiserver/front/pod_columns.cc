#include "apiserver/front/pod_columns.h"

namespace rubato::apiserver {
namespace {

using json::Value;

std::string ended_word(const Value& terminated) {
  const std::string reason = terminated["reason"].string_or("");
  if (!reason.empty()) return reason;
  const std::int64_t signal = terminated["signal"].int_or(0);
  if (signal != 0) return "Signal:" + std::to_string(signal);
  return "ExitCode:" + std::to_string(terminated["exitCode"].int_or(0));
}

bool has_condition(const Value& pod, std::string_view type) {
  for (const Value& c : pod["status"]["conditions"].items())
    if (c["type"].string_view_or("") == type) return c["status"].string_view_or("") == "True";
  return false;
}

// An init container that goes on beside the containers.
bool is_sidecar(const Value& pod, std::string_view name) {
  for (const Value& c : pod["spec"]["initContainers"].items())
    if (c["name"].string_view_or("") == name)
      return c["restartPolicy"].string_view_or("") == "Always";
  return false;
}

// The state of the init containers while they hold the pod back.
std::optional<std::string> init_status(const Value& pod) {
  if (has_condition(pod, "Initialized")) return std::nullopt;
  const Value& statuses = pod["status"]["initContainerStatuses"];
  const std::size_t total = pod["spec"]["initContainers"].size();
  for (std::size_t i = 0; i < statuses.size(); ++i) {
    const Value& state = statuses[i]["state"];
    const Value& terminated = state["terminated"];
    if (!terminated.is_null() && terminated["exitCode"].int_or(-1) == 0) continue;
    if (is_sidecar(pod, statuses[i]["name"].string_view_or("")) &&
        statuses[i]["started"].bool_or(false))
      continue;
    if (!terminated.is_null()) return "Init:" + ended_word(terminated);
    const std::string waiting = state["waiting"]["reason"].string_or("");
    if (!waiting.empty() && waiting != "PodInitializing") return "Init:" + waiting;
    return "Init:" + std::to_string(i) + "/" + std::to_string(total);
  }
  return std::nullopt;
}

std::string containers_status(const Value& pod, std::string word) {
  bool running = false;
  const Value& statuses = pod["status"]["containerStatuses"];
  for (std::size_t i = statuses.size(); i-- > 0;) {
    const Value& state = statuses[i]["state"];
    const std::string waiting = state["waiting"]["reason"].string_or("");
    if (!waiting.empty())
      word = waiting;
    else if (!state["terminated"].is_null())
      word = ended_word(state["terminated"]);
    else if (statuses[i]["ready"].bool_or(false) && !state["running"].is_null())
      running = true;
  }
  if (word == "Completed" && running) word = has_condition(pod, "Ready") ? "Running" : "NotReady";
  return word;
}

Value ready_cell(const Value& pod, WallTime) {
  std::size_t ready = 0;
  for (const Value& c : pod["status"]["containerStatuses"].items())
    ready += c["ready"].bool_or(false) && !c["state"]["running"].is_null() ? 1 : 0;
  std::size_t total = pod["spec"]["containers"].size();
  for (const Value& c : pod["spec"]["initContainers"].items())
    total += c["restartPolicy"].string_view_or("") == "Always" ? 1 : 0;
  for (const Value& c : pod["status"]["initContainerStatuses"].items())
    ready += c["ready"].bool_or(false) && is_sidecar(pod, c["name"].string_view_or("")) ? 1 : 0;
  return Value(std::to_string(ready) + "/" + std::to_string(total));
}

Value restarts_cell(const Value& pod, WallTime now) {
  std::int64_t restarts = 0;
  std::string last;
  for (const Value& c : pod["status"]["containerStatuses"].items()) {
    restarts += c["restartCount"].int_or(0);
    const std::string ended = c["lastState"]["terminated"]["finishedAt"].string_or("");
    last = std::max(last, ended);
  }
  std::string text = std::to_string(restarts);
  if (restarts > 0 && !last.empty()) text += " (" + age(Value(last), now) + " ago)";
  return Value(text);
}

std::function<Value(const Value&, WallTime)> status_or_none(const char* outer, const char* inner) {
  return [outer, inner](const Value& pod, WallTime) {
    const std::string text = pod[outer][inner].string_or("");
    return Value(text.empty() ? "<none>" : text);
  };
}

}  // namespace

std::string pod_status(const Value& pod) {
  const Value& status = pod["status"];
  std::string word = status["reason"].string_or("");
  if (word.empty()) word = status["phase"].string_or("Unknown");
  for (const Value& c : status["conditions"].items())
    if (c["type"].string_view_or("") == "PodScheduled" &&
        c["reason"].string_view_or("") == "SchedulingGated")
      word = "SchedulingGated";
  if (const auto init = init_status(pod))
    word = *init;
  else
    word = containers_status(pod, word);
  if (!pod["metadata"]["deletionTimestamp"].is_null())
    word = status["reason"].string_view_or("") == "NodeLost" ? "Unknown" : "Terminating";
  return word;
}

std::vector<Column> pod_columns() {
  return {{"Name", "string", "name", "", 0,
           [](const Value& pod, WallTime) { return pod["metadata"]["name"]; }},
          {"Ready", "string", "", "", 0, ready_cell},
          {"Status", "string", "", "", 0,
           [](const Value& pod, WallTime) { return Value(pod_status(pod)); }},
          {"Restarts", "string", "", "", 0, restarts_cell},
          {"Age", "string", "", "", 0,
           [](const Value& pod, WallTime now) {
             return Value(age(pod["metadata"]["creationTimestamp"], now));
           }},
          {"IP", "string", "", "", 1, status_or_none("status", "podIP")},
          {"Node", "string", "", "", 1, status_or_none("spec", "nodeName")},
          {"Nominated Node", "string", "", "", 1, status_or_none("status", "nominatedNodeName")},
          {"Readiness Gates", "string", "", "", 1,
           [](const Value&, WallTime) { return Value("<none>"); }}};
}

}  // namespace rubato::apiserver
