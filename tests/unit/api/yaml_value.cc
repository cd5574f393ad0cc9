#include "tests/unit/api/yaml_value.h"

#include <yaml-cpp/yaml.h>

namespace rubato::api {

namespace {

json::Value scalar(const YAML::Node& node) {
  const std::string text = node.Scalar();
  if (node.Tag() == "!") return text;  // quoted
  if (text == "true" || text == "false") return text == "true";
  if (text == "null" || text == "~" || text.empty()) return nullptr;
  // A number is whatever JSON takes for one; everything else is a string.
  const char first = text.front();
  if (first == '-' || (first >= '0' && first <= '9')) {
    const auto number = json::parse(text);
    if (number.ok() && number->is_number()) return *number;
  }
  return text;
}

json::Value value_of(const YAML::Node& node) {
  if (node.IsMap()) {
    json::Value out = json::Value::object();
    for (const auto& member : node) out.set(member.first.Scalar(), value_of(member.second));
    return out;
  }
  if (node.IsSequence()) {
    json::Value out = json::Value::array();
    for (const auto& item : node) out.push_back(value_of(item));
    return out;
  }
  return node.IsScalar() ? scalar(node) : json::Value();
}

}  // namespace

Result<json::Value> read_yaml(const std::string& path) {
  try {
    return value_of(YAML::LoadFile(path));
  } catch (const YAML::Exception& error) {
    return Error(Code::kInvalid, path + ": " + error.what());
  }
}

}  // namespace rubato::api
