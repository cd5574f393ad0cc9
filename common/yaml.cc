#include "common/yaml.h"

#include <charconv>
#include <cmath>
#include <cstdlib>

#include <yaml-cpp/yaml.h>

namespace rubato::yaml {
namespace {

using json::Value;

struct Budget {
  std::size_t nodes = 0;
};

bool all_digits(std::string_view text, std::string_view digits) {
  return !text.empty() && text.find_first_not_of(digits) == std::string_view::npos;
}

std::optional<Value> integer(std::string_view text) {
  const bool negative = text.starts_with('-');
  std::string_view digits = negative || text.starts_with('+') ? text.substr(1) : text;
  int base = 10;
  if (digits.starts_with("0x")) {
    base = 16;
    digits.remove_prefix(2);
  } else if (digits.starts_with("0o")) {
    base = 8;
    digits.remove_prefix(2);
  } else if (digits.size() > 1 && digits[0] == '0' && all_digits(digits, "01234567")) {
    base = 8;
  }
  std::int64_t number = 0;
  const std::string signed_text = (negative ? "-" : "") + std::string(digits);
  const char* end = signed_text.data() + signed_text.size();
  const auto [stop, error] = std::from_chars(signed_text.data(), end, number, base);
  if (error != std::errc() || stop != end || digits.empty() || digits[0] == '-')
    return std::nullopt;
  return Value(number);
}

std::optional<Value> real(std::string_view text) {
  if (text.find_first_not_of("+-.0123456789eE") != std::string_view::npos) return std::nullopt;
  if (text.find_first_of("0123456789") == std::string_view::npos) return std::nullopt;
  const std::string copy(text);
  char* end = nullptr;
  const double number = std::strtod(copy.c_str(), &end);
  if (end != copy.c_str() + copy.size() || !std::isfinite(number)) return std::nullopt;
  return Value(number);
}

Value scalar(const YAML::Node& node) {
  const std::string& text = node.Scalar();
  if (node.Tag() == "!" || node.Tag() == "tag:yaml.org,2002:str") return Value(text);  // quoted
  if (text == "true" || text == "True" || text == "TRUE") return Value(true);
  if (text == "false" || text == "False" || text == "FALSE") return Value(false);
  if (text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL")
    return Value();
  if (auto number = integer(text)) return *number;
  if (auto number = real(text)) return *number;
  return Value(text);
}

Result<Value> convert(const YAML::Node& node, std::size_t depth, Budget& budget) {
  if (depth > kMaxDepth || ++budget.nodes > kMaxNodes)
    return Error(Code::kInvalid, "YAML: the document is too deep or too large");
  switch (node.Type()) {
    case YAML::NodeType::Undefined:
    case YAML::NodeType::Null:
      return Value();
    case YAML::NodeType::Scalar:
      return scalar(node);
    case YAML::NodeType::Sequence: {
      Value out = Value::array();
      for (const YAML::Node& item : node) {
        TRY(Value value, convert(item, depth + 1, budget));
        out.push_back(std::move(value));
      }
      return out;
    }
    case YAML::NodeType::Map: {
      Value out = Value::object();
      for (const auto& member : node) {
        if (!member.first.IsScalar())
          return Error(Code::kInvalid, "YAML: keys must be plain words");
        TRY(Value value, convert(member.second, depth + 1, budget));
        out.set(member.first.Scalar(), std::move(value));
      }
      return out;
    }
  }
  return Value();
}

}  // namespace

Result<std::vector<Value>> parse_all(std::string_view text) {
  if (text.size() > kMaxBytes) return Error(Code::kInvalid, "YAML: the text is too large");
  std::vector<Value> out;
  try {
    Budget budget;
    for (const YAML::Node& document : YAML::LoadAll(std::string(text))) {
      TRY(Value value, convert(document, 0, budget));
      if (!value.is_null()) out.push_back(std::move(value));
    }
  } catch (const YAML::Exception& error) {
    return Error(Code::kInvalid, std::string("YAML: ") + error.what());
  }
  return out;
}

Result<Value> parse(std::string_view text) {
  TRY(std::vector<Value> all, parse_all(text));
  if (all.size() != 1)
    return Error(Code::kInvalid,
                 "YAML: expected one document, found " + std::to_string(all.size()));
  return std::move(all.front());
}

}  // namespace rubato::yaml
