#include "scheduler/sim/import/csv.h"

#include "common/words.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace rubato::sched::sim {
namespace {

constexpr std::size_t kLineMax = 64 * 1024;
constexpr std::size_t kRowsMax = 10'000'000;

// None: a quote is open at the end.
std::optional<std::vector<std::string>> split(std::string_view line) {
  std::vector<std::string> cells;
  while (true) {
    std::string cell;
    if (!line.empty() && line.front() == '"') {
      line.remove_prefix(1);
      while (true) {
        const std::size_t quote = line.find('"');
        if (quote == std::string_view::npos) return std::nullopt;
        cell += line.substr(0, quote);
        line.remove_prefix(quote + 1);
        if (line.empty() || line.front() != '"') break;
        cell += '"';
        line.remove_prefix(1);
      }
    }
    const std::size_t comma = line.find(',');
    cell += trimmed(line.substr(0, comma));
    cells.push_back(std::move(cell));
    if (comma == std::string_view::npos) return cells;
    line.remove_prefix(comma + 1);
  }
}

// As programs for tables put it before UTF-8.
std::string_view without_mark(std::string_view text) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  return text.starts_with(kByteOrderMark) ? text.substr(kByteOrderMark.size()) : text;
}

bool is_passed_over(std::string_view line) { return trimmed(line).empty() || line.front() == '#'; }

}  // namespace

Lines::Lines(std::string_view text) : left_(without_mark(text)) {}

std::optional<std::string_view> Lines::next() {
  while (!left_.empty()) {
    const std::size_t end = left_.find('\n');
    std::string_view line = left_.substr(0, end);
    left_.remove_prefix(end == std::string_view::npos ? left_.size() : end + 1);
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    ++number_;
    if (!is_passed_over(line)) return line;
  }
  return std::nullopt;
}

std::string csv_cell(std::string_view text) {
  const bool is_plain = text.find_first_of(",\"\r\n") == std::string_view::npos &&
                        trimmed(text) == text && !text.starts_with('#');
  if (is_plain) return std::string(text);
  std::string quoted = "\"";
  for (const char c : text) quoted.append(c == '"' ? 2 : 1, c);
  return quoted + '"';
}

std::vector<std::string> Csv::header_of(std::string_view text) {
  const auto line = Lines(text).next();
  return line ? split(*line).value_or(std::vector<std::string>{}) : std::vector<std::string>{};
}

Result<Csv> Csv::parse(std::string file, std::string_view text,
                       const std::vector<std::string>& columns) {
  Csv csv;
  csv.file_ = std::move(file);
  Lines lines(text);
  while (const auto line = lines.next()) {
    const auto bad = [&](const std::string& why) {
      return Error(Code::kInvalid, fmt::format("{}:{}: {}", csv.file_, lines.number(), why));
    };
    if (line->size() > kLineMax)
      return bad(fmt::format("longer than {} bytes; expected a line per job", kLineMax));
    auto cells = split(*line);
    if (!cells) return bad("a quote is not closed; expected \"…\"");
    if (csv.columns_.empty()) {
      for (std::size_t i = 0; i < cells->size(); ++i) {
        const std::string& name = (*cells)[i];
        if (std::find(columns.begin(), columns.end(), name) == columns.end())
          return bad(fmt::format("column \"{}\": expected one of {}", readable(name),
                                 fmt::join(columns, ", ")));
        if (!csv.columns_.emplace(name, i).second)
          return bad(fmt::format("column \"{}\" stands twice; expected once", name));
      }
      continue;
    }
    if (cells->size() != csv.columns_.size())
      return bad(fmt::format("has {} cells; expected {}, as in the header", cells->size(),
                             csv.columns_.size()));
    if (csv.rows_.size() == kRowsMax) return bad(fmt::format("expected at most {} rows", kRowsMax));
    csv.rows_.push_back({lines.number(), std::move(*cells)});
  }
  if (csv.columns_.empty())
    return Error(Code::kInvalid, fmt::format("{}:1: expected a header with the columns {}",
                                             csv.file_, fmt::join(columns, ", ")));
  return csv;
}

Status Csv::require(const std::vector<std::string>& columns) const {
  for (const std::string& column : columns)
    if (!has(column))
      return Error(Code::kInvalid,
                   fmt::format("{}:1: expected a column \"{}\" in the header", file_, column));
  return ok();
}

const std::string& CsvRow::text(std::string_view column) const {
  static const std::string kEmpty;
  const auto found = csv_.columns_.find(column);
  return found == csv_.columns_.end() ? kEmpty : csv_.rows_[row_].cells[found->second];
}

std::int64_t CsvRow::line() const { return csv_.rows_[row_].line; }

Error CsvRow::error(std::string_view column, const std::string& expected) const {
  return {Code::kInvalid, fmt::format("{}:{}: column {}: \"{}\": expected {}", csv_.file_, line(),
                                      column, readable(text(column)), expected)};
}

Result<std::string> CsvRow::word(std::string_view column) const {
  if (text(column).empty()) return error(column, "a word");
  return text(column);
}

Result<std::int64_t> CsvRow::whole(std::string_view column, std::int64_t least,
                                   std::int64_t most) const {
  const std::string& cell = text(column);
  std::int64_t value = 0;
  const auto [end, wrong] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
  if (cell.empty() || wrong != std::errc() || end != cell.data() + cell.size() || value < least ||
      value > most)
    return error(column, fmt::format("a whole number from {} to {}", least, most));
  return value;
}

Result<std::int64_t> CsvRow::whole_or(std::string_view column, std::int64_t otherwise,
                                      std::int64_t least, std::int64_t most) const {
  if (text(column).empty()) return otherwise;
  return whole(column, least, most);
}

Result<double> CsvRow::number(std::string_view column, double least, double most) const {
  const std::string& cell = text(column);
  double value = 0;
  const auto [end, wrong] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
  if (cell.empty() || wrong != std::errc() || end != cell.data() + cell.size() ||
      !std::isfinite(value) || value < least || value > most)
    return error(column, fmt::format("a number from {:g} to {:g}", least, most));
  return value;
}

Result<std::int64_t> CsvRow::milliseconds(std::string_view column) const {
  TRY(const double seconds, number(column, 0, kSecondsMax));
  return std::llround(seconds * 1000.0);
}

}  // namespace rubato::sched::sim
