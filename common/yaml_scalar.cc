#include "common/yaml_scalar.h"

#include "common/net/certificates.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>

namespace rubato::yaml {
namespace {

using json::Value;

constexpr std::string_view kCoreTags = "tag:yaml.org,2002:";

template <std::size_t n>
bool is_one_of(const std::array<std::string_view, n>& words, std::string_view text) {
  return std::ranges::find(words, text) != words.end();
}

std::optional<Value> word(std::string_view text) {
  using Words = std::array<std::string_view, 11>;
  static constexpr Words kTrue = {"y",    "Y",    "yes", "Yes", "YES", "true",
                                  "True", "TRUE", "on",  "On",  "ON"};
  static constexpr Words kFalse = {"n",     "N",     "no",  "No",  "NO", "false",
                                   "False", "FALSE", "off", "Off", "OFF"};
  static constexpr std::array<std::string_view, 5> kNull = {"", "~", "null", "Null", "NULL"};
  if (is_one_of(kTrue, text)) return Value(true);
  if (is_one_of(kFalse, text)) return Value(false);
  if (is_one_of(kNull, text)) return Value();
  return std::nullopt;
}

// Takes a base's prefix away: 0x1f, 0o17, 017, 0b11.
int take_base(std::string_view& digits) {
  if (digits.size() < 2 || digits[0] != '0') return 10;
  const char mark = static_cast<char>(digits[1] | 0x20);
  const int base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
  digits.remove_prefix(base == 0 ? 1 : 2);
  return base == 0 ? 8 : base;
}

std::optional<Value> integer(std::string_view text) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
  const bool is_signed = text.starts_with('-') || text.starts_with('+');
  const bool negative = text.starts_with('-');
  std::string_view digits = is_signed ? text.substr(1) : text;
  const int base = take_base(digits);
  std::uint64_t size = 0;
  const auto [stop, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), size, base);
  if (digits.empty() || error != std::errc() || stop != digits.data() + digits.size())
    return std::nullopt;
  if (size <= kMost)
    return Value(negative ? -static_cast<std::int64_t>(size) : static_cast<std::int64_t>(size));
  if (negative && size == kMost + 1) return Value(std::numeric_limits<std::int64_t>::min());
  if (is_signed) return std::nullopt;
  return Value(static_cast<double>(size));
}

std::size_t skip_digits(std::string_view text, std::size_t at) {
  return std::min(text.find_first_not_of("0123456789", at), text.size());
}

// [-+]? ( .[0-9]+ | [0-9]+ (.[0-9]*)? ) ( [eE] [-+]? [0-9]+ )?
bool looks_real(std::string_view text) {
  if (text.starts_with('-') || text.starts_with('+')) text.remove_prefix(1);
  const std::size_t whole = skip_digits(text, 0);
  std::size_t at = whole;
  if (at < text.size() && text[at] == '.') {
    const std::size_t end = skip_digits(text, at + 1);
    if (whole == 0 && end == at + 1) return false;
    at = end;
  }
  if (at == 0) return false;
  if (at == text.size()) return true;
  if (text[at] != 'e' && text[at] != 'E') return false;
  ++at;
  if (at < text.size() && (text[at] == '-' || text[at] == '+')) ++at;
  const std::size_t end = skip_digits(text, at);
  return end > at && end == text.size();
}

// What is beyond a double stays text.
std::optional<Value> real(const std::string& text) {
  if (!looks_real(text)) return std::nullopt;
  const double number = std::strtod(text.c_str(), nullptr);
  if (!std::isfinite(number)) return std::nullopt;
  return Value(number);
}

bool is_no_json_number(std::string_view text) {
  static constexpr std::array<std::string_view, 12> kWords = {".nan",  ".NaN",  ".NAN",  ".inf",
                                                              ".Inf",  ".INF",  "+.inf", "+.Inf",
                                                              "+.INF", "-.inf", "-.Inf", "-.INF"};
  return is_one_of(kWords, text);
}

// Each "_" stands between two digits.
bool separates_digits(std::string_view text) {
  const auto is_digit = [&](std::size_t at) {
    return at < text.size() && text[at] >= '0' && text[at] <= '9';
  };
  for (std::size_t i = text.find('_'); i != std::string_view::npos; i = text.find('_', i + 1))
    if (i == 0 || !is_digit(i - 1) || !is_digit(i + 1)) return false;
  return true;
}

// Of a scalar without quotes.
Result<Value> plain(const std::string& text) {
  if (auto found = word(text)) return *found;
  if (is_no_json_number(text)) return Error(Code::kInvalid, text + " is no number of JSON");
  const char first = text[0];
  const bool may_be_number =
      (first >= '0' && first <= '9') || first == '+' || first == '-' || first == '.';
  if (!may_be_number || (first == '.' && !separates_digits(text))) return Value(text);
  std::string digits = text;
  std::erase(digits, '_');
  if (auto number = integer(digits)) return *number;
  return real(digits).value_or(Value(text));
}

bool is_of(const Value& value, std::string_view tag) {
  if (tag == "int") return value.is_int();
  if (tag == "float") return value.is_number();
  return tag == "bool" ? value.is_bool() : value.is_null();
}

// Floats are still floats here: as a key 1e6 has another name than 1000000.
Result<Value> typed(std::string_view tag, const std::string& text) {
  if (tag == "?") return plain(text);
  if (!tag.starts_with(kCoreTags)) return Value(text);
  tag.remove_prefix(kCoreTags.size());
  if (tag == "binary") {
    TRY(std::string bytes, net::base64_decode(text));
    return Value(std::move(bytes));
  }
  if (tag != "int" && tag != "float" && tag != "bool" && tag != "null") return Value(text);
  TRY(Value value, plain(text));
  if (is_of(value, tag)) return value;
  return Error(Code::kInvalid, "\"" + text + "\" cannot be read as a !!" + std::string(tag));
}

}  // namespace

Result<Value> scalar_value(std::string_view tag, const std::string& text) {
  constexpr double kBeyondInt64 = 9223372036854775808.0;  // 2^63
  TRY(Value value, typed(tag, text));
  const double number = value.is_int() ? 0.5 : value.double_or(0.5);
  if (std::floor(number) != number || std::abs(number) >= kBeyondInt64) return value;
  return Value(static_cast<std::int64_t>(number));
}

Result<std::string> scalar_key(std::string_view tag, const std::string& text) {
  if (tag == "?" && is_no_json_number(text)) {
    const std::string_view sign = text[0] == '-' ? "-" : "";
    return std::string(sign) + (text.find_first_of("aA") == std::string::npos ? ".inf" : ".nan");
  }
  TRY(const Value value, typed(tag, text));
  if (value.is_string()) return value.string_or("");
  if (value.is_null()) return Error(Code::kInvalid, "a key must not be null");
  if (value.is_int() || value.is_bool()) return json::dump(value);
  char buffer[40];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, static_cast<float>(value.double_or(0)),
                    std::chars_format::general);
  return std::string(buffer, end.ptr);
}

}  // namespace rubato::yaml
