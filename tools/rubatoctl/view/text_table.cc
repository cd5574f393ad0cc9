#include "tools/rubatoctl/view/text_table.h"

#include "common/words.h"

#include <algorithm>
#include <cctype>

namespace rubato::ctl {
namespace {

constexpr std::size_t kGap = 3;

std::size_t width_of(const std::string& cell) {
  const std::string text = readable(cell);
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

std::string cell_text(const json::Value& cell) {
  if (cell.is_null()) return "";  // as kubectl prints it
  if (cell.is_string()) return cell.string_or("");
  return json::dump(cell);
}

}  // namespace

Widths widths_of(const TextTable& table) {
  Widths widths;
  const auto widen = [&](const std::vector<std::string>& cells) {
    if (widths.size() < cells.size()) widths.resize(cells.size());
    for (std::size_t i = 0; i < cells.size(); ++i)
      widths[i] = std::max(widths[i], width_of(cells[i]));
  };
  widen(table.head);
  for (const auto& row : table.rows) widen(row);
  return widths;
}

std::string row_text(const std::vector<std::string>& cells, const Widths& widths) {
  std::string line;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    line += readable(cells[i]);
    if (i + 1 == cells.size()) break;
    const std::size_t column = i < widths.size() ? widths[i] : 0;
    const std::size_t used = width_of(cells[i]);
    line.append((column > used ? column - used : 0) + kGap, ' ');
  }
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

std::string render(const TextTable& table, bool with_head) {
  const Widths widths = widths_of(table);
  std::string text;
  if (with_head && !table.head.empty()) text += row_text(table.head, widths) + "\n";
  for (const auto& row : table.rows) text += row_text(row, widths) + "\n";
  return text;
}

TextTable from_server(const json::Value& table, bool wide, bool with_namespace) {
  TextTable out;
  std::vector<bool> shown;
  if (with_namespace) out.head.emplace_back("NAMESPACE");
  for (const auto& column : table["columnDefinitions"].items()) {
    shown.push_back(wide || column["priority"].int_or(0) == 0);
    if (shown.back()) out.head.push_back(upper(column["name"].string_or("")));
  }
  for (const auto& row : table["rows"].items()) {
    std::vector<std::string> cells;
    if (with_namespace) cells.push_back(row["object"]["metadata"]["namespace"].string_or(""));
    const auto& values = row["cells"].items();
    for (std::size_t i = 0; i < values.size(); ++i)
      if (i >= shown.size() || shown[i]) cells.push_back(cell_text(values[i]));
    out.rows.push_back(std::move(cells));
  }
  return out;
}

}  // namespace rubato::ctl
