// validate(): one walk over object and schema together.
#include "apiserver/memory/schema.h"
#include "apiserver/memory/schema_path.h"

#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <regex>
#include <set>

namespace rubato::kube::schema {
namespace {

using json::Value;

// std::regex recurses per character: longer strings are refused by any pattern.
constexpr std::size_t kPatternBytes = 16 * 1024;

const char* type_name(const Value& value) {
  switch (value.type()) {
    case Value::Type::kNull:
      return "null";
    case Value::Type::kBool:
      return "boolean";
    case Value::Type::kInt:
      return "integer";
    case Value::Type::kDouble:
      return "number";
    case Value::Type::kString:
      return "string";
    case Value::Type::kArray:
      return "array";
    case Value::Type::kObject:
      return "object";
  }
  return "null";
}

const char* format_name(const Value& value) {
  if (value.is_int()) return "int64";
  return value.is_number() ? "float64" : "";
}

// What is read as a float, 1.0 or a number beyond 64 bits, is one while floats count in ones.
bool is_whole(double number) {
  constexpr double kMost = 9007199254740991;  // 2^53 - 1
  return std::abs(number) <= kMost && std::floor(number) == number;
}

bool has_type(const Value& value, const std::string& type) {
  if (type == "integer")
    return value.is_int() || (value.is_number() && is_whole(value.double_or(0)));
  if (type == "number") return value.is_number();
  return type == type_name(value);
}

// As kube-apiserver does (IsDateTime of kube-openapi's strfmt): any mark before the fraction, any
// digits in the zone, and anything behind a second "t" will do, but no leap second.
bool is_date_time(const std::string& text) {
  static const std::regex kForm(
      "(\\d{4})-(\\d\\d)-(\\d\\d)[Tt](\\d\\d):(\\d\\d):(\\d\\d)(.\\d+)?"
      "([Zz]|[+-]\\d\\d:\\d\\d)([Tt].*)?");
  std::smatch part;
  if (text.size() > kPatternBytes || !std::regex_match(text, part, kForm)) return false;
  const auto number = [&](std::size_t at) { return std::stoi(part[at]); };
  const std::chrono::year_month_day date{std::chrono::year(number(1)),
                                         std::chrono::month(static_cast<unsigned>(number(2))),
                                         std::chrono::day(static_cast<unsigned>(number(3)))};
  return date.ok() && number(4) <= 23 && number(5) <= 59 && number(6) <= 59;
}

std::size_t runes(std::string_view text) {
  std::size_t n = 0;
  for (const char c : text) n += (static_cast<unsigned char>(c) & 0xC0) != 0x80 ? 1 : 0;
  return n;
}

// Compiled once per pattern; a pattern that does not compile matches everything.
bool matches(const std::string& text, const std::string& pattern) {
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<const std::regex>> cache;
  std::shared_ptr<const std::regex> compiled;
  {
    const std::lock_guard lock(mutex);
    auto [it, fresh] = cache.try_emplace(pattern);
    if (fresh) {
      try {
        it->second = std::make_shared<std::regex>(pattern, std::regex::ECMAScript);
      } catch (const std::regex_error&) {
        it->second = nullptr;
      }
    }
    compiled = it->second;
  }
  if (compiled == nullptr) return true;
  return text.size() <= kPatternBytes && std::regex_search(text, *compiled);
}

std::string number_text(const Value& value) { return json::dump(value); }

// The real server compares integers with the whole part of a bound.
Value bound_for(const Value& value, const Value& bound) {
  return value.is_int() ? Value(static_cast<std::int64_t>(bound.double_or(0))) : bound;
}

class Walker {
 public:
  std::vector<FieldError> errors;
  std::vector<FieldError> lists;  // of list types: the real server looks at them last

  // `before`: what stood at this path, null when nothing did.
  void walk(const Value& value, const Value& before, const Value& schema, const std::string& path,
            bool resource) {
    if (is_shared(value, before)) return;
    if (value.is_null() && schema["nullable"].bool_or(false)) return;
    if (!check_type(value, schema, path)) {
      check_enum(value, schema, path);
      if (value.is_number()) check_number(value, schema, path);
      return;
    }
    check_enum(value, schema, path);
    if (value.is_number()) check_number(value, schema, path);
    if (value.is_string()) check_string(value, schema, path);
    if (value.is_array()) check_array(value, before, schema, path);
    if (value.is_object()) check_object(value, before, schema, path, resource);
    check_logic(value, schema, path);
  }

 private:
  std::string in_body(const std::string& path) const { return path + " in body "; }

