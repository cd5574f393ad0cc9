#include "apiserver/memory/shape.h"

#include "common/net/certificates.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <vector>

namespace rubato::kube::shape {
namespace {

using json::Value;

enum class Type { kObject, kString, kInteger, kInt32, kBase64 };

// "spec.containers[].ports[]" is each item of a list, "metadata.labels{}" each member of an object.
// What stands on the way must be objects and lists accordingly.
struct Rule {
  std::string path;
  Type type = Type::kObject;
};
using Rules = std::vector<Rule>;

const Rules& metadata_rules() {
  static const Rules kRules = {{"metadata", Type::kObject},
                               {"metadata.name", Type::kString},
                               {"metadata.generateName", Type::kString},
                               {"metadata.namespace", Type::kString},
                               {"metadata.uid", Type::kString},
                               {"metadata.resourceVersion", Type::kString},
                               {"metadata.labels{}", Type::kString},
                               {"metadata.annotations{}", Type::kString},
                               {"metadata.ownerReferences[]", Type::kObject},
                               {"metadata.ownerReferences[].uid", Type::kString},
                               {"metadata.finalizers[]", Type::kString}};
  return kRules;
}

const Rules& builtin_rules() {
  static const Rules kRules = {{"spec", Type::kObject}, {"status", Type::kObject}};
  return kRules;
}

Rules pod_rules() {
  Rules rules;
  for (const char* list : {"spec.initContainers[]", "spec.containers[]"}) {
    rules.push_back({list, Type::kObject});
    for (const char* member :
         {".resources.limits", ".resources.requests", ".ports[]", ".env[].valueFrom.fieldRef",
          ".livenessProbe", ".readinessProbe", ".startupProbe"})
      rules.push_back({std::string(list) + member, Type::kObject});
  }
  for (const char* path : {"spec.volumes[]", "spec.volumes[].secret", "spec.volumes[].configMap",
                           "spec.volumes[].downwardAPI", "spec.volumes[].projected",
                           "spec.tolerations[]", "spec.schedulingGates[]", "status.conditions[]"})
    rules.push_back({path, Type::kObject});
  return rules;
}

// Of the built-in kinds, beside what all of them share.
const Rules& rules_of(const std::string& kind) {
  static const std::map<std::string, Rules> kRules = {
      {"Pod", pod_rules()},
      {"Node", {{"status.conditions[]", Type::kObject}, {"status.addresses[]", Type::kObject}}},
      {"Secret", {{"data{}", Type::kBase64}, {"stringData{}", Type::kString}}},
      {"ConfigMap", {{"data{}", Type::kString}, {"binaryData{}", Type::kBase64}}},
      {"Lease", {{"spec.leaseDurationSeconds", Type::kInt32}}},
      {"Service", {{"spec.ports[]", Type::kObject}}},
      {"PersistentVolumeClaim", {{"spec.accessModes[]", Type::kString}}},
      {"PersistentVolume", {{"spec.accessModes[]", Type::kString}}},
      {"Event",
       {{"involvedObject", Type::kObject},
        {"regarding", Type::kObject},
        {"series", Type::kObject}}},
      {"PriorityClass", {{"value", Type::kInteger}}},
      {"CustomResourceDefinition",
       {{"spec.names", Type::kObject},
        {"spec.versions[]", Type::kObject},
        {"status.conditions[]", Type::kObject}}},
      {"Scale", {{"spec.replicas", Type::kInteger}}},
      {"Binding", {{"target", Type::kObject}}},
      {"Eviction",
       {{"deleteOptions.preconditions", Type::kObject}, {"deleteOptions.dryRun[]", Type::kString}}},
      {"DeleteOptions",
       {{"preconditions", Type::kObject},
        {"gracePeriodSeconds", Type::kInteger},
        {"propagationPolicy", Type::kString},
        {"dryRun[]", Type::kString}}}};
  static const Rules kNone;
  const auto it = kRules.find(kind);
  return it == kRules.end() ? kNone : it->second;
}

const char* json_type(const Value& value) {
  if (value.is_object()) return "object";
  if (value.is_array()) return "array";
  if (value.is_string()) return "string";
  if (value.is_number()) return "number";
  return value.is_bool() ? "bool" : "null";
}

bool fits(const Value& value, Type type) {
  switch (type) {
    case Type::kObject:
      return value.is_object();
    case Type::kString:
      return value.is_string();
    case Type::kInteger:
      return value.is_int();
    case Type::kInt32: {
      const std::int64_t number = value.int_or(0);
      return value.is_int() && number == static_cast<std::int32_t>(number);
    }
    case Type::kBase64:
      return value.is_string() && net::base64_decode(value.string_or("")).ok();
  }
  return false;
}

// As Go names it.
const char* name_of(Type type) {
  switch (type) {
    case Type::kObject:
      return "map[string]interface {}";
    case Type::kString:
      return "string";
    case Type::kInteger:
      return "int64";
    case Type::kInt32:
      return "int32";
    case Type::kBase64:
      return "[]uint8";
  }
  return "";
}

class Walker {
 public:
  Walker(const std::string& kind, const Rule& rule) : kind_(kind), path_(rule.path), rule_(rule) {}

