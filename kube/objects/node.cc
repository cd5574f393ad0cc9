#include "kube/objects/node.h"

#include "kube/objects/decode.h"
#include "kube/objects/raw_view.h"

namespace rubato::kube {
namespace {

template <class View>
void decode_ready(const View& conditions, Node& node) {
  conditions.for_items([&](const View& item) {
    if (item["type"].string_view_or("") != "Ready") return;
    const auto status = item["status"].string_view_or("");
    node.ready = status == "True"    ? Node::Ready::kTrue
                 : status == "False" ? Node::Ready::kFalse
                                     : Node::Ready::kUnknown;
    node.ready_reason = item["reason"].string_or("");
    node.ready_transition = decode_time(item["lastTransitionTime"].string_view_or(""));
    node.last_heartbeat = decode_time(item["lastHeartbeatTime"].string_view_or(""));
  });
}

template <class View>
Result<Node> decode_node(const View& view) {
  Node node;
  TRY(node.meta, decode_meta(view));
  const View spec = view["spec"];
  node.unschedulable = spec["unschedulable"].bool_or(false);
  node.provider_id = spec["providerID"].string_or("");
  spec["taints"].for_items([&](const View& taint) {
    node.taints.push_back(Taint{taint["key"].string_or(""), taint["value"].string_or(""),
                                taint["effect"].string_or("")});
  });
  const View status = view["status"];
  decode_amounts(status["capacity"], node.capacity);
  decode_amounts(status["allocatable"], node.allocatable);
  decode_ready(status["conditions"], node);
  node.conditions = decode_conditions(status["conditions"]);
  node.boot_id = status["nodeInfo"]["bootID"].string_or("");
  status["addresses"].for_items([&](const View& address) {
    const auto kind = address["type"].string_view_or("");
    if (kind == "InternalIP" && node.internal_ip.empty())
      node.internal_ip = address["address"].string_or("");
    if (kind == "Hostname") node.hostname = address["address"].string_or("");
  });
  node.daemon_port =
      static_cast<int>(status["daemonEndpoints"]["kubeletEndpoint"]["Port"].int_or(0));
  return node;
}

}  // namespace

Result<Node> Node::decode(const json::Value& value) { return decode_node(ValueView(value)); }
Result<Node> Node::decode_raw(std::string_view bytes) {
  TRY(const RawView view, parse_raw(bytes));
  return decode_node(view);
}

}  // namespace rubato::kube