  bool check_type(const Value& value, const Value& schema, const std::string& path) {
    if (schema["x-kubernetes-int-or-string"].bool_or(false)) {
      if (value.is_int() || value.is_string()) return true;
      errors.push_back(field::type_invalid(
          path, type_name(value),
          in_body(path) + "must be of type integer,string: \"" + type_name(value) + "\""));
      return false;
    }
    const std::string type = schema["type"].string_or("");
    if (type.empty() || has_type(value, type)) return true;
    // The real server looks at no list where a text of some format stands.
    if (type == "string" && schema.has("format") && value.is_array()) return true;
    // With a format the real server names that, and the format of what it got.
    const std::string format = schema["format"].string_or("");
    const bool by_format = !format.empty() && !value.is_string() && !value.is_array();
    const std::string wanted = by_format ? format : type;
    const std::string got = by_format ? format_name(value) : type_name(value);
    errors.push_back(field::type_invalid(
        path, got, in_body(path) + "must be of type " + wanted + ": \"" + got + "\""));
    if (type == "integer" && value.is_number())
      errors.push_back(field::invalid(
          "<nil>", "",
          "Checked value must be of type integer " +
              (format.empty() ? "(default format)" : "with format " + format) + " in " + path));
    return false;
  }

  void check_enum(const Value& value, const Value& schema, const std::string& path) {
    const Value& allowed = schema["enum"];
    if (!allowed.is_array()) return;
    std::vector<std::string> names;
    for (const Value& item : allowed.items()) {
      if (item == value) return;
      names.push_back(item.is_string() ? item.string_or("") : json::dump(item));
    }
    errors.push_back(field::not_supported(path, value, names));
  }

  void check_number(const Value& value, const Value& schema, const std::string& path) {
    const double number = value.double_or(0);
    if (const Value* found = schema.find("maximum")) {
      const Value max = bound_for(value, *found);
      const bool exclusive = schema["exclusiveMaximum"].bool_or(false);
      if (number > max.double_or(0) || (exclusive && number >= max.double_or(0)))
        errors.push_back(field::invalid(
            path, value,
            in_body(path) +
                (exclusive ? "should be less than " : "should be less than or equal to ") +
                number_text(max)));
    }
    if (const Value* found = schema.find("minimum")) {
      const Value min = bound_for(value, *found);
      const bool exclusive = schema["exclusiveMinimum"].bool_or(false);
      if (number < min.double_or(0) || (exclusive && number <= min.double_or(0)))
        errors.push_back(field::invalid(
            path, value,
            in_body(path) +
                (exclusive ? "should be greater than " : "should be greater than or equal to ") +
                number_text(min)));
    }
    if (const Value* step = schema.find("multipleOf"))
      if (step->double_or(0) > 0 && std::fmod(number, step->double_or(1)) != 0)
        errors.push_back(field::invalid(
            path, value, in_body(path) + "should be a multiple of " + number_text(*step)));
    if (schema["format"].string_or("") == "int32" &&
        (number > std::numeric_limits<std::int32_t>::max() ||
         number < std::numeric_limits<std::int32_t>::min()))
      errors.push_back(field::invalid(
          path, value, "Checked value must be of type integer with format int32 in " + path));
  }

  // Length and pattern: the first that fails, as the real server; the format apart.
  void check_text(const Value& value, const std::string& text, const Value& schema,
                  const std::string& path) {
    const auto length = static_cast<std::int64_t>(runes(text));
    const Value* max = schema.find("maxLength");
    const Value* min = schema.find("minLength");
    const Value* pattern = schema.find("pattern");
    if (max != nullptr && length > max->int_or(length))
      errors.push_back({path, "Too long: may not be more than " + number_text(*max) + " bytes",
                        "FieldValueTooLong"});
    else if (min != nullptr && length < min->int_or(0))
      errors.push_back(field::invalid(
          path, value, in_body(path) + "should be at least " + number_text(*min) + " chars long"));
    else if (pattern != nullptr && !matches(text, pattern->string_or("")))
      errors.push_back(field::invalid(
          path, value, in_body(path) + "should match '" + pattern->string_or("") + "'"));
  }

  void check_string(const Value& value, const Value& schema, const std::string& path) {
    const std::string text = value.string_or("");
    check_text(value, text, schema, path);
    if (schema["format"].string_or("") == "date-time" && !is_date_time(text))
      errors.push_back(field::type_invalid(
          path, value, in_body(path) + "must be of type date-time: " + json::dump(value)));
  }

