#include "operator/api/crd.h"

#include "operator/api/resources.h"
#include "operator/api/rules.h"

#include <cmath>

namespace rubato::api {

namespace {

using json::Value;

Value number_of(double number) {
  if (std::floor(number) == number && std::abs(number) < 1e15)
    return static_cast<std::int64_t>(number);
  return number;
}

// Rules whose scope is `path`, as x-kubernetes-validations.
Value validations(const std::string& kind, const std::string& path) {
  Value out = Value::array();
  for (const Rule& rule : rules()) {
    if (rule.kind != kind || rule.scope != path) continue;
    out.push_back(
        Value::object({{"rule", rule.cel}, {"fieldPath", rule.field}, {"message", rule.message}}));
  }
  return out;
}

Value type_schema(const TypeSchema& type, const std::string& kind, const std::string& path);

void set_object(Value& out, const ObjectSchema& schema, const std::string& kind,
                const std::string& path) {
  out.set("type", "object");
  Value properties = Value::object();
  Value required = Value::array();
  for (const FieldSchema& field : schema.fields()) {
    Value member = Value::object({{"description", field.doc}});
    const Value type = type_schema(field.type, kind, path + "." + field.name);
    for (const auto& [key, value] : type.members()) member.set(key, value);
    if (field.default_value) member.set("default", *field.default_value);
    properties.set(field.name, std::move(member));
    if (field.required) required.push_back(field.name);
  }
  if (required.size() > 0) out.set("required", std::move(required));
  out.set("properties", std::move(properties));
  Value rules_here = validations(kind, path);
  if (rules_here.size() > 0) out.set("x-kubernetes-validations", std::move(rules_here));
}

Value list_of(Value items, std::int64_t at_most) {
  return Value::object({{"type", "array"}, {"maxItems", at_most}, {"items", std::move(items)}});
}

// PodTemplateSpec as far as the API server should look into it: what rules speak of. The rest is
// kept as it is and is checked by a dry-run Pod.
Value pod_template(const std::string& kind, const std::string& path) {
  const Value anything =
      Value::object({{"type", "object"}, {"x-kubernetes-preserve-unknown-fields", true}});
  const Value text = Value::object({{"type", "string"}});
  const auto with = [&](Value properties) {
    Value out = anything;
    out.set("properties", std::move(properties));
    return out;
  };
  const Value port = with(
      Value::object({{"hostPort", Value::object({{"type", "integer"}, {"format", "int32"}})}}));
  Value container = anything;
  container.set("required", Value::array({"name"}));
  container.set("properties", Value::object({{"name", text},
                                             {"command", list_of(text, 256)},
                                             {"ports", list_of(port, 256)}}));
  const Value init_containers = list_of(container, 64);
  Value containers = list_of(std::move(container), 64);
  containers.set("minItems", 1);
  Value spec = with(Value::object(
      {{"containers", std::move(containers)},
       {"initContainers", init_containers},
       {"affinity",
        with(Value::object({{"podAffinity", anything},
                            {"podAntiAffinity", anything},
                            {"nodeAffinity",
                             with(Value::object({{"preferredDuringSchedulingIgnoredDuringExecution",
                                                  list_of(anything, 64)}}))}}))},
       {"topologySpreadConstraints", list_of(anything, 64)},
       {"schedulingGates", list_of(anything, 64)},
       {"resourceClaims", list_of(anything, 64)},
       {"nodeName", text},
       {"schedulerName", text},
       {"priorityClassName", text},
       {"restartPolicy", text},
       {"terminationGracePeriodSeconds", Value::object({{"type", "integer"}, {"format", "int64"}})},
       {"hostNetwork", Value::object({{"type", "boolean"}})}}));
  spec.set("required", Value::array({"containers"}));
  spec.set("x-kubernetes-validations", validations(kind, path + ".spec"));
  Value out = Value::object({{"type", "object"}, {"required", Value::array({"spec"})}});
  out.set("properties", Value::object({{"metadata", anything}, {"spec", spec}}));
  return out;
}

void set_plain(Value& out, const char* type, const char* format) {
  out.set("type", type);
  if (format != nullptr) out.set("format", format);
}

void set_bounds(Value& out, const TypeSchema& type) {
  if (type.minimum) out.set("minimum", number_of(*type.minimum));
  if (type.exclusive_minimum) out.set("exclusiveMinimum", true);
  if (type.maximum) out.set("maximum", number_of(*type.maximum));
  if (type.min_length) out.set("minLength", *type.min_length);
  if (type.max_length) out.set("maxLength", *type.max_length);
  const bool is_map = type.type == ValueType::kMap;
  if (type.min_items) out.set(is_map ? "minProperties" : "minItems", *type.min_items);
  if (type.max_items) out.set(is_map ? "maxProperties" : "maxItems", *type.max_items);
  if (!type.pattern.empty()) out.set("pattern", type.pattern);
  if (!type.choices.empty()) {
    Value words = Value::array();
    for (const std::string& word : type.choices) words.push_back(word);
    out.set("enum", std::move(words));
  }
}

Value type_schema(const TypeSchema& type, const std::string& kind, const std::string& path) {
  Value out = Value::object();
  switch (type.type) {
    case ValueType::kBool:
      set_plain(out, "boolean", nullptr);
      break;
    case ValueType::kInt32:
      set_plain(out, "integer", "int32");
      break;
    case ValueType::kInt64:
      set_plain(out, "integer", "int64");
      break;
    case ValueType::kDouble:
      set_plain(out, "number", nullptr);
      break;
    case ValueType::kString:
      set_plain(out, "string", nullptr);
      break;
    case ValueType::kTime:
      set_plain(out, "string", "date-time");
      break;
    case ValueType::kIntOrString:
      out.set("x-kubernetes-int-or-string", true);
      break;
    case ValueType::kObject:
      set_object(out, *type.object, kind, path);
      break;
    case ValueType::kArray:
      set_plain(out, "array", nullptr);
      if (!type.list_map_keys.empty()) {
        Value keys = Value::array();
        for (const std::string& key : type.list_map_keys) keys.push_back(key);
        out.set("x-kubernetes-list-type", "map").set("x-kubernetes-list-map-keys", std::move(keys));
      }
      out.set("items", type_schema(type.items.front(), kind, path + "[]"));
      break;
    case ValueType::kMap:
      set_plain(out, "object", nullptr);
      out.set("additionalProperties", type_schema(type.items.front(), kind, path + "[]"));
      break;
    case ValueType::kPodTemplate:
      out = pod_template(kind, path);
      break;
  }
  set_bounds(out, type);
  return out;
}

Value root_schema(const Kind& kind) {
  const std::string& name = kind.type.kind;
  Value properties = Value::object();
  properties.set("apiVersion", Value::object({{"type", "string"}}));
  properties.set("kind", Value::object({{"type", "string"}}));
  // Named here so that rules may blame it; all of metadata is kept.
  properties.set("metadata",
                 Value::object({{"type", "object"},
                                {"properties", Value::object({{"name", Value::object({
                                                                           {"type", "string"},
                                                                       })}})}}));
  Value spec = Value::object({{"description", kind.spec->doc()}});
  set_object(spec, *kind.spec, name, "spec");
  properties.set("spec", std::move(spec));
  if (kind.status != nullptr) {
    Value status = Value::object({{"description", kind.status->doc()}});
    set_object(status, *kind.status, name, "status");
    properties.set("status", std::move(status));
  }
  Value root = Value::object({{"description", kind.doc}, {"type", "object"}});
  root.set("required", Value::array({"spec"})).set("properties", std::move(properties));
  Value rules_here = validations(name, "");
  if (rules_here.size() > 0) root.set("x-kubernetes-validations", std::move(rules_here));
  return root;
}

Value columns_of(const Kind& kind) {
  Value out = Value::array();
  for (const Column& column : kind.columns) {
    Value entry = Value::object({{"name", column.name},
                                 {"type", column.type},
                                 {"jsonPath", column.json_path},
                                 {"description", column.doc}});
    if (column.wide) entry.set("priority", 1);
    out.push_back(std::move(entry));
  }
  return out;
}

}  // namespace

Value crd(const Kind& kind) {
  Value names = Value::object({{"kind", kind.type.kind},
                               {"listKind", kind.type.kind + "List"},
                               {"plural", kind.type.plural},
                               {"singular", kind.singular},
                               {"shortNames", Value::array({kind.short_name})}});
  if (kind.in_all) names.set("categories", Value::array({"all"}));

  Value version = Value::object({{"name", kind.type.version}, {"served", true}, {"storage", true}});
  Value subresources = Value::object();
  if (kind.status != nullptr) subresources.set("status", Value::object());
  if (kind.has_scale)
    subresources.set("scale", Value::object({{"specReplicasPath", ".spec.gpus.max"},
                                             {"statusReplicasPath", ".status.replicas"},
                                             {"labelSelectorPath", ".status.selector"}}));
  if (subresources.size() > 0) version.set("subresources", std::move(subresources));
  version.set("additionalPrinterColumns", columns_of(kind));
  version.set("schema", Value::object({{"openAPIV3Schema", root_schema(kind)}}));

  Value spec = Value::object({{"group", kind.type.group},
                              {"names", std::move(names)},
                              {"scope", kind.type.namespaced ? "Namespaced" : "Cluster"},
                              {"versions", Value::array({std::move(version)})}});
  return Value::object(
      {{"apiVersion", "apiextensions.k8s.io/v1"},
       {"kind", "CustomResourceDefinition"},
       {"metadata", Value::object({{"name", kind.type.plural + "." + kind.type.group}})},
       {"spec", std::move(spec)}});
}

}  // namespace rubato::api