  // Of the value at the first `at` characters of the path.
  std::optional<std::string> misfit(const Value& value, std::size_t at) const {
    if (value.is_null()) return std::nullopt;
    const std::string_view rest = path_.substr(at);
    if (rest.empty()) {
      if (fits(value, rule_.type)) return std::nullopt;
      if (rule_.type == Type::kBase64 && value.is_string()) return "illegal base64 data";
      return refusal(value, at, name_of(rule_.type));
    }
    if (rest.starts_with("[]")) {
      if (!value.is_array()) return refusal(value, at, "[]interface {}");
      for (const Value& item : value.items())
        if (auto found = misfit(item, at + 2)) return found;
      return std::nullopt;
    }
    if (!value.is_object()) return refusal(value, at, name_of(Type::kObject));
    if (rest.starts_with("{}")) {
      for (const json::Member& member : value.members())
        if (auto found = misfit(member.second, at + 2)) return found;
      return std::nullopt;
    }
    const std::size_t begin = rest.front() == '.' ? at + 1 : at;
    const std::size_t end = std::min(path_.find_first_of(".[{", begin), path_.size());
    return misfit(value[path_.substr(begin, end - begin)], end);
  }

 private:
  std::string refusal(const Value& value, std::size_t at, const char* wanted) const {
    std::string where;
    for (const char c : path_.substr(0, at))
      if (std::string_view("[]{}").find(c) == std::string_view::npos) where += c;
    return std::string("json: cannot unmarshal ") + json_type(value) + " into Go struct field " +
           (where.starts_with("metadata.") ? "ObjectMeta" : kind_) + "." + where + " of type " +
           wanted;
  }

  const std::string& kind_;
  std::string_view path_;
  const Rule& rule_;
};

std::optional<std::string> misfit_of(const Rules& rules, const std::string& kind,
                                     const Value& object) {
  for (const Rule& rule : rules)
    if (auto found = Walker(kind, rule).misfit(object, 0)) return found;
  return std::nullopt;
}

}  // namespace

std::optional<std::string> misfit(const std::string& kind, const Value& object) {
  if (!object.is_object())
    return std::string("json: cannot unmarshal ") + json_type(object) + " into Go value of type " +
           (kind.empty() ? name_of(Type::kObject) : kind.c_str());
  if (auto found = misfit_of(metadata_rules(), kind, object)) return found;
  if (kind.empty()) return std::nullopt;
  if (auto found = misfit_of(builtin_rules(), kind, object)) return found;
  return misfit_of(rules_of(kind), kind, object);
}

}  // namespace rubato::kube::shape
