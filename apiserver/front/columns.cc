// Columns of built-in kinds, as the real API server prints them.
#include "apiserver/front/pod_columns.h"
#include "apiserver/front/table.h"

#include <algorithm>

namespace rubato::apiserver {
namespace {

using json::Value;
using Cell = std::function<Value(const Value&, WallTime)>;

Column text(const char* name, int priority, Cell cell) {
  return {name, "string", "", "", priority, std::move(cell)};
}
Column name_column() {
  return {"Name", "string", "name",
          "",     0,        [](const Value& o, WallTime) { return o["metadata"]["name"]; }};
}
Column age_column() {
  return text("Age", 0, [](const Value& o, WallTime now) {
    return Value(age(o["metadata"]["creationTimestamp"], now));
  });
}
// A member by dotted path, or `otherwise`.
Cell at(std::string path, std::string otherwise = "") {
  return [path = std::move(path), otherwise = std::move(otherwise)](const Value& o, WallTime) {
    const Value* here = &o;
    std::size_t begin = 0;
    while (begin <= path.size()) {
      const std::size_t dot = std::min(path.find('.', begin), path.size());
      here = &(*here)[std::string_view(path).substr(begin, dot - begin)];
      begin = dot + 1;
    }
    const bool empty = here->is_null() || here->string_view_or("x").empty();
    return empty ? Value(otherwise) : *here;
  };
}
Cell count(std::string member) {
  return [member = std::move(member)](const Value& o, WallTime) { return Value(o[member].size()); };
}

std::string joined(const std::vector<std::string>& parts, const char* empty) {
  std::string out;
  for (const std::string& part : parts) out += (out.empty() ? "" : ",") + part;
  return out.empty() ? empty : out;
}

Value node_status(const Value& node, WallTime) {
  std::vector<std::string> words;
  for (const Value& c : node["status"]["conditions"].items())
    if (c["type"].string_view_or("") == "Ready")
      words.emplace_back(c["status"].string_view_or("") == "True" ? "Ready" : "NotReady");
  if (words.empty()) words.emplace_back("Unknown");
  if (node["spec"]["unschedulable"].bool_or(false)) words.emplace_back("SchedulingDisabled");
  return Value(joined(words, ""));
}

Value node_roles(const Value& node, WallTime) {
  static constexpr std::string_view kPrefix = "node-role.kubernetes.io/";
  std::vector<std::string> roles;
  for (const json::Member& label : node["metadata"]["labels"].members()) {
    if (label.first.starts_with(kPrefix) && label.first.size() > kPrefix.size())
      roles.push_back(label.first.substr(kPrefix.size()));
    else if (label.first == "kubernetes.io/role" && !label.second.string_view_or("").empty())
      roles.push_back(label.second.string_or(""));
  }
  std::ranges::sort(roles);
  return Value(joined(roles, "<none>"));
}

Cell node_address(const char* type) {
  return [type](const Value& node, WallTime) {
    for (const Value& a : node["status"]["addresses"].items())
      if (a["type"].string_view_or("") == type) return a["address"];
    return Value("<none>");
  };
}

std::vector<Column> node_columns() {
  return {name_column(),
          text("Status", 0, node_status),
          text("Roles", 0, node_roles),
          age_column(),
          text("Version", 0, at("status.nodeInfo.kubeletVersion")),
          text("Internal-IP", 1, node_address("InternalIP")),
          text("External-IP", 1, node_address("ExternalIP")),
          text("OS-Image", 1, at("status.nodeInfo.osImage", "<unknown>")),
          text("Kernel-Version", 1, at("status.nodeInfo.kernelVersion", "<unknown>")),
          text("Container-Runtime", 1, at("status.nodeInfo.containerRuntimeVersion", "<unknown>"))};
}

// Events in either form: core/v1 or events.k8s.io/v1.
const Value& either(const Value& event, const char* core, const char* other) {
  const Value& value = event[core];
  return value.is_null() ? event[other] : value;
}

Value event_time(const Value& event, WallTime now, bool first) {
  const Value& last = event["series"]["lastObservedTime"];
  if (!first && !last.is_null()) return Value(age(last, now));
  const Value& stamp = first ? either(event, "firstTimestamp", "deprecatedFirstTimestamp")
                             : either(event, "lastTimestamp", "deprecatedLastTimestamp");
  return Value(age(stamp.is_null() ? event["eventTime"] : stamp, now));
}

Value event_object(const Value& event, WallTime) {
  const Value& ref = either(event, "involvedObject", "regarding");
  std::string kind = ref["kind"].string_or("");
  for (char& c : kind) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return Value(kind + "/" + ref["name"].string_or(""));
}

Value event_source(const Value& event, WallTime) {
  const Value& source = either(event, "source", "deprecatedSource");
  std::string component = source["component"].string_or("");
  std::string host = source["host"].string_or("");
  if (component.empty())
    component = either(event, "reportingComponent", "reportingController").string_or("");
  if (host.empty()) host = event["reportingInstance"].string_or("");
  return Value(host.empty() ? component : component + ", " + host);
}

std::vector<Column> event_columns() {
  return {
      text("Last Seen", 0, [](const Value& e, WallTime now) { return event_time(e, now, false); }),
      text("Type", 0, at("type")),
      text("Reason", 0, at("reason")),
      text("Object", 0, event_object),
      text("Subobject", 1,
           [](const Value& e, WallTime) {
             return Value(either(e, "involvedObject", "regarding")["fieldPath"].string_or(""));
           }),
      text("Source", 1, event_source),
      text("Message", 0, [](const Value& e, WallTime) { return either(e, "message", "note"); }),
      text("First Seen", 1, [](const Value& e, WallTime now) { return event_time(e, now, true); }),
      text("Count", 1,
           [](const Value& e, WallTime) {
             const std::int64_t series = e["series"]["count"].int_or(0);
             const std::int64_t plain = either(e, "count", "deprecatedCount").int_or(1);
             return Value(std::max<std::int64_t>(series != 0 ? series : plain, 1));
           }),
      {"Name", "string", "name", "", 1,
       [](const Value& e, WallTime) { return e["metadata"]["name"]; }}};
}

std::string access_modes(const Value& modes) {
  std::vector<std::string> out;
  for (const Value& mode : modes.items()) {
    const std::string word = mode.string_or("");
    out.emplace_back(word == "ReadWriteOnce"      ? "RWO"
                     : word == "ReadOnlyMany"     ? "ROX"
                     : word == "ReadWriteMany"    ? "RWX"
                     : word == "ReadWriteOncePod" ? "RWOP"
                                                  : word);
  }
  return joined(out, "");
}

std::vector<Column> claim_columns() {
  return {name_column(),
          text("Status", 0,
               [](const Value& o, WallTime) {
                 return o["metadata"].has("deletionTimestamp") ? Value("Terminating")
                                                               : o["status"]["phase"];
               }),
          text("Volume", 0, at("spec.volumeName")),
          text("Capacity", 0,
               [](const Value& o, WallTime) {
                 return Value(o["spec"]["volumeName"].is_null()
                                  ? ""
                                  : o["status"]["capacity"]["storage"].string_or(""));
               }),
          text("Access Modes", 0,
               [](const Value& o, WallTime) {
                 return Value(o["spec"]["volumeName"].is_null()
                                  ? ""
                                  : access_modes(o["status"]["accessModes"]));
               }),
          text("StorageClass", 0, at("spec.storageClassName")),
          text("VolumeAttributesClass", 0, at("spec.volumeAttributesClassName", "<unset>")),
          age_column(),
          text("VolumeMode", 1, at("spec.volumeMode", "<unset>"))};
}

std::vector<Column> volume_columns() {
  return {
      name_column(),
      text("Capacity", 0, at("spec.capacity.storage")),
      text("Access Modes", 0,
           [](const Value& o, WallTime) { return Value(access_modes(o["spec"]["accessModes"])); }),
      text("Reclaim Policy", 0, at("spec.persistentVolumeReclaimPolicy")),
      text("Status", 0, at("status.phase")),
      text("Claim", 0,
           [](const Value& o, WallTime) {
             const Value& claim = o["spec"]["claimRef"];
             return Value(claim.is_null() ? ""
                                          : claim["namespace"].string_or("") + "/" +
                                                claim["name"].string_or(""));
           }),
      text("StorageClass", 0, at("spec.storageClassName")),
      text("VolumeAttributesClass", 0, at("spec.volumeAttributesClassName", "<unset>")),
      text("Reason", 0, at("status.reason")),
      age_column(),
      text("VolumeMode", 1, at("spec.volumeMode", "<unset>"))};
}

Value service_ports(const Value& service, WallTime) {
  std::vector<std::string> ports;
  for (const Value& p : service["spec"]["ports"].items()) {
    std::string one = std::to_string(p["port"].int_or(0));
    if (p["nodePort"].int_or(0) != 0) one += ":" + std::to_string(p["nodePort"].int_or(0));
    ports.push_back(one + "/" + p["protocol"].string_or("TCP"));
  }
  return Value(joined(ports, "<none>"));
}

std::vector<Column> service_columns() {
  return {name_column(),
          text("Type", 0, at("spec.type")),
          text("Cluster-IP", 0, at("spec.clusterIP", "<none>")),
          text("External-IP", 0, [](const Value&, WallTime) { return Value("<none>"); }),
          text("Port(s)", 0, service_ports),
          age_column(),
          text("Selector", 1, [](const Value& o, WallTime) {
            std::vector<std::string> pairs;
            for (const json::Member& m : o["spec"]["selector"].members())
              pairs.push_back(m.first + "=" + m.second.string_or(""));
            return Value(joined(pairs, "<none>"));
          })};
}

}  // namespace

std::vector<Column> scale_columns() {
  return {name_column(),
          {"Desired", "integer", "", "", 0,
           [](const Value& o, WallTime) { return Value(o["spec"]["replicas"].int_or(0)); }},
          {"Available", "integer", "", "", 0,
           [](const Value& o, WallTime) { return Value(o["status"]["replicas"].int_or(0)); }},
          age_column()};
}

std::vector<Column> builtin_columns(const kube::ResourceInfo& info) {
  const std::string& kind = info.type.kind;
  if (kind == "Pod") return pod_columns();
  if (kind == "Node") return node_columns();
  if (kind == "Event") return event_columns();
  if (kind == "PersistentVolumeClaim") return claim_columns();
  if (kind == "PersistentVolume") return volume_columns();
  if (kind == "Service") return service_columns();
  if (kind == "Namespace")
    return {name_column(), text("Status", 0, at("status.phase")), age_column()};
  if (kind == "Secret")
    return {name_column(), text("Type", 0, at("type")), text("Data", 0, count("data")),
            age_column()};
  if (kind == "ConfigMap")
    return {name_column(),
            text("Data", 0,
                 [](const Value& o, WallTime) {
                   return Value(o["data"].size() + o["binaryData"].size());
                 }),
            age_column()};
  if (kind == "ServiceAccount")
    return {name_column(), text("Secrets", 0, count("secrets")), age_column()};
  if (kind == "Lease")
    return {name_column(), text("Holder", 0, at("spec.holderIdentity")), age_column()};
  if (kind == "PriorityClass")
    return {name_column(), text("Value", 0, at("value")),
            text("Global-Default", 0,
                 [](const Value& o, WallTime) { return Value(o["globalDefault"].bool_or(false)); }),
            age_column(), text("PreemptionPolicy", 0, at("preemptionPolicy"))};
  if (kind == "StorageClass")
    return {name_column(),
            text("Provisioner", 0, at("provisioner")),
            text("ReclaimPolicy", 0, at("reclaimPolicy")),
            text("VolumeBindingMode", 0, at("volumeBindingMode")),
            text("AllowVolumeExpansion", 0,
                 [](const Value& o, WallTime) {
                   return Value(o["allowVolumeExpansion"].bool_or(false));
                 }),
            age_column()};
  if (kind == "CustomResourceDefinition")
    return {name_column(), text("Created At", 0, at("metadata.creationTimestamp"))};
  return {};
}

}  // namespace rubato::apiserver
