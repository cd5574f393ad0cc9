#include "common/yaml.h"

#include "common/utf8.h"
#include "common/yaml_scalar.h"

#include <ranges>
#include <span>
#include <sstream>
#include <utility>

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

namespace rubato::yaml {
namespace {

using json::Value;

struct Budget {
  std::size_t nodes = 0;
};

Error at_line(const YAML::Node& node, const std::string& what) {
  return {Code::kInvalid, "YAML: line " + std::to_string(node.Mark().line + 1) + ": " + what};
}

bool is_merge_key(const YAML::Node& key) { return key.Scalar() == "<<" && key.Tag() != "!"; }

Result<Value> scalar(const YAML::Node& node) {
  auto value = scalar_value(node.Tag(), node.Scalar());
  if (!value.ok()) return at_line(node, value.error().what());
  return value;
}

// What the value of a merge key has goes over what `to` has so far; of a list its first map wins.
Status merge(const YAML::Node& key, const Value& from, Value& to) {
  const std::span<const Value> maps =
      from.is_array() ? std::span(from.items()) : std::span(&from, 1);
  for (const Value& map : std::views::reverse(maps)) {
    if (!map.is_object()) return at_line(key, "what << names is neither a map nor a list of maps");
    for (const auto& [name, value] : map.members()) to.set(name, value);
  }
  return ok();
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
        if (!member.first.IsScalar()) return at_line(member.first, "keys must be plain words");
        TRY(Value value, convert(member.second, depth + 1, budget));
        if (is_merge_key(member.first)) {
          TRY_OK(merge(member.first, value, out));
          continue;
        }
        auto key = scalar_key(member.first.Tag(), member.first.Scalar());
        if (!key.ok()) return at_line(member.first, key.error().what());
        out.set(*key, std::move(value));
      }
      return out;
    }
  }
  return Value();
}

// Where the documents start, without making them. A word that begins none (",") is not taken
// up by yaml-cpp: it would give an empty document there for ever, and LoadAll never return.
class DocumentStarts final : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark& mark) override { start = mark; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t,
                const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
  YAML::Mark start;
};

Status check_documents(const std::string& text) {
  std::istringstream input(text);
  YAML::Parser parser(input);
  DocumentStarts documents;
  for (int last = -1; parser.HandleNextDocument(documents); last = documents.start.pos)
    if (documents.start.pos == last)
      return Error(Code::kInvalid, "YAML: line " + std::to_string(documents.start.line + 1) +
                                       ", column " + std::to_string(documents.start.column + 1) +
                                       ": nothing begins with this");
  return ok();
}

}  // namespace

Status check_text(std::string_view text) {
  if (text.size() > kMaxBytes) return Error(Code::kInvalid, "YAML: the text is too large");
  std::size_t line = 1;
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const std::size_t length = utf8_length(text, i);
    const bool is_control =
        byte == 0x7f || (byte < 0x20 && byte != '\t' && byte != '\n' && byte != '\r');
    if (length == 0 || is_control)
      return Error(Code::kInvalid, "YAML: line " + std::to_string(line) +
                                       (is_control ? " has a control character" : " is not UTF-8") +
                                       ": is this a text file?");
    line += byte == '\n' ? 1 : 0;
    i += length;
  }
  return ok();
}

Result<std::vector<Value>> parse_all(std::string_view text) {
  TRY_OK(check_text(text));
  std::vector<Value> out;
  try {
    TRY_OK(check_documents(std::string(text)));
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
