// JsonCursor: reads an object strictly. Every member that is there must be asked for, every one
// that is asked for must be there or have a default, and each has a type and bounds. The first
// fault is kept with its path; after it all reads give their defaults, so that a reader is straight
// code and asks once, at its end.
//
//   Trouble trouble;
//   JsonCursor job(value, Path{nullptr, "job"}, trouble);
//   const auto min = job.whole("min", 1, 8);            // must be there
//   const bool mix = job.flag("mix", false);
//   job.end();                                           // nothing else may be there
//   if (trouble.error) …
//
// Not thread-safe; a cursor lives no longer than the value, its path and the Trouble.
#pragma once

#include "common/json.h"
#include "common/result.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace rubato::sched {

// Where a value stands: a list of steps that ends at the document. Made without allocating; only an
// error is written out, "jobs[3].gpus.min".
struct Path {
  const Path* up = nullptr;  // null: the document itself, which has no name
  std::string_view name = {};
  std::int64_t index = -1;  // 0 or more: an item of a list, `name` is not used
  std::string to_text() const;
};

struct Trouble {
  std::optional<Error> error;
  // "PATH: FOUND, expected EXPECTED", unless there is one already.
  void note(const Path& path, const std::string& found, const std::string& expected);
};

// A value as an error shows it: short.
std::string shown(const json::Value& value);

class JsonCursor {
 public:
  // Notes a value that is no object.
  JsonCursor(const json::Value& value, const Path& path, Trouble& trouble);

  std::int64_t whole(std::string_view name, std::int64_t from, std::int64_t to,
                     std::optional<std::int64_t> fallback = {});
  double number(std::string_view name, double from, double to, std::optional<double> fallback = {});
  bool flag(std::string_view name, bool fallback);
  // `from`: the fewest bytes.
  std::string text(std::string_view name, std::size_t from, std::size_t to,
                   std::optional<std::string> fallback = {});
  // The index of the word.
  std::size_t word(std::string_view name, std::span<const char* const> words, std::size_t fallback);
  // Null when it is not there.
  const json::Value* member(std::string_view name);
  // Reads a member that is an object, to its end.
  void object(std::string_view name, bool must_be, const std::function<void(JsonCursor&)>& read);
  // Each item of a list of at most `most`, with its path; a list that is not there is empty.
  using Item = std::function<void(const json::Value& item, const Path& path)>;
  void each(std::string_view name, std::int64_t most, bool must_be, const Item& item);
  // None when it is not there.
  std::vector<std::string> texts(std::string_view name, std::int64_t most, std::size_t bytes);
  // Notes a member that nobody asked for.
  void end();

  bool is_well() const { return !trouble_.error; }
  Trouble& trouble() { return trouble_; }
  Path path(std::string_view name) const { return {&path_, name}; }
  const Path& path() const { return path_; }

 private:
  void missing(std::string_view name, const std::string& expected);

  const json::Value& value_;
  const Path& path_;
  Trouble& trouble_;
  std::vector<std::string_view> asked_;
};

// Each item of a list, as text of 1 to `bytes` bytes.
std::vector<std::string> texts_of(const json::Value& list, const Path& path, std::int64_t most,
                                  std::size_t bytes, Trouble& trouble);
void each_of(const json::Value& list, const Path& path, std::int64_t most, Trouble& trouble,
             const JsonCursor::Item& item);

}  // namespace rubato::sched
