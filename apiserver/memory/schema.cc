#include "apiserver/memory/schema.h"

#include "apiserver/memory/schema_path.h"

namespace rubato::kube::schema {
namespace {

using json::Value;

const Value kNull;

bool preserves(const Value& schema) {
  return schema["x-kubernetes-preserve-unknown-fields"].bool_or(false);
}

void prune_at(Value& value, const Value& schema, const std::string& path, bool resource,
              std::vector<std::string>& removed);

void prune_object(Value& value, const Value& schema, const std::string& path, bool resource,
                  std::vector<std::string>& removed) {
  std::vector<std::string> unknown;
  for (const json::Member& member : value.members()) {
    if (resource && is_root_member(member.first)) continue;
    const Value& sub = member_schema(schema, member.first);
    if (!sub.is_null()) continue;
    if (preserves(schema) || schema["additionalProperties"].bool_or(false)) continue;
    unknown.push_back(member.first);
  }
  for (const std::string& key : unknown) {
    removed.push_back(join(path, key));
    value.erase(key);
  }
  for (std::size_t i = 0; i < value.size(); ++i) {
    const std::string key = value.members()[i].first;
    const Value& child = value.members()[i].second;
    if ((resource && is_root_member(key)) || (!child.is_object() && !child.is_array())) continue;
    const Value& sub = member_schema(schema, key);
    if (sub.is_null()) continue;
    Value copy = child;
    const std::size_t before = removed.size();
    prune_at(copy, sub, join(path, key), sub["x-kubernetes-embedded-resource"].bool_or(false),
             removed);
    if (removed.size() != before) value.set(key, std::move(copy));  // no write: still shared
  }
}

void prune_at(Value& value, const Value& schema, const std::string& path, bool resource,
              std::vector<std::string>& removed) {
  if (value.is_object()) {
    prune_object(value, schema, path, resource, removed);
  } else if (value.is_array() && schema["items"].is_object()) {
    for (std::size_t i = 0; i < value.size(); ++i) {
      Value copy = value[i];
      const std::size_t before = removed.size();
      prune_at(copy, schema["items"], index(path, i),
               schema["items"]["x-kubernetes-embedded-resource"].bool_or(false), removed);
      if (removed.size() != before) value.at(i) = std::move(copy);
    }
  }
}

bool fill_at(Value& value, const Value& schema, bool root);

// A null where none may stand reads as if the field were missing.
bool fill_member(Value& value, const std::string& key, const Value& sub) {
  const Value* present = value.find(key);
  const Value* fallback = sub.find("default");
  bool changed = false;
  if (present != nullptr && present->is_null() && !sub["nullable"].bool_or(false)) {
    changed = value.erase(key);
    present = nullptr;
  }
  if (present == nullptr) {
    if (fallback == nullptr) return changed;
    Value filled = *fallback;
    fill_at(filled, sub, false);
    value.set(key, std::move(filled));
    return true;
  }
  if (!present->is_object() && !present->is_array()) return false;
  Value copy = *present;
  if (!fill_at(copy, sub, false)) return false;
  value.set(key, std::move(copy));
  return true;
}

// True when something was filled in.
bool fill_at(Value& value, const Value& schema, bool root) {
  bool changed = false;
  if (value.is_object()) {
    for (const json::Member& property : schema["properties"].members())
      if (!root || !is_root_member(property.first))
        changed |= fill_member(value, property.first, property.second);
    if (const Value& extra = schema["additionalProperties"]; extra.is_object())
      for (std::size_t i = 0; i < value.size(); ++i) {
        const std::string key = value.members()[i].first;
        if (!schema["properties"].has(key)) changed |= fill_member(value, key, extra);
      }
  } else if (value.is_array() && schema["items"].is_object()) {
    for (std::size_t i = 0; i < value.size(); ++i) {
      Value copy = value[i];
      if (!fill_at(copy, schema["items"], false)) continue;
      value.at(i) = std::move(copy);
      changed = true;
    }
  }
  return changed;
}

}  // namespace

const Value& member_schema(const Value& schema, std::string_view key) {
  if (const Value* property = schema["properties"].find(key)) return *property;
  const Value& extra = schema["additionalProperties"];
  return extra.is_object() ? extra : kNull;
}

std::vector<std::string> prune(Value& object, const Value& schema) {
  std::vector<std::string> removed;
  prune_at(object, schema, "", true, removed);
  return removed;
}

void fill_defaults(Value& object, const Value& schema) { fill_at(object, schema, true); }

bool has_rules(const Value& schema) {
  if (schema.has("x-kubernetes-validations")) return true;
  for (const json::Member& property : schema["properties"].members())
    if (has_rules(property.second)) return true;
  return (schema["items"].is_object() && has_rules(schema["items"])) ||
         (schema["additionalProperties"].is_object() && has_rules(schema["additionalProperties"]));
}

}  // namespace rubato::kube::schema
