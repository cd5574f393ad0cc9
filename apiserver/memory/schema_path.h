// Private to schema*.cc: paths as the API writes them, and what a resource's root always has.
#pragma once

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

}  // namespace rubato::kube::schema
