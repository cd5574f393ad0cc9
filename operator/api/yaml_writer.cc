#include "common/utf8.h"
#include "operator/api/crd.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include <fmt/core.h>

namespace rubato::api {

namespace {

using json::Value;

// Booleans and nulls of YAML 1.1 and 1.2, in any case.
bool is_yaml_word(std::string_view text) {
  constexpr std::array<std::string_view, 9> kWords{"true", "false", "null", "yes", "no",
                                                   "on",   "off",   "y",    "n"};
  const auto is_same = [](char a, char b) { return (a >= 'A' && a <= 'Z' ? a + 32 : a) == b; };
  return std::ranges::any_of(
      kWords, [&](std::string_view word) { return std::ranges::equal(text, word, is_same); });
}

// A plain scalar is safe when no reader can take it for anything but this string. It begins with a
// letter or '/', which no number, date or indicator of YAML does.
bool is_plain(std::string_view text) {
  if (text.empty() || text.back() == ' ' || text.back() == ':') return false;
  if (is_yaml_word(text)) return false;
  const char first = text.front();
  const bool starts_well =
      (first >= 'a' && first <= 'z') || (first >= 'A' && first <= 'Z') || first == '/';
  if (!starts_well) return false;
  if (text.find(": ") != std::string_view::npos || text.find(" #") != std::string_view::npos)
    return false;
  return std::all_of(text.begin(), text.end(), [](char c) {
    return c >= ' ' && c != '"' && c != '\\' && static_cast<unsigned char>(c) < 127;
  });
}

// Characters that YAML does not take as they stand, or takes for a line break: DEL, U+0080 to
// U+009F, U+2028, U+2029, U+FEFF, U+FFFE, U+FFFF.
bool is_to_escape(std::uint32_t code) {
  return (code >= 0x7f && code <= 0x9f) || code == 0x2028 || code == 0x2029 || code == 0xfeff ||
         code == 0xfffe || code == 0xffff;
}

// JSON with these characters escaped: YAML.
std::string escaped(const std::string& json) {
  std::string out;
  for (std::size_t i = 0; i < json.size();) {
    const std::size_t length = std::max<std::size_t>(utf8_length(json, i), 1);
    std::uint32_t code = static_cast<unsigned char>(json[i]);
    if (length > 1) code &= 0x7fu >> length;
    for (std::size_t k = 1; k < length; ++k)
      code = code << 6 | (static_cast<unsigned char>(json[i + k]) & 0x3fu);
    if (is_to_escape(code))
      out += fmt::format("\\u{:04x}", code);
    else
      out.append(json, i, length);
    i += length;
  }
  return out;
}

std::string scalar(const Value& value) {
  if (value.is_string() && is_plain(value.string_view_or(""))) return value.string_or("");
  return escaped(json::dump(value));  // JSON scalars, and {} and [], are YAML
}

bool is_block(const Value& value) {
  return (value.is_object() || value.is_array()) && value.size() > 0;
}

void write(const Value& value, int indent, bool in_list, std::string& out);

void write_member(const json::Member& member, int indent, std::string& out) {
  out += scalar(Value(member.first)) + ":";
  if (!is_block(member.second)) {
    out += " " + scalar(member.second) + "\n";
    return;
  }
  out += "\n";
  // Lists stand at their key's own indentation, as kubectl writes them.
  write(member.second, member.second.is_array() ? indent : indent + 2, false, out);
}

void write(const Value& value, int indent, bool in_list, std::string& out) {
  const std::string pad(static_cast<std::size_t>(indent), ' ');
  if (value.is_object()) {
    bool first = in_list;  // the first member stands behind "- "
    for (const json::Member& member : value.members()) {
      if (!first) out += pad;
      first = false;
      write_member(member, indent, out);
    }
    return;
  }
  for (const Value& item : value.items()) {
    out += pad + "- ";
    if (is_block(item) && item.is_object())
      write(item, indent + 2, true, out);
    else
      out += scalar(item) + "\n";
  }
}

}  // namespace

std::string to_yaml(const Value& value) {
  std::string out;
  write(value, 0, false, out);
  return out;
}

}  // namespace rubato::api
