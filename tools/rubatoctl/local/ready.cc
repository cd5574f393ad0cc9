// Waiting until the parts of a local cluster are ready, and what they need from the API server.
#include "common/json.h"
#include "kube/rest_client.h"
#include "operator/api/resources.h"
#include "tools/rubatoctl/local/cluster.h"
#include "tools/rubatoctl/session.h"

#include <algorithm>
#include <filesystem>

#include <fmt/core.h>
#include <fmt/ranges.h>

namespace rubato::ctl {

using json::Value;

namespace {

constexpr auto kReadyPoll = 50ms;
constexpr std::size_t kLogLinesShown = 8;
constexpr auto kClockSlack = 1s;  // renewTime is cut to whole units by some writers

bool renewed_since(const json::Value& lease, WallTime since) {
  const auto time = parse_rfc3339(lease["spec"]["renewTime"].string_view_or(""));
  return time.ok() && *time + kClockSlack >= since;
}

bool is_ready(const json::Value& node) {
  for (const auto& condition : node["status"]["conditions"].items())
    if (condition["type"].string_view_or("") == "Ready")
      return condition["status"].string_view_or("") == "True";
  return false;
}

}  // namespace

Status LocalCluster::wait_until(const std::string& what, const std::vector<std::string>& processes,
                                const std::function<bool()>& ready) {
  const MonoTime start = executor_.now();
  while (!ready()) {
    if (settings_.is_interrupted && settings_.is_interrupted())
      return Error(Code::kCancelled, "interrupted");
    for (const std::string& process : processes) {
      if (runs(process) || ready()) continue;
      return Error(Code::kUnavailable, process + " ended at its start. Its log ends with:\n" +
                                           tail_of(log_of(process), kLogLinesShown) +
                                           "  All of it: " + log_of(process));
    }
    if (executor_.now() - start > kStartLimit)
      return Error(Code::kTimeout,
                   fmt::format("{} not ready after {} s\n  What to do: look at the logs in {}/logs",
                               what, kStartLimit.count(), settings_.state));
    executor_.sleep_for(kReadyPoll);
  }
  say(fmt::format("{} ready ({:.1f} s)", what,
                  std::chrono::duration<double>(executor_.now() - start).count()));
  return ok();
}

Status LocalCluster::wait_for_api() {
  std::unique_ptr<Session> session;
  return wait_until("API server", {"apiserver"}, [&] {
    if (!std::filesystem::exists(kubeconfig())) return false;
    auto opened = Session::open({kubeconfig(), "", ""});  // again: the port may have changed
    return opened.ok() && (*opened)->rest().get_raw("/readyz").ok();
  });
}

// The namespaces and the queue that jobs and nodes expect.
Status LocalCluster::prepare_api() {
  TRY(const auto session, Session::open({kubeconfig(), "", ""}));
  const auto ensure = [&](const kube::ResourceType& type, const Value& object) -> Status {
    const auto made = session->client().create(type, "", object, {.field_manager = "rubatoctl"});
    if (made.ok() || made.error().code() == Code::kAlreadyExists) return ok();
    return made.error().in("creating " + type.kind + " " + kube::name_of(object));
  };
  for (const char* name : {"default", "kube-node-lease", kOperatorNamespace})
    TRY_OK(ensure(kube::types::kNamespace,
                  Value::object({{"apiVersion", "v1"},
                                 {"kind", "Namespace"},
                                 {"metadata", Value::object({{"name", name}})}})));
  return ensure(api::kTrainingQueue,
                Value::object({{"apiVersion", api::kApiVersion},
                               {"kind", "TrainingQueue"},
                               {"metadata", Value::object({{"name", "default"}})},
                               {"spec", Value::object({{"weight", 1.0}})}}));
}

Status LocalCluster::wait_for_leader(WallTime since) {
  TRY(const auto session, Session::open({kubeconfig(), "", ""}));
  std::vector<std::string> replicas;
  replicas.reserve(kOperators);
  for (int i = 0; i < kOperators; ++i) replicas.push_back(fmt::format("operator-{}", i));
  return wait_until(fmt::format("operator, {} replicas,", kOperators), replicas, [&] {
    const auto lease =
        session->client().get(kube::types::kLease, {kOperatorNamespace, "rubato-operator"});
    return lease.ok() && !(*lease)["spec"]["holderIdentity"].string_or("").empty() &&
           renewed_since(*lease, since);
  });
}

Status LocalCluster::wait_for_nodes(const std::vector<std::string>& names, WallTime since) {
  if (names.empty()) return ok();
  TRY(const auto session, Session::open({kubeconfig(), "", ""}));
  std::vector<std::string> processes;
  processes.reserve(names.size());
  for (const std::string& name : names) processes.push_back("node-" + name);
  return wait_until(fmt::format("node{} {}", names.size() > 1 ? "s" : "", fmt::join(names, ", ")),
                    processes, [&] {
                      return std::all_of(names.begin(), names.end(), [&](const std::string& name) {
                        const auto lease =
                            session->client().get(kube::types::kLease, {"kube-node-lease", name});
                        if (!lease.ok() || !renewed_since(*lease, since)) return false;
                        const auto node = session->client().get(kube::types::kNode, {"", name});
                        return node.ok() && is_ready(*node);
                      });
                    });
}

}  // namespace rubato::ctl
