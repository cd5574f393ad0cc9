#include "apiserver/memory/scale.h"

#include <limits>
#include <vector>

namespace rubato::kube {
namespace {

using json::Value;

// ".spec.gpus.max" → {"spec", "gpus", "max"}
std::vector<std::string> parts(const std::string& path) {
  std::vector<std::string> out;
  std::size_t at = path.starts_with('.') ? 1 : 0;
  while (at < path.size()) {
    const std::size_t dot = path.find('.', at);
    out.push_back(path.substr(at, dot - at));
    if (dot == std::string::npos) break;
    at = dot + 1;
  }
  return out;
}

const Value& read(const Value& object, const std::string& path) {
  const Value* here = &object;
  for (const std::string& part : parts(path)) here = &(*here)[part];
  return *here;
}

// As Go names and prints it.
const char* go_type(const Value& value) {
  if (value.is_string()) return "string";
  if (value.is_bool()) return "bool";
  if (value.is_int()) return "int64";
  if (value.is_number()) return "float64";
  return value.is_array() ? "[]interface {}" : "map[string]interface {}";
}

std::string go_text(const Value& value) {
  if (value.is_string()) return value.string_or("");
  if (!value.is_array()) {
    const std::string text = json::dump(value);
    return value.is_number() && text.ends_with(".0") ? text.substr(0, text.size() - 2) : text;
  }
  std::string text;
  for (const Value& item : value.items()) text += (text.empty() ? "" : " ") + go_text(item);
  return "[" + text + "]";
}

FieldError not_read(const std::string& path, const Value& found, const char* wanted) {
  return field::invalid(path, 0,
                        path + " accessor error: " + go_text(found) + " is of the type " +
                            go_type(found) + ", expected " + wanted);
}

void check_count(const Value& object, const std::string& path, std::vector<FieldError>& errors) {
  const Value* here = &object;
  for (const std::string& part : parts(path)) {
    if (!here->is_null() && !here->is_object())
      return errors.push_back(not_read(path, *here, "map[string]interface{}"));
    here = &(*here)[part];
  }
  const Value& value = *here;
  if (value.is_null()) return;
  if (!value.is_int()) return errors.push_back(not_read(path, value, "int64"));
  const std::int64_t count = value.int_or(0);
  constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();
  if (count < 0)
    errors.push_back(field::invalid(path, value, "should be a non-negative integer"));
  else if (count > kMax)
    errors.push_back(
        field::invalid(path, value, "should be less than or equal to " + std::to_string(kMax)));
}

}  // namespace

bool has_scale(const ResourceInfo& info) { return !info.scale.spec_replicas.empty(); }

Value scale_of(const ResourceInfo& info, const Value& object) {
  const Value& meta = object["metadata"];
  Value out_meta = Value::object();
  for (const char* key : {"name", "namespace", "uid", "resourceVersion", "creationTimestamp"})
    if (const Value* value = meta.find(key)) out_meta.set(key, *value);
  Value spec = Value::object();
  if (const std::int64_t replicas = read(object, info.scale.spec_replicas).int_or(0); replicas != 0)
    spec.set("replicas", replicas);
  Value status = Value::object({{"replicas", read(object, info.scale.status_replicas).int_or(0)}});
  if (!info.scale.label_selector.empty())
    if (const Value& selector = read(object, info.scale.label_selector); selector.is_string())
      status.set("selector", selector);
  return Value::object({{"kind", "Scale"},
                        {"apiVersion", "autoscaling/v1"},
                        {"metadata", std::move(out_meta)},
                        {"spec", std::move(spec)},
                        {"status", std::move(status)}});
}

void set_scale(const ResourceInfo& info, Value& object, const Value& scale) {
  Value* here = &object;
  for (const std::string& part : parts(info.scale.spec_replicas)) {
    if (!here->is_object()) *here = Value::object();
    here = &here->at(part);
  }
  *here = scale["spec"]["replicas"].int_or(0);
  if (const Value* version = scale["metadata"].find("resourceVersion"))
    object.at("metadata").set("resourceVersion", *version);
}

std::vector<FieldError> scale_errors(const ResourceInfo& info, const Value& object) {
  std::vector<FieldError> errors;
  if (!has_scale(info)) return errors;
  check_count(object, info.scale.spec_replicas, errors);
  check_count(object, info.scale.status_replicas, errors);
  return errors;
}

}  // namespace rubato::kube
