// How each C++ type of the API is written in JSON: its TypeSchema, decode and encode. Included by
// schema_builder.h only.
#pragma once

#include "common/clock.h"
#include "common/json.h"
#include "common/result.h"
#include "operator/api/codec.h"
#include "operator/api/enums.h"
#include "operator/api/job_spec.h"
#include "operator/api/pod_template.h"
#include "operator/api/schema.h"

#include <limits>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

namespace rubato::api {

template <class T>
concept Described = requires { T::schema(); };

Error wrong_type(const std::string& path, const char* wanted);
Error wrong_word(const std::string& path, std::string_view word);

// One specialisation per type; `decode` sees a value that is present and not null.
template <class T>
struct ValueCodec;

template <>
struct ValueCodec<bool> {
  static TypeSchema type() { return {.type = ValueType::kBool}; }
  static Status decode(bool& out, const json::Value& value, const std::string& path) {
    if (!value.is_bool()) return wrong_type(path, "a boolean");
    out = value.bool_or(false);
    return ok();
  }
  static json::Value encode(bool value) { return value; }
};

template <class T>
  requires(std::is_same_v<T, std::int32_t> || std::is_same_v<T, std::int64_t>)
struct ValueCodec<T> {
  static TypeSchema type() {
    return {.type = sizeof(T) == 4 ? ValueType::kInt32 : ValueType::kInt64};
  }
  static Status decode(T& out, const json::Value& value, const std::string& path) {
    const char* wanted = sizeof(T) == 4 ? "a 32-bit integer" : "a 64-bit integer";
    if (!value.is_int()) return wrong_type(path, value.is_number() ? wanted : "an integer");
    const std::int64_t number = value.int_or(0);
    if (number < std::numeric_limits<T>::min() || number > std::numeric_limits<T>::max())
      return wrong_type(path, wanted);
    out = static_cast<T>(number);
    return ok();
  }
  static json::Value encode(T value) { return static_cast<std::int64_t>(value); }
};

template <>
struct ValueCodec<double> {
  static TypeSchema type() { return {.type = ValueType::kDouble}; }
  static Status decode(double& out, const json::Value& value, const std::string& path) {
    if (!value.is_number()) return wrong_type(path, "a number");
    out = value.double_or(0);
    return ok();
  }
  static json::Value encode(double value) { return value; }
};

template <>
struct ValueCodec<std::string> {
  static TypeSchema type() { return {.type = ValueType::kString}; }
  static Status decode(std::string& out, const json::Value& value, const std::string& path) {
    if (!value.is_string()) return wrong_type(path, "a string");
    out = value.string_or("");
    return ok();
  }
  static json::Value encode(const std::string& value) { return value; }
};

template <>
struct ValueCodec<WallTime> {
  static TypeSchema type() { return {.type = ValueType::kTime}; }
  static Status decode(WallTime& out, const json::Value& value, const std::string& path) {
    if (!value.is_string()) return wrong_type(path, "a time");
    auto time = parse_rfc3339(value.string_view_or(""));
    if (!time.ok()) return time.error().in(path);
    out = *time;
    return ok();
  }
  static json::Value encode(WallTime value) { return to_rfc3339(value); }
};

template <Worded E>
struct ValueCodec<E> {
  static TypeSchema type() {
    TypeSchema out{.type = ValueType::kString};
    for (const std::string_view word : words(E{})) out.choices.emplace_back(word);
    return out;
  }
  static Status decode(E& out, const json::Value& value, const std::string& path) {
    if (!value.is_string()) return wrong_type(path, "a string");
    const auto found = parse<E>(value.string_view_or(""));
    if (!found) return wrong_word(path, value.string_view_or(""));
    out = *found;
    return ok();
  }
  static json::Value encode(E value) { return std::string(name_of(value)); }
};

template <>
struct ValueCodec<AutoOr> {
  static TypeSchema type() {
    return {.type = ValueType::kIntOrString, .pattern = "^auto$", .minimum = 1};
  }
  static Status decode(AutoOr& out, const json::Value& value, const std::string& path) {
    out.degree.reset();
    if (value.is_string() && value.string_view_or("") == "auto") return ok();
    return ValueCodec<std::int32_t>::decode(out.degree.emplace(), value, path);
  }
  static json::Value encode(const AutoOr& value) {
    return value.degree ? json::Value(*value.degree) : json::Value("auto");
  }
};

// The only value that is kept as it is: a job's template.
template <>
struct ValueCodec<json::Value> {
  static TypeSchema type() { return {.type = ValueType::kPodTemplate}; }
  static Status decode(json::Value& out, const json::Value& value, const std::string& path) {
    TRY_OK(check_pod_template(value, path));
    out = value;
    return ok();
  }
  static json::Value encode(const json::Value& value) { return value; }
};

template <Described T>
struct ValueCodec<T> {
  static TypeSchema type() { return {.type = ValueType::kObject, .object = &T::schema()}; }
  static Status decode(T& out, const json::Value& value, const std::string& path) {
    return decode_into(T::schema(), &out, value, path);
  }
  static json::Value encode(const T& value) { return encode_from(T::schema(), &value); }
};

template <class T>
struct ValueCodec<std::optional<T>> {
  static TypeSchema type() { return ValueCodec<T>::type(); }
  static Status decode(std::optional<T>& out, const json::Value& value, const std::string& path) {
    return ValueCodec<T>::decode(out.emplace(), value, path);
  }
  static json::Value encode(const std::optional<T>& value) {
    return value ? ValueCodec<T>::encode(*value) : json::Value();
  }
};

template <class T>
struct ValueCodec<std::vector<T>> {
  static TypeSchema type() { return {.type = ValueType::kArray, .items = {ValueCodec<T>::type()}}; }
  static Status decode(std::vector<T>& out, const json::Value& value, const std::string& path) {
    if (!value.is_array()) return wrong_type(path, "a list");
    out.clear();
    for (std::size_t i = 0; i < value.size(); ++i)
      TRY_OK(ValueCodec<T>::decode(out.emplace_back(), value[i],
                                   path + "[" + std::to_string(i) + "]"));
    return ok();
  }
  static json::Value encode(const std::vector<T>& value) {
    json::Value out = json::Value::array();
    for (const T& item : value) out.push_back(ValueCodec<T>::encode(item));
    return out;
  }
};

template <class T>
struct ValueCodec<std::map<std::string, T>> {
  static TypeSchema type() { return {.type = ValueType::kMap, .items = {ValueCodec<T>::type()}}; }
  static Status decode(std::map<std::string, T>& out, const json::Value& value,
                       const std::string& path) {
    if (!value.is_object()) return wrong_type(path, "an object");
    out.clear();
    for (const auto& [key, item] : value.members()) {
      std::string member_path = path;
      member_path.append(".").append(key);
      TRY_OK(ValueCodec<T>::decode(out[key], item, member_path));
    }
    return ok();
  }
  static json::Value encode(const std::map<std::string, T>& value) {
    json::Value out = json::Value::object();
    for (const auto& [key, item] : value) out.set(key, ValueCodec<T>::encode(item));
    return out;
  }
};

}  // namespace rubato::api
