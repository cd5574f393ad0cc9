#include "kube/objects/storage.h"

#include "kube/objects/decode.h"
#include "kube/quantity.h"

namespace rubato::kube {
namespace {

AccessModes modes_of(const json::Value& list) {
  AccessModes modes;
  for (const json::Value& item : list.items()) {
    const std::string name = item.string_or("");
    if (name == "ReadWriteOnce") modes.one_node = true;
    if (name == "ReadOnlyMany" || name == "ReadWriteMany") modes.many_nodes = true;
    if (name == "ReadWriteOncePod") modes.one_pod = true;
    modes.names.push_back(name);
  }
  return modes;
}

std::int64_t bytes_of(const json::Value& quantity) {
  if (quantity.is_int()) return quantity.int_or(0);
  const auto bytes = parse_quantity(quantity.string_view_or(""));
  return bytes.ok() ? *bytes : 0;
}

Claim::Phase claim_phase_of(std::string_view text) {
  if (text == "Bound") return Claim::Phase::kBound;
  return text == "Lost" ? Claim::Phase::kLost : Claim::Phase::kPending;
}

}  // namespace

Result<Claim> Claim::decode(const json::Value& value) {
  Claim claim;
  TRY(claim.meta, decode_meta(ValueView(value)));
  const json::Value& spec = value["spec"];
  claim.phase = claim_phase_of(value["status"]["phase"].string_view_or(""));
  claim.volume = spec["volumeName"].string_or("");
  if (spec["storageClassName"].is_string())
    claim.storage_class = spec["storageClassName"].string_or("");
  claim.modes = modes_of(spec["accessModes"]);
  claim.volume_mode = spec["volumeMode"].string_or("Filesystem");
  claim.requested = bytes_of(spec["resources"]["requests"]["storage"]);
  auto selector = Selector::from_object(spec["selector"]);
  claim.selector = selector.ok() ? std::move(selector).value() : Selector::nothing();
  claim.selected_node = value["metadata"]["annotations"][kSelectedNode].string_or("");
  return claim;
}

Result<Volume> Volume::decode(const json::Value& value) {
  Volume volume;
  TRY(volume.meta, decode_meta(ValueView(value)));
  const json::Value& spec = value["spec"];
  volume.storage_class = spec["storageClassName"].string_or("");
  volume.modes = modes_of(spec["accessModes"]);
  volume.volume_mode = spec["volumeMode"].string_or("Filesystem");
  volume.capacity = bytes_of(spec["capacity"]["storage"]);
  volume.nodes =
      decode_node_terms(ValueView(spec["nodeAffinity"]["required"]["nodeSelectorTerms"]));
  volume.available = value["status"]["phase"].string_view_or("") == "Available";
  if (const json::Value& claim = spec["claimRef"]; claim.is_object()) {
    volume.claim = Key{claim["namespace"].string_or(""), claim["name"].string_or("")};
    volume.claim_uid = claim["uid"].string_or("");
  }
  return volume;
}

Result<StorageClass> StorageClass::decode(const json::Value& value) {
  StorageClass found;
  TRY(found.meta, decode_meta(ValueView(value)));
  found.provisioner = value["provisioner"].string_or("");
  found.waits_for_consumer =
      value["volumeBindingMode"].string_view_or("") == "WaitForFirstConsumer";
  for (const json::Value& term : value["allowedTopologies"].items())
    found.topologies.terms.push_back(
        node_term(decode_expressions(ValueView(term["matchLabelExpressions"]), "In"),
                  json::Value::object({})));
  const json::Value& annotations = value["metadata"]["annotations"];
  for (const char* key : {"storageclass.kubernetes.io/is-default-class",
                          "storageclass.beta.kubernetes.io/is-default-class"})
    if (annotations[key].string_view_or("") == "true") found.is_default = true;
  return found;
}

}  // namespace rubato::kube
