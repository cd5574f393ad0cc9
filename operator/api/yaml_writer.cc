#include "operator/api/crd.h"

#include <algorithm>
#include <array>

namespace rubato::api {

namespace {

using json::Value;

// A plain scalar is safe when no reader can take it for anything but this string.
bool is_plain(std::string_view text) {
  if (text.empty() || text.back() == ' ' || text.back() == ':') return false;
  constexpr std::array<std::string_view, 11> kWords{"true", "false", "null",  "yes", "no", "on",
                                                    "off",  "True",  "False", "y",   "n"};
  if (std::find(kWords.begin(), kWords.end(), text) != kWords.end()) return false;
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

std::string scalar(const Value& value) {
  if (value.is_string() && is_plain(value.string_view_or(""))) return value.string_or("");
  return json::dump(value);  // JSON scalars, and {} and [], are YAML
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
