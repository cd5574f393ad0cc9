#include "kube/selector.h"

#include "common/words.h"

#include <algorithm>
#include <charconv>

namespace rubato::kube {
namespace {

constexpr std::size_t kSelectorBytesMax = 64u << 10;

Error bad(std::string_view text, const std::string& what) {
  return Error(Code::kInvalid, "selector \"" + std::string(text) + "\": " + what)
      .set_reason("BadRequest");
}

std::string_view trimmed_term(std::string_view text) { return trimmed(text, " \t"); }

bool is_word_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_' || c == '.' || c == '/';
}

// [prefix/]name; the name of at most 63 characters. DNS rules of the prefix are the server's.
bool is_label_key(std::string_view key) {
  const auto slash = key.find('/');
  const auto name = slash == std::string_view::npos ? key : key.substr(slash + 1);
  return !name.empty() && name.size() <= 63 && name.find('/') == std::string_view::npos &&
         key.size() <= 317 && slash != 0 && std::all_of(key.begin(), key.end(), is_word_char);
}

bool is_label_value(std::string_view value) {
  return value.size() <= 63 && std::all_of(value.begin(), value.end(), is_word_char) &&
         value.find('/') == std::string_view::npos;
}

std::optional<std::int64_t> to_int(std::string_view text) {
  std::int64_t value = 0;
  const auto end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  if (parsed.ec != std::errc{} || parsed.ptr != end) return std::nullopt;
  return value;
}

// Splits at commas outside parentheses.
std::vector<std::string_view> split_terms(std::string_view text) {
  std::vector<std::string_view> terms;
  std::size_t start = 0;
  bool inside = false;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i == text.size() || (text[i] == ',' && !inside)) {
      terms.push_back(trimmed_term(text.substr(start, i - start)));
      start = i + 1;
    } else if (text[i] == '(') {
      inside = true;
    } else if (text[i] == ')') {
      inside = false;
    }
  }
  return terms;
}

// "key in (a,b)" and "key notin (a,b)".
Result<Requirement> parse_set(std::string_view text, std::string_view term) {
  const auto open = term.find('(');
  if (term.back() != ')') return bad(text, "expected ')'");
  const std::string_view head = trimmed_term(term.substr(0, open));
  const auto space = head.find_first_of(" \t");
  if (space == std::string_view::npos) return bad(text, "expected 'in' or 'notin'");
  const std::string_view word = trimmed_term(head.substr(space));
  Requirement result;
  result.key = std::string(head.substr(0, space));
  if (word != "in" && word != "notin") return bad(text, "expected 'in' or 'notin'");
  result.op = word == "in" ? SelectorOp::kIn : SelectorOp::kNotIn;
  for (const auto value : split_terms(term.substr(open + 1, term.size() - open - 2)))
    result.values.emplace_back(value);
  return result;
}

// "key=value" and its kin; the operator starts at `at`.
Requirement parse_operator(std::string_view term, std::size_t at) {
  Requirement result;
  result.key = std::string(trimmed_term(term.substr(0, at)));
  std::size_t width = 1;
  result.op = SelectorOp::kIn;
  if (term[at] == '!') {
    result.op = SelectorOp::kNotIn;
    width = 2;
  } else if (term[at] == '>') {
    result.op = SelectorOp::kGreater;
  } else if (term[at] == '<') {
    result.op = SelectorOp::kLess;
  } else if (at + 1 < term.size() && term[at + 1] == '=') {
    width = 2;
  }
  result.values.emplace_back(trimmed_term(term.substr(std::min(term.size(), at + width))));
  return result;
}

Status check_label(std::string_view text, const Requirement& term) {
  if (!is_label_key(term.key)) return bad(text, "invalid label key \"" + term.key + "\"");
  for (const auto& value : term.values) {
    if (!is_label_value(value)) return bad(text, "invalid label value \"" + value + "\"");
    const bool ordered = term.op == SelectorOp::kGreater || term.op == SelectorOp::kLess;
    if (ordered && !to_int(value)) return bad(text, "'>' and '<' need an integer");
  }
  return ok();
}

Result<Requirement> parse_label_term(std::string_view text, std::string_view term) {
  if (term.empty()) return bad(text, "empty term");
  if (term.find('(') != std::string_view::npos) return parse_set(text, term);
  if (term.front() == '!') {
    Requirement missing{std::string(trimmed_term(term.substr(1))), SelectorOp::kDoesNotExist, {}};
    return missing;
  }
  const auto at = term.find_first_of("=!<>");
  if (at == std::string_view::npos) {
    Requirement present{std::string(term), SelectorOp::kExists, {}};
    return present;
  }
  if (term[at] == '!' && (at + 1 >= term.size() || term[at + 1] != '='))
    return bad(text, "expected '=' after '!'");
  return parse_operator(term, at);
}

