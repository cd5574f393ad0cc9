#include "apiserver/memory/merge.h"

#include "apiserver/memory/schema.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

namespace rubato::kube::merge {
namespace {

using json::Value;

const Value kNull;

enum class ListKind { kAtomic, kSet, kMap };
struct ListRule {
  ListKind kind = ListKind::kAtomic;
  std::vector<std::string> keys;
};

// Lists of built-in kinds that merge, by field name: the names mean the same wherever they occur.
ListRule builtin_rule(const std::string& name) {
  static const std::map<std::string, std::string> kKeys = {
      {"containers", "name"},
      {"initContainers", "name"},
      {"ephemeralContainers", "name"},
      {"volumes", "name"},
      {"env", "name"},
      {"imagePullSecrets", "name"},
      {"volumeMounts", "mountPath"},
      {"volumeDevices", "devicePath"},
      {"conditions", "type"},
      {"addresses", "type"},
      {"ownerReferences", "uid"},
      {"hostAliases", "ip"},
      {"podIPs", "ip"},
      {"secrets", "name"},
      {"topologySpreadConstraints", "topologyKey"}};
  if (name == "finalizers" || name == "podCIDRs") return {ListKind::kSet, {}};
  const auto it = kKeys.find(name);
  if (it == kKeys.end()) return {};
  return {ListKind::kMap, {it->second}};
}

ListRule ports_rule(const Value& patch) {
  const char* key = patch.size() > 0 && patch[0].has("containerPort") ? "containerPort" : "port";
  return {ListKind::kMap, {key}};
}

ListRule rule_of(const std::string& name, const Value& schema, const Value& patch) {
  if (!schema.is_null()) {
    const std::string type = schema["x-kubernetes-list-type"].string_or("atomic");
    if (type == "set") return {ListKind::kSet, {}};
    if (type != "map") return {};
    ListRule rule{ListKind::kMap, {}};
    for (const Value& key : schema["x-kubernetes-list-map-keys"].items())
      rule.keys.push_back(key.string_or(""));
    return rule;
  }
  return name == "ports" ? ports_rule(patch) : builtin_rule(name);
}

bool same_item(const Value& a, const Value& b, const std::vector<std::string>& keys) {
  return std::ranges::all_of(keys, [&](const std::string& key) { return a[key] == b[key]; });
}

class Merger {
 public:
  explicit Merger(bool directives) : directives_(directives) {}

  void object(Value& target, const Value& patch, const Value& schema) {
    if (!target.is_object()) target = Value::object();
    if (directives_) before_members(target, patch);
    for (const json::Member& member : patch.members()) {
      const std::string& key = member.first;
      if (directives_ && key.starts_with('$')) continue;
      const Value& wanted = member.second;
      if (wanted.is_null() || (directives_ && wanted["$patch"].string_view_or("") == "delete")) {
        target.erase(key);
      } else {
        Value current = target[key];
        value(current, wanted, key, child_schema(schema, key));
        target.set(key, std::move(current));
      }
    }
  }

 private:
  // Inside metadata and where the schema ends, built-in rules hold.
  static const Value& child_schema(const Value& schema, const std::string& key) {
    if (schema.is_null() || key == "metadata") return kNull;
    return schema::member_schema(schema, key);
  }

  void value(Value& target, const Value& patch, const std::string& name, const Value& schema) {
    if (patch.is_object()) {
      if (directives_ && patch["$patch"].string_view_or("") == "replace") {
        target = patch;
        target.erase("$patch");
        return;
      }
      object(target, patch, schema);
    } else if (patch.is_array()) {
      list(target, patch, rule_of(name, schema, patch), schema["items"]);
    } else {
      target = patch;
    }
  }

  void list(Value& target, const Value& patch, const ListRule& rule, const Value& item_schema) {
    const bool replace = directives_ && std::ranges::any_of(patch.items(), [](const Value& item) {
                           return item["$patch"].string_view_or("") == "replace";
                         });
    if (rule.kind == ListKind::kAtomic || replace || !target.is_array()) {
      target = Value::array();
      for (const Value& item : patch.items())
        if (!item.has("$patch")) target.push_back(item);
      return;
    }
    for (const Value& item : patch.items()) {
      if (rule.kind == ListKind::kSet) {
        if (std::ranges::find(target.items(), item) == target.items().end()) target.push_back(item);
      } else {
        map_item(target, item, rule, item_schema);
      }
    }
  }

  void map_item(Value& target, const Value& item, const ListRule& rule, const Value& schema) {
    const auto found = std::ranges::find_if(
        target.items(), [&](const Value& present) { return same_item(present, item, rule.keys); });
    const auto at = static_cast<std::size_t>(found - target.items().begin());
    const bool present = found != target.items().end();
    if (directives_ && item["$patch"].string_view_or("") == "delete") {
      if (present) {
        auto& items = target.mutable_items();
        items.erase(items.begin() + static_cast<std::ptrdiff_t>(at));
      }
    } else if (present) {
      Value merged = target[at];
      object(merged, item, schema);
      target.at(at) = std::move(merged);
    } else {
      target.push_back(item);
    }
  }

  static void before_members(Value& target, const Value& patch) {
    static constexpr std::string_view kDelete = "$deleteFromPrimitiveList/";
    for (const json::Member& member : patch.members()) {
      if (member.first == "$retainKeys") {
        retain(target, member.second);
      } else if (member.first.starts_with(kDelete)) {
        const std::string name = member.first.substr(kDelete.size());
        Value left = Value::array();
        for (const Value& item : target[name].items())
          if (std::ranges::find(member.second.items(), item) == member.second.items().end())
            left.push_back(item);
        if (target.has(name)) target.set(name, std::move(left));
      }
    }
  }

  static void retain(Value& target, const Value& keys) {
    std::vector<std::string> gone;
    for (const json::Member& member : target.members())
      if (std::ranges::find(keys.items(), Value(member.first)) == keys.items().end())
        gone.push_back(member.first);
    for (const std::string& key : gone) target.erase(key);
  }

  bool directives_;
};

}  // namespace

void apply(Value& target, const Value& patch, const Value& schema) {
  Merger(false).object(target, patch, schema);
}

void strategic(Value& target, const Value& patch) { Merger(true).object(target, patch, kNull); }

}  // namespace rubato::kube::merge
