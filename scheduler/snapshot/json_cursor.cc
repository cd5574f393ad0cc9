#include "scheduler/snapshot/json_cursor.h"

#include "common/words.h"

#include <algorithm>

#include <fmt/format.h>

namespace rubato::sched {
namespace {

constexpr std::size_t kShownBytes = 60;

std::string whole_expected(std::int64_t from, std::int64_t to) {
  return fmt::format("a whole number from {} to {}", from, to);
}

std::string number_expected(double from, double to) {
  return fmt::format("a number from {} to {}", from, to);
}

std::string text_expected(std::size_t from, std::size_t to) {
  return fmt::format("a text of {} to {} bytes", from, to);
}

}  // namespace

std::string Path::to_text() const {
  std::string text;
  if (up != nullptr) text = up->to_text();
  if (index >= 0) return text + fmt::format("[{}]", index);
  if (name.empty()) return text;
  if (!text.empty()) text += '.';
  return text + readable(utf8_prefix(name, kShownBytes));
}

void Trouble::note(const Path& path, const std::string& found, const std::string& expected) {
  if (error) return;
  const std::string where = path.to_text();
  error = Error(
      Code::kInvalid,
      fmt::format("{}: {}, expected {}", where.empty() ? "the snapshot" : where, found, expected));
}

std::string shown(const json::Value& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  if (!value.is_string()) return json::dump(value);
  const std::string_view text = value.string_view_or("");
  if (text.size() <= kShownBytes) return json::dump(value);
  return fmt::format("a text of {} bytes", text.size());
}

JsonCursor::JsonCursor(const json::Value& value, const Path& path, Trouble& trouble)
    : value_(value), path_(path), trouble_(trouble) {
  if (!value.is_object()) trouble_.note(path_, shown(value), "an object");
}

const json::Value* JsonCursor::member(std::string_view name) {
  asked_.push_back(name);
  return value_.find(name);
}

void JsonCursor::object(std::string_view name, bool must_be,
                        const std::function<void(JsonCursor&)>& read) {
  const json::Value* found = member(name);
  if (found == nullptr) {
    if (must_be) missing(name, "an object");
    return;
  }
  const Path at = path(name);
  JsonCursor inner(*found, at, trouble_);
  read(inner);
  inner.end();
}

void JsonCursor::missing(std::string_view name, const std::string& expected) {
  trouble_.note(path(name), "missing", expected);
}

std::int64_t JsonCursor::whole(std::string_view name, std::int64_t from, std::int64_t to,
                               std::optional<std::int64_t> fallback) {
  const json::Value* found = member(name);
  if (found == nullptr) {
    if (!fallback) missing(name, whole_expected(from, to));
    return fallback.value_or(from);
  }
  const std::int64_t value = found->int_or(from);
  if (found->is_int() && value >= from && value <= to) return value;
  trouble_.note(path(name), shown(*found), whole_expected(from, to));
  return fallback.value_or(from);
}

double JsonCursor::number(std::string_view name, double from, double to,
                          std::optional<double> fallback) {
  const json::Value* found = member(name);
  if (found == nullptr) {
    if (!fallback) missing(name, number_expected(from, to));
    return fallback.value_or(from);
  }
  const double value = found->double_or(from);
  if (found->is_number() && value >= from && value <= to) return value + 0.0;  // no -0.0
  trouble_.note(path(name), shown(*found), number_expected(from, to));
  return fallback.value_or(from);
}

bool JsonCursor::flag(std::string_view name, bool fallback) {
  const json::Value* found = member(name);
  if (found == nullptr) return fallback;
  if (!found->is_bool()) trouble_.note(path(name), shown(*found), "true or false");
  return found->bool_or(fallback);
}

std::string JsonCursor::text(std::string_view name, std::size_t from, std::size_t to,
                             std::optional<std::string> fallback) {
  const json::Value* found = member(name);
  if (found == nullptr) {
    if (!fallback) missing(name, text_expected(from, to));
    return std::move(fallback).value_or("");
  }
  const std::string_view text = found->string_view_or("");
  if (!found->is_string() || text.size() < from || text.size() > to)
    trouble_.note(path(name), shown(*found), text_expected(from, to));
  return std::string(text);
}

std::size_t JsonCursor::word(std::string_view name, std::span<const char* const> words,
                             std::size_t fallback) {
  const json::Value* found = member(name);
  if (found == nullptr) return fallback;
  const auto at = std::find(words.begin(), words.end(), found->string_view_or(""));
  if (found->is_string() && at != words.end()) return static_cast<std::size_t>(at - words.begin());
  trouble_.note(path(name), shown(*found), fmt::format("one of {}", fmt::join(words, ", ")));
  return fallback;
}

void JsonCursor::each(std::string_view name, std::int64_t most, bool must_be, const Item& item) {
  const json::Value* found = member(name);
  if (found == nullptr) {
    if (must_be) missing(name, "a list");
    return;
  }
  each_of(*found, path(name), most, trouble_, item);
}

std::vector<std::string> JsonCursor::texts(std::string_view name, std::int64_t most,
                                           std::size_t bytes) {
  const json::Value* found = member(name);
  if (found == nullptr) return {};
  return texts_of(*found, path(name), most, bytes, trouble_);
}

void JsonCursor::end() {
  if (!is_well()) return;
  for (const auto& [name, value] : value_.members()) {
    if (std::find(asked_.begin(), asked_.end(), name) != asked_.end()) continue;
    trouble_.note(path(name), "an unknown field", fmt::format("only {}", fmt::join(asked_, ", ")));
    return;
  }
}

void each_of(const json::Value& list, const Path& path, std::int64_t most, Trouble& trouble,
             const JsonCursor::Item& item) {
  if (!list.is_array()) return trouble.note(path, shown(list), "a list");
  const auto size = static_cast<std::int64_t>(list.size());
  if (size > most)
    return trouble.note(path, fmt::format("a list of {}", size),
                        fmt::format("a list of at most {}", most));
  for (std::int64_t i = 0; i < size && !trouble.error; ++i)
    item(list[static_cast<std::size_t>(i)], Path{&path, {}, i});
}

std::vector<std::string> texts_of(const json::Value& list, const Path& path, std::int64_t most,
                                  std::size_t bytes, Trouble& trouble) {
  std::vector<std::string> texts;
  each_of(list, path, most, trouble, [&](const json::Value& item, const Path& at) {
    const std::string_view text = item.string_view_or("");
    if (text.empty() || text.size() > bytes)
      return trouble.note(at, shown(item), text_expected(1, bytes));
    texts.emplace_back(text);
  });
  return texts;
}

}  // namespace rubato::sched
