#include "apiserver/front/json_path.h"

#include "common/words.h"

namespace rubato::apiserver {
namespace {

using json::Value;

Error outside(std::string_view text) {
  return Error(Code::kInvalid, "JSONPath outside the supported subset: " + std::string(text));
}

// Reads a name up to '.' or '['; "\." is a dot of the name.
std::string read_name(std::string_view text, std::size_t& at) {
  std::string name;
  while (at < text.size() && text[at] != '.' && text[at] != '[') {
    if (text[at] == '\\' && at + 1 < text.size()) ++at;
    name += text[at++];
  }
  return name;
}

std::string unquoted(std::string_view text) { return std::string(text.substr(1, text.size() - 2)); }

bool quoted(std::string_view text) {
  return text.size() >= 2 && (text.front() == '\'' || text.front() == '"') &&
         text.back() == text.front();
}

// Where the bracket that opens at `at` closes; quotes hide brackets.
std::size_t closing(std::string_view text, std::size_t at) {
  char quote = 0;
  std::size_t depth = 0;
  for (std::size_t i = at; i < text.size(); ++i) {
    const char c = text[i];
    if (quote != 0) {
      if (c == quote) quote = 0;
    } else if (c == '\'' || c == '"') {
      quote = c;
    } else if (c == '[') {
      ++depth;
    } else if (c == ']' && --depth == 0) {
      return i;
    }
  }
  return std::string_view::npos;
}

}  // namespace

Result<JsonPath::Step> JsonPath::bracket(std::string_view inside) {
  Step step;
  if (inside == "*") {
    step.kind = Step::Kind::kAll;
    return step;
  }
  if (quoted(inside)) {
    step.name = unquoted(inside);
    return step;
  }
  if (!inside.empty() && inside.find_first_not_of("0123456789") == std::string_view::npos &&
      inside.size() < 9) {
    step.kind = Step::Kind::kIndex;
    step.index = static_cast<std::size_t>(std::stoul(std::string(inside)));
    return step;
  }
  if (!inside.starts_with("?(") || !inside.ends_with(")")) return outside(inside);
  const std::string_view condition = inside.substr(2, inside.size() - 3);
  std::size_t op = condition.find("==");
  step.negated = op == std::string_view::npos;
  if (step.negated) op = condition.find("!=");
  if (op == std::string_view::npos) return outside(inside);
  std::string_view left = trimmed(condition.substr(0, op));
  const std::string_view right = trimmed(condition.substr(op + 2));
  if (!left.starts_with("@.")) return outside(inside);
  std::size_t at = 1;
  while (at < left.size()) {
    if (left[at] != '.') return outside(inside);
    ++at;
    step.path.push_back(read_name(left, at));
  }
  if (quoted(right)) {
    step.equals = Value(unquoted(right));
  } else {
    TRY(step.equals, json::parse(right));
  }
  step.kind = Step::Kind::kFilter;
  return step;
}

Result<JsonPath> JsonPath::parse(std::string_view text) {
  JsonPath path;
  const std::string_view all = text;
  if (text.starts_with('{') && text.ends_with('}')) text = text.substr(1, text.size() - 2);
  if (text.starts_with('$')) text.remove_prefix(1);
  std::size_t at = 0;
  while (at < text.size()) {
    if (text[at] == '[') {
      const std::size_t end = closing(text, at);
      if (end == std::string_view::npos) return outside(all);
      TRY(Step step, bracket(trimmed(text.substr(at + 1, end - at - 1))));
      path.steps_.push_back(std::move(step));
      at = end + 1;
      continue;
    }
    if (text[at] == '.') ++at;
    if (at < text.size() && text[at] == '[') continue;
    Step step;
    step.name = read_name(text, at);
    if (step.name.empty()) return outside(all);
    path.steps_.push_back(std::move(step));
  }
  return path;
}

void JsonPath::step_from(const Value& value, const Step& step, std::vector<Value>& next) {
  switch (step.kind) {
    case Step::Kind::kMember:
      if (const Value* member = value.find(step.name)) next.push_back(*member);
      break;
    case Step::Kind::kIndex:
      if (value.is_array() && step.index < value.size()) next.push_back(value[step.index]);
      break;
    case Step::Kind::kAll:
      for (const Value& item : value.items()) next.push_back(item);
      for (const json::Member& member : value.members()) next.push_back(member.second);
      break;
    case Step::Kind::kFilter:
      for (const Value& item : value.items()) {
        const Value* found = &item;
        for (const std::string& name : step.path) found = &(*found)[name];
        if (!found->is_null() && (*found == step.equals) != step.negated) next.push_back(item);
      }
      break;
  }
}

std::vector<Value> JsonPath::evaluate(const Value& root) const {
  std::vector<Value> here = {root};
  for (const Step& step : steps_) {
    std::vector<Value> next;
    for (const Value& value : here) step_from(value, step, next);
    here = std::move(next);
  }
  return here;
}

}  // namespace rubato::apiserver
