#include "operator/api/codec.h"

#include "operator/api/value_codec.h"

namespace rubato::api {

Error wrong_type(const std::string& path, const char* wanted) {
  return Error(Code::kInvalid, path + ": must be " + wanted);
}

Error wrong_word(const std::string& path, std::string_view word) {
  return Error(Code::kInvalid, path + ": unknown word \"" + std::string(word) + "\"");
}

const FieldSchema* ObjectSchema::find(std::string_view field) const {
  for (const FieldSchema& candidate : fields_)
    if (candidate.name == field) return &candidate;
  return nullptr;
}

Status decode_into(const ObjectSchema& schema, void* object, const json::Value& value,
                   const std::string& path) {
  if (value.is_null()) return ok();
  if (!value.is_object()) return wrong_type(path, "an object");
  for (const FieldSchema& field : schema.fields()) {
    const json::Value& member = value[field.name];
    if (member.is_null()) continue;
    TRY_OK(field.decode(object, member, path.empty() ? field.name : path + "." + field.name));
  }
  return ok();
}

namespace {

bool is_empty(const json::Value& value) {
  switch (value.type()) {
    case json::Value::Type::kNull:
      return true;
    case json::Value::Type::kString:
      return value.string_view_or("").empty();
    case json::Value::Type::kArray:
    case json::Value::Type::kObject:
      return value.size() == 0;
    case json::Value::Type::kBool:
    case json::Value::Type::kInt:
    case json::Value::Type::kDouble:
      return false;
  }
  return false;
}

}  // namespace

json::Value encode_from(const ObjectSchema& schema, const void* object) {
  json::Value out = json::Value::object();
  for (const FieldSchema& field : schema.fields()) {
    json::Value value = field.encode(object);
    if (!field.required && is_empty(value)) continue;
    out.set(field.name, std::move(value));
  }
  return out;
}

bool is_same(const json::Value& a, const json::Value& b) {
  if (a.is_int() && b.is_int()) return a == b;
  if (a.is_number() && b.is_number()) return a.double_or(0) == b.double_or(0);
  if (a.is_array() && b.is_array()) {
    if (a.size() != b.size()) return false;
    for (std::size_t i = 0; i < a.size(); ++i)
      if (!is_same(a[i], b[i])) return false;
    return true;
  }
  if (a.is_object() && b.is_object()) {
    if (a.size() != b.size()) return false;
    for (const auto& [key, value] : a.members())
      if (!b.has(key) || !is_same(value, b[key])) return false;
    return true;
  }
  return a == b;
}

json::Value diff(const json::Value& before, const json::Value& after) {
  json::Value patch = json::Value::object();
  for (const auto& [key, value] : after.members()) {
    const json::Value& old = before[key];
    if (is_same(value, old)) continue;
    if (value.is_object() && old.is_object())
      patch.set(key, diff(old, value));
    else
      patch.set(key, value);
  }
  for (const auto& [key, value] : before.members())
    if (!value.is_null() && after[key].is_null()) patch.set(key, nullptr);
  return patch;
}

}  // namespace rubato::api