bool contains(const std::vector<std::string>& values, std::string_view value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

bool holds(const Requirement& term, std::optional<std::string_view> value) {
  switch (term.op) {
    case SelectorOp::kIn:
      return value && contains(term.values, *value);
    case SelectorOp::kNotIn:
      return !value || !contains(term.values, *value);
    case SelectorOp::kExists:
      return value.has_value();
    case SelectorOp::kDoesNotExist:
      return !value;
    case SelectorOp::kGreater:
    case SelectorOp::kLess: {
      const auto have = value ? to_int(*value) : std::nullopt;
      const auto bound = to_int(term.values.front());
      if (!have || !bound) return false;
      return term.op == SelectorOp::kGreater ? *have > *bound : *have < *bound;
    }
  }
  return false;
}

// The value at a dotted path as text; "" when it is missing.
std::string field_text(const json::Value& object, std::string_view path) {
  const json::Value* at = &object;
  while (!path.empty()) {
    const auto dot = path.find('.');
    at = &(*at)[path.substr(0, dot)];
    path = dot == std::string_view::npos ? std::string_view{} : path.substr(dot + 1);
  }
  if (at->is_bool()) return at->bool_or(false) ? "true" : "false";
  if (at->is_int()) return std::to_string(at->int_or(0));
  return at->string_or("");
}

}  // namespace

Selector Selector::nothing() {
  Selector result;
  Requirement never{"", SelectorOp::kIn, {}};
  result.requirements_.push_back(std::move(never));
  return result;
}

Result<Selector> Selector::parse_labels(std::string_view text) {
  Selector result;
  if (trimmed_term(text).empty()) return result;
  if (text.size() > kSelectorBytesMax) return bad("…", "too long");
  for (const auto term : split_terms(text)) {
    TRY(Requirement requirement, parse_label_term(text, term));
    TRY_OK(check_label(text, requirement));
    result.requirements_.push_back(std::move(requirement));
  }
  return result;
}

Result<Selector> Selector::parse_fields(std::string_view text) {
  Selector result;
  if (trimmed_term(text).empty()) return result;
  if (text.size() > kSelectorBytesMax) return bad("…", "too long");
  for (const auto term : split_terms(text)) {
    if (term.empty()) continue;  // as Kubernetes: "a=b," is "a=b"
    const auto at = term.find_first_of("=!");
    if (at == std::string_view::npos || at == 0 ||
        (term[at] == '!' && (at + 1 >= term.size() || term[at + 1] != '=')))
      return bad(text, "a field needs '=', '==' or '!='");
    result.requirements_.push_back(parse_operator(term, at));
  }
  return result;
}

Result<Selector> Selector::from_object(const json::Value& label_selector) {
  Selector result;
  const std::string text = json::dump(label_selector);
  for (const auto& [key, value] : label_selector["matchLabels"].members()) {
    Requirement equal{key, SelectorOp::kIn, {value.string_or("")}};
    result.requirements_.push_back(std::move(equal));
  }
  for (const auto& expression : label_selector["matchExpressions"].items()) {
    Requirement term;
    term.key = expression["key"].string_or("");
    const std::string_view op = expression["operator"].string_view_or("");
    if (op == "In") {
      term.op = SelectorOp::kIn;
    } else if (op == "NotIn") {
      term.op = SelectorOp::kNotIn;
    } else if (op == "Exists") {
      term.op = SelectorOp::kExists;
    } else if (op == "DoesNotExist") {
      term.op = SelectorOp::kDoesNotExist;
    } else if (op == "Gt") {  // node affinity only
      term.op = SelectorOp::kGreater;
    } else if (op == "Lt") {
      term.op = SelectorOp::kLess;
    } else {
      return bad(text, "unknown operator \"" + std::string(op) + "\"");
    }
    for (const auto& value : expression["values"].items())
      term.values.push_back(value.string_or(""));
    const bool wants_values =
        term.op != SelectorOp::kExists && term.op != SelectorOp::kDoesNotExist;
    if (wants_values == term.values.empty()) return bad(text, "wrong number of values");
    TRY_OK(check_label(text, term));
    result.requirements_.push_back(std::move(term));
  }
  return result;
}

bool Selector::matches(
    const std::function<std::optional<std::string_view>(std::string_view)>& lookup) const {
  return std::all_of(requirements_.begin(), requirements_.end(),
                     [&](const Requirement& term) { return holds(term, lookup(term.key)); });
}

bool Selector::matches_labels(const json::Value& object) const {
  const json::Value& labels = object["metadata"]["labels"];
  return matches([&](std::string_view key) -> std::optional<std::string_view> {
    const json::Value* value = labels.find(key);
    if (value == nullptr) return std::nullopt;
    return value->string_view_or("");
  });
}

bool Selector::matches_fields(const json::Value& object) const {
  return std::all_of(requirements_.begin(), requirements_.end(), [&](const Requirement& term) {
    const std::string text = field_text(object, term.key);
    return holds(term, std::string_view(text));
  });
}

}  // namespace rubato::kube
