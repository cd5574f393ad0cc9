// Comma-separated text with a header, read strictly: every error names file, line, column and what
// was expected. Cells may stand in double quotes, "" is a quote inside. Empty lines and lines that
// begin with # are passed over. Bounds: 10 million rows, 64 KiB a line.
#pragma once

#include "common/result.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rubato::sched::sim {

constexpr double kSecondsMax = 1e10;
constexpr std::int64_t kGpusMax = 1'048'576;  // of one job, as in a snapshot

// The lines of a trace that say something: neither empty nor comments, without their ends.
class Lines {
 public:
  explicit Lines(std::string_view text);           // outlives it
  std::optional<std::string_view> next();          // none: that was all
  std::int64_t number() const { return number_; }  // of that line in the text, from 1

 private:
  std::string_view left_;
  std::int64_t number_ = 0;
};

// As Csv reads it back, if it has no end of a line: in quotes where it must be.
std::string csv_cell(std::string_view text);

class Csv;

// A row of a Csv, which must outlive it. A column that the file lacks reads as empty.
class CsvRow {
 public:
  CsvRow(const Csv& csv, std::size_t row) : csv_(csv), row_(row) {}
  const std::string& text(std::string_view column) const;
  // Not empty.
  Result<std::string> word(std::string_view column) const;
  // A whole number; empty: `otherwise`.
  Result<std::int64_t> whole(std::string_view column, std::int64_t least, std::int64_t most) const;
  Result<std::int64_t> whole_or(std::string_view column, std::int64_t otherwise, std::int64_t least,
                                std::int64_t most) const;
  Result<double> number(std::string_view column, double least, double most) const;
  // Of a column in seconds, from 0 to kSecondsMax; rounded.
  Result<std::int64_t> milliseconds(std::string_view column) const;
  // "FILE:LINE: column C: "CELL": expected …"
  Error error(std::string_view column, const std::string& expected) const;
  std::int64_t line() const;

 private:
  const Csv& csv_;
  std::size_t row_;
};

class Csv {
 public:
  // `file`: its name, for errors. `columns`: those it may have; others are errors.
  static Result<Csv> parse(std::string file, std::string_view text,
                           const std::vector<std::string>& columns);
  // Names of the header's columns; nothing else is looked at.
  static std::vector<std::string> header_of(std::string_view text);

  std::size_t size() const { return rows_.size(); }
  CsvRow row(std::size_t index) const { return {*this, index}; }
  bool has(std::string_view column) const { return columns_.find(column) != columns_.end(); }
  // kInvalid: which are missing.
  Status require(const std::vector<std::string>& columns) const;

 private:
  friend class CsvRow;
  struct Row {
    std::int64_t line = 0;
    std::vector<std::string> cells;
  };
  std::string file_;
  std::map<std::string, std::size_t, std::less<>> columns_;
  std::vector<Row> rows_;
};

}  // namespace rubato::sched::sim
