// What a program tells of how far it is: by lines of a file, or by what it prints. Pure.
#pragma once

#include "common/result.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace rubato::worker {

// Tokens (or samples) are those of all steps so far; 0: not told.
struct ToldProgress {
  std::uint64_t step = 0;
  std::uint64_t tokens = 0;
  double loss = 0;
  bool operator==(const ToldProgress&) const = default;
};

// The last whole line of its progress file, a JSON object such as
// {"step": 120, "loss": 2.31, "tokens": 4194304}. Numbers are rounded where they count; NaN and
// Infinity, as Python writes them, are not told. Nothing: there is no whole line. kInvalid: the
// line is no such object, or has no number `step`.
Result<std::optional<ToldProgress>> progress_of_file(const std::string& text);
// Such a line.
std::string progress_line(const ToldProgress& progress);

constexpr std::size_t kProgressPatternMost = 1000;
constexpr std::size_t kProgressLineMost = 1024;  // of a line: what follows is not looked at

// Finds these in the lines that an unmodified program prints: a regular expression of RE2, whose
// time is linear in the line, with the named groups `step` and, as far as the lines say them,
// `loss` and `tokens`, such as `step (?<step>\d+).* loss (?<loss>[\d.]+)`. Python's `(?P<step>…)`
// is the same.
class ProgressPattern {
 public:
  // kInvalid: it is none, is too long, or has no group `step`.
  static Result<ProgressPattern> parse(std::string_view text);
  ProgressPattern(ProgressPattern&&) noexcept;
  ProgressPattern& operator=(ProgressPattern&&) noexcept;
  ~ProgressPattern();
  // Of a line without its end; anywhere in it.
  std::optional<ToldProgress> find(std::string_view line) const;

 private:
  struct Impl;
  explicit ProgressPattern(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace rubato::worker