  void check_array(const Value& value, const Value& before, const Value& schema,
                   const std::string& path) {
    const auto size = static_cast<std::int64_t>(value.size());
    if (const Value* max = schema.find("maxItems"); max != nullptr && size > max->int_or(size))
      errors.push_back({path,
                        "Too many: " + std::to_string(size) + ": must have at most " +
                            number_text(*max) + " items",
                        "FieldValueTooMany"});
    if (const Value* min = schema.find("minItems"); min != nullptr && size < min->int_or(0))
      errors.push_back(field::invalid(
          path, size, in_body(path) + "should have at least " + number_text(*min) + " items"));
    check_list_type(value, schema, path);
    if (!schema["items"].is_object()) return;
    for (std::size_t i = 0; i < value.size(); ++i)
      walk(value[i], before[i], schema["items"], index(path, i),
           schema["items"]["x-kubernetes-embedded-resource"].bool_or(false));
  }

  void check_list_type(const Value& value, const Value& schema, const std::string& path) {
    const std::string type = schema["x-kubernetes-list-type"].string_or("atomic");
    const bool unique = schema["uniqueItems"].bool_or(false);
    if (type == "atomic" && !unique) return;
    std::set<std::string> seen;
    for (std::size_t i = 0; i < value.size(); ++i) {
      Value key = value[i];
      if (type == "map" && !key.is_object()) {
        lists.push_back(
            field::invalid(index(path, i), key, "must be an object for an array of list-type map"));
        continue;
      }
      if (type == "map") {
        key = Value::object();
        for (const Value& name : schema["x-kubernetes-list-map-keys"].items())
          if (const Value* part = value[i].find(name.string_or("")))
            key.set(name.string_or(""), *part);
      }
      if (!seen.insert(json::dump(key)).second)
        lists.push_back(field::duplicate(index(path, i), key));
    }
  }

  void check_object(const Value& value, const Value& before, const Value& schema,
                    const std::string& path, bool resource) {
    for (const Value& name : schema["required"].items())
      if (!value.has(name.string_or("")))
        errors.push_back(field::required(join(path, name.string_or(""))));
    const auto size = static_cast<std::int64_t>(value.size());
    if (const Value* max = schema.find("maxProperties"); max != nullptr && size > max->int_or(size))
      errors.push_back({path,
                        "Too many: " + std::to_string(size) + ": must have at most " +
                            number_text(*max) + " items",
                        "FieldValueTooMany"});
    if (const Value* min = schema.find("minProperties"); min != nullptr && size < min->int_or(0))
      errors.push_back(field::invalid(
          path, size, in_body(path) + "should have at least " + number_text(*min) + " properties"));
    for (const json::Member& member : value.members()) {
      if (resource && is_root_member(member.first)) continue;
      const Value& sub = member_schema(schema, member.first);
      if (sub.is_object())
        walk(member.second, before[member.first], sub, join(path, member.first),
             sub["x-kubernetes-embedded-resource"].bool_or(false));
    }
  }

  // Value validations in allOf / anyOf / oneOf / not; messages of the real server for the failing
  // combination only.
  void check_logic(const Value& value, const Value& schema, const std::string& path) {
    for (const Value& part : schema["allOf"].items()) walk(value, Value(), part, path, false);
    if (const Value* any = schema.find("anyOf"); any != nullptr && count(value, *any, path) == 0)
      errors.push_back(
          field::invalid(path, value, in_body(path) + "must validate at least one schema (anyOf)"));
    if (const Value* one = schema.find("oneOf"); one != nullptr && count(value, *one, path) != 1)
      errors.push_back(field::invalid(
          path, value, in_body(path) + "must validate one and only one schema (oneOf)"));
    if (const Value* no = schema.find("not")) {
      Walker inner;
      inner.walk(value, Value(), *no, path, false);
      if (inner.errors.empty())
        errors.push_back(
            field::invalid(path, value, in_body(path) + "must not validate the schema (not)"));
    }
  }

  std::size_t count(const Value& value, const Value& schemas, const std::string& path) const {
    std::size_t valid = 0;
    for (const Value& part : schemas.items()) {
      Walker inner;
      inner.walk(value, Value(), part, path, false);
      valid += inner.errors.empty() ? 1 : 0;
    }
    return valid;
  }
};

}  // namespace

std::vector<FieldError> validate(const Value& object, const Value& before, const Value& schema) {
  Walker walker;
  walker.walk(object, before, schema, "", true);
  walker.errors.insert(walker.errors.end(), walker.lists.begin(), walker.lists.end());
  return std::move(walker.errors);
}

}  // namespace rubato::kube::schema
