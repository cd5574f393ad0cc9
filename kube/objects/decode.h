// Decoding of the parts that projections share, as templates over the reader: ValueView (a
// json::Value) or RawView (simdjson). For .cc files only.
#pragma once

#include "common/json.h"
#include "kube/objects/meta.h"
#include "kube/objects/node_terms.h"

#include <algorithm>
#include <string>

namespace rubato::kube {

// json::Value with the visiting interface of RawView.
class ValueView {
 public:
  explicit ValueView(const json::Value& value) : value_(&value) {}
  ValueView operator[](std::string_view key) const { return ValueView((*value_)[key]); }
  bool is_null() const { return value_->is_null(); }
  bool is_object() const { return value_->is_object(); }
  bool is_string() const { return value_->is_string(); }
  bool is_int() const { return value_->is_int(); }
  bool bool_or(bool fallback) const { return value_->bool_or(fallback); }
  std::int64_t int_or(std::int64_t fallback) const { return value_->int_or(fallback); }
  std::string_view string_view_or(std::string_view fallback) const {
    return value_->string_view_or(fallback);
  }
  std::string string_or(std::string_view fallback) const {
    return std::string(string_view_or(fallback));
  }
  template <class Visit>
  void for_items(Visit visit) const {
    for (const auto& item : value_->items()) visit(ValueView(item));
  }
  template <class Visit>
  void for_members(Visit visit) const {
    for (const auto& [key, value] : value_->members())
      visit(std::string_view(key), ValueView(value));
  }

 private:
  const json::Value* value_;
};

// A time that is absent or malformed reads as the epoch.
WallTime decode_time(std::string_view text);
// Adds `text` to the amount of `resource`; a quantity that is malformed counts as nothing.
void add_amount(Amounts& amounts, std::string_view resource, std::string_view text);
// Element-wise sum and maximum.
void add_amounts(Amounts& target, const Amounts& other);
void raise_amounts(Amounts& target, const Amounts& other);

template <class View>
StringMap decode_string_map(const View& view, std::string_view prefix = {}) {
  StringMap map;
  view.for_members([&](std::string_view key, const View& value) {
    if (key.substr(0, prefix.size()) != prefix) return;
    map.emplace_back(std::string(key), value.string_or(""));
  });
  std::sort(map.begin(), map.end());
  map.shrink_to_fit();
  return map;
}

template <class View>
void decode_amounts(const View& view, Amounts& amounts) {
  view.for_members([&](std::string_view resource, const View& value) {
    if (value.is_int()) {
      add_amount(amounts, resource, std::to_string(value.int_or(0)));
    } else {
      add_amount(amounts, resource, value.string_view_or(""));
    }
  });
}

template <class View>
std::vector<ObjectCondition> decode_conditions(const View& view) {
  std::vector<ObjectCondition> conditions;
  view.for_items([&](const View& item) {
    conditions.push_back(ObjectCondition{
        item["type"].string_or(""), item["status"].string_or(""), item["reason"].string_or(""),
        decode_time(item["lastTransitionTime"].string_view_or(""))});
  });
  conditions.shrink_to_fit();
  return conditions;
}

// kInvalid without a name.
template <class View>
Result<Meta> decode_meta(const View& object) {
  const View view = object["metadata"];
  Meta meta;
  meta.ns = view["namespace"].string_or("");
  meta.name = view["name"].string_or("");
  if (meta.name.empty()) return Error(Code::kInvalid, "an object without metadata.name");
  meta.uid = view["uid"].string_or("");
  meta.resource_version = view["resourceVersion"].string_or("");
  meta.generation = view["generation"].int_or(0);
  meta.created = decode_time(view["creationTimestamp"].string_view_or(""));
  if (const View deleting = view["deletionTimestamp"]; deleting.is_string())
    meta.deleting = decode_time(deleting.string_view_or(""));
  meta.labels = decode_string_map(view["labels"]);
  meta.annotations = decode_string_map(view["annotations"], kKeptAnnotationPrefix);
  view["ownerReferences"].for_items([&](const View& owner) {
    if (!owner["controller"].bool_or(false)) return;
    meta.owner =
        Owner{owner["kind"].string_or(""), owner["name"].string_or(""), owner["uid"].string_or("")};
  });
  view["finalizers"].for_items(
      [&](const View& item) { meta.finalizers.push_back(item.string_or("")); });
  return meta;
}

// Requirements of a term as a LabelSelector object. `operation`: of those that name none, as in
// allowedTopologies of a StorageClass.
template <class View>
json::Value decode_expressions(const View& list, std::string_view operation = {}) {
  json::Value expressions = json::Value::array();
  list.for_items([&](const View& item) {
    json::Value values = json::Value::array();
    item["values"].for_items([&](const View& value) { values.push_back(value.string_or("")); });
    expressions.push_back(json::Value::object({{"key", item["key"].string_or("")},
                                               {"operator", item["operator"].string_or(operation)},
                                               {"values", std::move(values)}}));
  });
  return json::Value::object({{"matchExpressions", std::move(expressions)}});
}

inline NodeTerm node_term(const json::Value& labels, const json::Value& fields) {
  auto of_labels = Selector::from_object(labels);
  auto of_fields = Selector::from_object(fields);
  bool understood = of_labels.ok() && of_fields.ok();
  if (understood) {
    understood = !of_labels.value().empty() || !of_fields.value().empty();
    for (const Requirement& field : of_fields.value().requirements())
      if (field.key != "metadata.name") understood = false;
  }
  if (!understood) return {Selector::nothing(), Selector()};
  return {std::move(of_labels).value(), std::move(of_fields).value()};
}

// A list of nodeSelectorTerms.
template <class View>
NodeTerms decode_node_terms(const View& list) {
  NodeTerms all;
  list.for_items([&](const View& term) {
    all.terms.push_back(node_term(decode_expressions(term["matchExpressions"]),
                                  decode_expressions(term["matchFields"])));
  });
  return all;
}

}  // namespace rubato::kube
