#include "kube/objects/pod.h"

#include "common/utf8.h"
#include "kube/objects/decode.h"
#include "kube/objects/raw_view.h"

namespace rubato::kube {
namespace {

PodPhase pod_phase_of(std::string_view text) {
  if (text == "Running") return PodPhase::kRunning;
  if (text == "Succeeded") return PodPhase::kSucceeded;
  if (text == "Failed") return PodPhase::kFailed;
  if (text == "Pending" || text.empty()) return PodPhase::kPending;
  return PodPhase::kUnknown;
}

bool is_in(const Amounts& amounts, std::string_view resource) {
  return std::any_of(amounts.begin(), amounts.end(),
                     [&](const Amount& amount) { return amount.resource == resource; });
}

template <class View>
Amounts container_requests(const View& container) {
  Amounts requests;
  Amounts limits;
  decode_amounts(container["resources"]["requests"], requests);
  decode_amounts(container["resources"]["limits"], limits);
  for (const auto& limit : limits)
    if (!is_in(requests, limit.resource)) add_amounts(requests, Amounts{limit});
  return requests;
}

// What is asked for the pod as a whole counts instead of the sum over its containers; a limit of
// the whole does where neither asks for anything.
template <class View>
void put_whole(const View& resources, Amounts& requests) {
  Amounts whole;
  Amounts limits;
  decode_amounts(resources["requests"], whole);
  decode_amounts(resources["limits"], limits);
  for (const auto& limit : limits)
    if (!is_in(whole, limit.resource) && !is_in(requests, limit.resource))
      add_amounts(whole, Amounts{limit});
  std::erase_if(requests, [&](const Amount& amount) { return is_in(whole, amount.resource); });
  add_amounts(requests, whole);
}

// As kube-scheduler counts: sidecars (init containers that restart always) run on from their place
// in the order, so a later init container needs its own request and theirs.
template <class View>
Amounts pod_requests(const View& spec) {
  Amounts running;
  spec["containers"].for_items(
      [&](const View& item) { add_amounts(running, container_requests(item)); });
  Amounts sidecars;
  Amounts starting;
  spec["initContainers"].for_items([&](const View& item) {
    Amounts need = container_requests(item);
    if (item["restartPolicy"].string_view_or("") == "Always") {
      add_amounts(running, need);
      add_amounts(sidecars, need);
      raise_amounts(starting, sidecars);
    } else {
      add_amounts(need, sidecars);
      raise_amounts(starting, need);
    }
  });
  raise_amounts(running, starting);
  put_whole(spec["resources"], running);
  Amounts overhead;
  decode_amounts(spec["overhead"], overhead);
  add_amounts(running, overhead);
  running.shrink_to_fit();
  return running;
}

template <class View>
void decode_spec(const View& spec, Pod& pod) {
  pod.node_name = spec["nodeName"].string_or("");
  pod.scheduler_name = spec["schedulerName"].string_or("");
  pod.priority = static_cast<int>(spec["priority"].int_or(0));
  pod.requests = pod_requests(spec);
  pod.node_selector = decode_string_map(spec["nodeSelector"]);
  pod.affinity = decode_node_terms(
      spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
          ["nodeSelectorTerms"]);
  spec["tolerations"].for_items([&](const View& item) {
    pod.tolerations.push_back(
        Toleration{item["key"].string_or(""), item["operator"].string_view_or("") == "Exists",
                   item["value"].string_or(""), item["effect"].string_or("")});
  });
  pod.tolerations.shrink_to_fit();
  spec["volumes"].for_items([&](const View& volume) {
    const View claim = volume["persistentVolumeClaim"];
    if (claim.is_object()) pod.claims.push_back(claim["claimName"].string_or(""));
    const View made = volume["ephemeral"]["volumeClaimTemplate"]["spec"];
    if (!made.is_object()) return;
    EphemeralVolume ephemeral{volume["name"].string_or(""), std::nullopt};
    if (const View name = made["storageClassName"]; name.is_string())
      ephemeral.storage_class = name.string_or("");
    pod.ephemeral.push_back(std::move(ephemeral));
  });
  spec["schedulingGates"].for_items(
      [&](const View& gate) { pod.scheduling_gates.push_back(gate["name"].string_or("")); });
  spec["resourceClaims"].for_items([&](const View&) { pod.has_resource_claims = true; });
  pod.host_network = spec["hostNetwork"].bool_or(false);
}

template <class View>
ContainerStatus decode_container(const View& item) {
  ContainerStatus status;
  status.name = item["name"].string_or("");
  status.ready = item["ready"].bool_or(false);
  status.restarts = static_cast<int>(item["restartCount"].int_or(0));
  const View state = item["state"];
  if (const View terminated = state["terminated"]; terminated.is_object()) {
    status.state = ContainerStatus::State::kTerminated;
    status.reason = terminated["reason"].string_or("");
    status.message = utf8_prefix(terminated["message"].string_view_or(""), kMessageBytesMax);
    status.exit_code = static_cast<int>(terminated["exitCode"].int_or(0));
    status.signal = static_cast<int>(terminated["signal"].int_or(0));
  } else if (state["running"].is_object()) {
    status.state = ContainerStatus::State::kRunning;
  } else {
    status.reason = state["waiting"]["reason"].string_or("");
  }
  return status;
}

template <class View>
void decode_status(const View& view, Pod& pod) {
  pod.phase = pod_phase_of(view["phase"].string_view_or(""));
  pod.reason = view["reason"].string_or("");
  pod.message = utf8_prefix(view["message"].string_view_or(""), kMessageBytesMax);
  pod.pod_ip = view["podIP"].string_or("");
  pod.host_ip = view["hostIP"].string_or("");
  pod.nominated_node = view["nominatedNodeName"].string_or("");
  pod.started = decode_time(view["startTime"].string_view_or(""));
  pod.conditions = decode_conditions(view["conditions"]);
  view["containerStatuses"].for_items(
      [&](const View& item) { pod.containers.push_back(decode_container(item)); });
  pod.containers.shrink_to_fit();
}

template <class View>
Result<Pod> decode_pod(const View& view) {
  Pod pod;
  TRY(pod.meta, decode_meta(view));
  decode_spec(view["spec"], pod);
  decode_status(view["status"], pod);
  return pod;
}

}  // namespace

const char* name_of(PodPhase phase) {
  switch (phase) {
    case PodPhase::kPending:
      return "Pending";
    case PodPhase::kRunning:
      return "Running";
    case PodPhase::kSucceeded:
      return "Succeeded";
    case PodPhase::kFailed:
      return "Failed";
    case PodPhase::kUnknown:
      return "Unknown";
  }
  return "Unknown";
}

bool tolerates(const std::vector<Toleration>& tolerations, const Taint& taint) {
  return std::any_of(tolerations.begin(), tolerations.end(), [&](const Toleration& t) {
    if (!t.effect.empty() && t.effect != taint.effect) return false;
    if (t.key.empty()) return t.exists;
    return t.key == taint.key && (t.exists || t.value == taint.value);
  });
}

bool Pod::is_ready() const {
  return std::any_of(conditions.begin(), conditions.end(), [](const ObjectCondition& condition) {
    return condition.type == "Ready" && condition.status == "True";
  });
}

Result<Pod> Pod::decode(const json::Value& value) { return decode_pod(ValueView(value)); }
Result<Pod> Pod::decode_raw(std::string_view bytes) {
  TRY(const RawView view, parse_raw(bytes));
  return decode_pod(view);
}

}  // namespace rubato::kube
