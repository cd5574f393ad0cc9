#include "apiserver/memory/whole_floats.h"

#include "apiserver/memory/schema.h"
#include "apiserver/memory/schema_path.h"

#include <algorithm>
#include <cctype>
#include <cmath>

namespace rubato::kube::schema {
namespace {

using json::Value;

constexpr double kMostWhole = 9007199254740991;  // 2^53 - 1

bool is_whole_float(const Value& value) {
  if (value.is_int() || !value.is_number()) return false;
  const double number = value.double_or(0);
  return std::abs(number) <= kMostWhole && std::floor(number) == number;
}

bool is_int_or_string(const Value& schema) {
  return schema["x-kubernetes-int-or-string"].bool_or(false);
}

bool take(Value& value, const Value& before, const Value& schema, std::vector<std::string>& path,
          bool in_list, std::vector<WholeFloat>& found) {
  if (is_whole_float(value)) {
    if (!is_int_or_string(schema) && schema["type"].string_view_or("") != "integer") return false;
    value = static_cast<std::int64_t>(value.double_or(0));
    if (!in_list) found.push_back({path, is_int_or_string(schema)});
    return true;
  }
  if (is_shared(value, before)) return false;
  bool changed = false;
  for (std::size_t i = 0; i < value.size(); ++i) {
    const bool is_item = value.is_array();
    const std::string key = is_item ? "" : value.members()[i].first;
    const Value& sub = is_item ? schema["items"] : member_schema(schema, key);
    if (!sub.is_object()) continue;
    Value copy = is_item ? value[i] : value.members()[i].second;
    path.push_back(key);
    if (take(copy, is_item ? before[i] : before[key], sub, path, in_list || is_item, found)) {
      changed = true;
      (is_item ? value.at(i) : value.at(key)) = std::move(copy);
    }
    path.pop_back();
  }
  return changed;
}

// Does the rule read self.PATH, or compare an object on the way to it as a whole?
bool names(std::string_view rule, const WholeFloat& number, std::size_t from) {
  std::string text = "self";
  for (std::size_t i = from; i < number.path.size(); ++i) {
    text += "." + number.path[i];
    const bool is_last = i + 1 == number.path.size();
    for (std::size_t at = rule.find(text); at != std::string_view::npos;
         at = rule.find(text, at + 1)) {
      const std::size_t end = at + text.size();
      const char next = end < rule.size() ? rule[end] : ' ';
      if (std::isalnum(static_cast<unsigned char>(next)) != 0 || next == '_') continue;
      const bool only_asked_for = at >= 4 && rule.substr(at - 4, 4) == "has(";
      if (is_last || (next != '.' && !only_asked_for)) return true;
    }
  }
  return false;
}

class Reader {
 public:
  Reader(const WholeFloat& number, UnreadRules& out) : number_(number), out_(out) {}

  void look(const Value& old_object, const Value& schema, std::size_t depth,
            const std::string& path) {
    for (const Value& rule : schema["x-kubernetes-validations"].items()) {
      const std::string_view text = rule["rule"].string_view_or("");
      const bool is_of_change = text.find("oldSelf") != std::string_view::npos;
      if ((!is_of_change || !old_object.is_null()) && names(text, number_, depth))
        add(path, rule["message"].string_or(std::string(text)));
    }
    if (depth + 1 >= number_.path.size()) return;
    const std::string& key = number_.path[depth];
    look(old_object[key], member_schema(schema, key), depth + 1, join(path, key));
  }

 private:
  void add(const std::string& path, const std::string& message) {
    if (std::ranges::find(out_.messages, message) != out_.messages.end()) return;
    const char* wanted = number_.int_or_string
                             ? "XIntOrString value to be either a string or integer"
                             : "int, got float64";
    out_.messages.push_back(message);
    out_.errors.push_back(field::invalid(
        path, "object",
        std::string("invalid data, expected ") + wanted + " evaluating rule: " + message));
  }

  const WholeFloat& number_;
  UnreadRules& out_;
};

}  // namespace

std::vector<WholeFloat> take_whole_floats(Value& object, const Value& before, const Value& schema) {
  std::vector<WholeFloat> found;
  std::vector<std::string> path;
  take(object, before, schema, path, false, found);
  return found;
}

UnreadRules unread_rules(const std::vector<WholeFloat>& floats, const Value& old_object,
                         const Value& schema) {
  UnreadRules out;
  for (const WholeFloat& number : floats) Reader(number, out).look(old_object, schema, 0, "");
  return out;
}

}  // namespace rubato::kube::schema
