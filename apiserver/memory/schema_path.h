// Private to schema*.cc and whole_floats.cc: paths as the API writes them, what a resource's root
// always has, and what an update left as it was.
#pragma once

#include "common/json.h"

#include <string>
#include <string_view>

namespace rubato::kube::schema {

inline std::string join(const std::string& path, std::string_view key) {
  return path.empty() ? std::string(key) : path + "." + std::string(key);
}
inline std::string index(const std::string& path, std::size_t i) {
  return path + "[" + std::to_string(i) + "]";
}
inline bool is_root_member(std::string_view key) {
  return key == "apiVersion" || key == "kind" || key == "metadata";
}
// Copies share their content, which is all that is looked at.
inline bool is_shared(const json::Value& value, const json::Value& before) {
  if (value.is_object()) return before.is_object() && &value.members() == &before.members();
  return value.is_array() && before.is_array() && &value.items() == &before.items();
}

}  // namespace rubato::kube::schema
