#include "operator/api/rules.h"

#include "operator/api/codec.h"
#include "operator/api/kinds.h"
#include "operator/api/rule_table.h"

namespace rubato::api {

namespace {

Rule immutable(const std::string& kind, const std::string& scope, const FieldSchema& field) {
  Rule rule;
  rule.id = "immutable-" + scope + "." + field.name;
  rule.kind = kind;
  rule.scope = scope;
  rule.field = "." + field.name;
  rule.transition = true;
  const std::string self = "self." + field.name;
  const std::string old = "oldSelf." + field.name;
  rule.cel = self + " == " + old;
  if (!field.required && !field.default_value)
    rule.cel = "has(" + self + ") == has(" + old + ") && (!has(" + self + ") || " + rule.cel + ")";
  rule.message = field.name +
                 " cannot change after creation; put the old value back, or create a new job with "
                 "another name";
  rule.holds = [name = field.name](const json::Value& now, const json::Value& before) {
    return is_same(now[name], before[name]);
  };
  return rule;
}

void add_immutables(const std::string& kind, const std::string& scope, const ObjectSchema& schema,
                    std::vector<Rule>& out) {
  for (const FieldSchema& field : schema.fields()) {
    if (field.immutable)
      out.push_back(immutable(kind, scope, field));
    else if (field.type.type == ValueType::kObject)
      add_immutables(kind, scope + "." + field.name, *field.type.object, out);
  }
}

// Calls `visit(path, self, old_self)` for each object that `scope` names. Items of a list have no
// old self: the server cannot tell which is which.
template <class Visit>
void each_in_scope(std::string_view scope, const std::string& path, const json::Value& now,
                   const json::Value& old, const Visit& visit) {
  if (now.is_null()) return;
  if (scope.empty()) return visit(path, now, old);
  const std::size_t dot = scope.find('.');
  std::string_view head = scope.substr(0, dot);
  const std::string_view rest =
      dot == std::string_view::npos ? std::string_view() : scope.substr(dot + 1);
  const bool is_list = head.ends_with("[]");
  if (is_list) head.remove_suffix(2);
  const std::string here = path.empty() ? std::string(head) : path + "." + std::string(head);
  if (!is_list) return each_in_scope(rest, here, now[head], old[head], visit);
  for (std::size_t i = 0; i < now[head].size(); ++i)
    each_in_scope(rest, here + "[" + std::to_string(i) + "]", now[head][i], json::Value(), visit);
}

}  // namespace

const std::vector<Rule>& rules() {
  static const std::vector<Rule> kAll = [] {
    std::vector<Rule> out = rule_table();
    for (const Kind& kind : kinds()) add_immutables(kind.type.kind, "spec", *kind.spec, out);
    return out;
  }();
  return kAll;
}

std::vector<Violation> validate(std::string_view kind, const json::Value& old,
                                const json::Value& now) {
  std::vector<Violation> violations;
  for (const Rule& rule : rules()) {
    if (rule.kind != kind) continue;
    each_in_scope(rule.scope, "", now, old,
                  [&](const std::string& path, const json::Value& self, const json::Value& before) {
                    if (rule.transition && before.is_null()) return;
                    if (rule.holds(self, before)) return;
                    const std::string field =
                        path.empty() ? rule.field.substr(1) : path + rule.field;
                    violations.push_back({field, rule.message});
                  });
  }
  return violations;
}

}  // namespace rubato::api
