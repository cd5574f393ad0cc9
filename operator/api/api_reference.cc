// docs/api.md.
#include "operator/api/conditions.h"
#include "operator/api/crd.h"
#include "operator/api/job_spec.h"
#include "operator/api/rules.h"

#include <algorithm>
#include <span>

namespace rubato::api {

namespace {

std::string number_text(double number) {
  const json::Value whole = static_cast<std::int64_t>(number);
  return json::dump(whole.double_or(0) == number ? whole : json::Value(number));
}

std::string anchor(std::string_view name) {
  std::string out;
  for (const char c : name) out += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

std::string bounds_text(const TypeSchema& type) {
  std::string out;
  if (type.minimum)
    out += std::string(type.exclusive_minimum ? " > " : " ≥ ") + number_text(*type.minimum);
  if (type.maximum) out += (out.empty() ? " ≤ " : ", ≤ ") + number_text(*type.maximum);
  return out;
}

std::string type_text(const TypeSchema& type) {
  switch (type.type) {
    case ValueType::kBool:
      return "boolean";
    case ValueType::kInt32:
    case ValueType::kInt64:
      return "integer" + bounds_text(type);
    case ValueType::kDouble:
      return "number" + bounds_text(type);
    case ValueType::kTime:
      return "time (RFC 3339)";
    case ValueType::kIntOrString:
      return "`auto` or integer" + bounds_text(type);
    case ValueType::kObject:
      return "[" + type.object->name() + "](#" + anchor(type.object->name()) + ")";
    case ValueType::kArray:
      return "list of " + type_text(type.items.front()) +
             (type.max_items ? ", at most " + std::to_string(*type.max_items) : "");
    case ValueType::kMap:
      return "map of " + type_text(type.items.front());
    case ValueType::kPodTemplate:
      return "PodTemplateSpec";
    case ValueType::kString:
      break;
  }
  if (type.choices.empty())
    return type.max_length ? "string, ≤ " + std::to_string(*type.max_length) : "string";
  std::string out;
  for (const std::string& word : type.choices) out += (out.empty() ? "`" : ", `") + word + "`";
  return out;
}

std::string default_text(const FieldSchema& field) {
  if (field.required) return "*required*";
  if (!field.default_value || field.default_value->is_object()) return "";
  return "`" +
         (field.default_value->is_string() ? field.default_value->string_or("")
                                           : json::dump(*field.default_value)) +
         "`";
}

// Structs in the order a reader meets them, each once.
void collect(const ObjectSchema& schema, std::vector<const ObjectSchema*>& out) {
  if (std::find(out.begin(), out.end(), &schema) != out.end()) return;
  out.push_back(&schema);
  for (const FieldSchema& field : schema.fields()) {
    const TypeSchema& type = field.type;
    const TypeSchema& inner = type.items.empty() ? type : type.items.front();
    if (inner.object != nullptr) collect(*inner.object, out);
  }
}

std::string struct_table(const ObjectSchema& schema, bool is_status) {
  std::string out = "#### " + schema.name() + "\n\n" + schema.doc() + "\n\n";
  out += is_status ? "| field | type | what |\n| --- | --- | --- |\n"
                   : "| field | type | default | what |\n| --- | --- | --- | --- |\n";
  for (const FieldSchema& field : schema.fields()) {
    out += "| `" + field.name + "` | " + type_text(field.type) + " | ";
    if (!is_status) out += default_text(field) + " | ";
    out += field.doc + (field.immutable ? " *Cannot change.*" : "") + " |\n";
  }
  return out + "\n";
}

std::string columns_table(const Kind& kind) {
  std::string out = "| column | what | from |\n| --- | --- | --- |\n";
  for (const Column& column : kind.columns)
    out += "| " + column.name + (column.wide ? " (`-o wide`)" : "") + " | " + column.doc + " | `" +
           column.json_path + "` |\n";
  return out + "\n";
}

std::string rules_table(const Kind& kind) {
  std::string out;
  for (const Rule& rule : rules()) {
    if (rule.kind != kind.type.kind || rule.id.starts_with("immutable-")) continue;
    const std::string path = rule.scope.empty() ? rule.field.substr(1) : rule.scope + rule.field;
    out += "| `" + path + "` | " + rule.message + " |\n";
  }
  if (out.empty()) return out;
  return "### Rules\n\nRefused by the API server, with these words:\n\n| field | message |\n"
         "| --- | --- |\n" +
         out + "\n";
}

std::string presets_table() {
  std::string out =
      "### Model presets\n\n| preset | layers | hidden | heads | vocab | what |\n"
      "| --- | --- | --- | --- | --- | --- |\n";
  for (const ModelPreset& preset : model_presets()) {
    out += "| `" + std::string(preset.name) + "` | ";
    const ModelSpec& model = preset.model;
    for (const auto& size : {model.layers, model.hidden, model.heads, model.vocab})
      out += std::to_string(size.value_or(0)) + " | ";
    out += std::string(preset.about) + " |\n";
  }
  return out + "\n";
}

std::string conditions_table() {
  std::string out = "#### Types of conditions\n\n| type | True means |\n| --- | --- |\n";
  for (const ConditionAbout& type : condition_types())
    out += "| `" + std::string(type.type) + "` | " + std::string(type.about) + " |\n";
  return out + "\n";
}

std::string kind_section(const Kind& kind) {
  std::string out = "## " + kind.type.kind + "\n\n" + kind.doc + "\n\n";
  out += "`" + kind.type.plural + "." + kind.type.group + "`, short name `" + kind.short_name +
         "`, " + (kind.type.namespaced ? "namespaced" : "cluster-scoped") +
         (kind.has_scale ? "; `kubectl scale --replicas` sets `spec.gpus.max`" : "") + ".\n\n";
  out += columns_table(kind);
  std::vector<const ObjectSchema*> structs;
  collect(*kind.spec, structs);
  out += "### Spec\n\n";
  for (const ObjectSchema* schema : structs) out += struct_table(*schema, false);
  if (kind.type.kind == "TrainingJob") out += presets_table();
  out += rules_table(kind);
  if (kind.status == nullptr) return out;
  const std::size_t told = structs.size();
  collect(*kind.status, structs);
  out += "### Status\n\n";
  for (const ObjectSchema* schema : std::span(structs).subspan(told))
    // Conditions are the same everywhere: told once.
    if (schema->name() != "Condition" || kind.type.kind == "TrainingJob")
      out += struct_table(*schema, true);
  if (kind.type.kind == "TrainingJob") out += conditions_table();
  return out;
}

}  // namespace

std::string api_reference() {
  std::string out =
      "# The API: rubato.dev/v1alpha1\n\n"
      "<!-- Written by rubato-apigen from the descriptors in operator/api. Change those, then run "
      "`make crds`. -->\n\n";
  for (const Kind& kind : kinds())
    out += "- [" + kind.type.kind + "](#" + anchor(kind.type.kind) + "): " + kind.doc + "\n";
  out += "\n";
  for (const Kind& kind : kinds()) out += kind_section(kind);
  while (out.ends_with("\n\n")) out.pop_back();
  return out;
}

}  // namespace rubato::api
