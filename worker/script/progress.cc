#include "worker/script/progress.h"

#include "common/json.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <re2/re2.h>

namespace rubato::worker {
namespace {

constexpr double kCountMost = 0x1p62;
constexpr std::int64_t kPatternMemory = 1 << 20;  // of a compiled pattern

// Names of groups as older releases of RE2 want them: (?P<name>…).
std::string with_python_names(std::string_view text) {
  std::string found;
  bool in_class = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    found += c;
    if (c == '\\' && i + 1 < text.size()) {
      found += text[++i];
    } else if (in_class) {
      in_class = c != ']';
    } else if (c == '[') {
      in_class = true;
    } else if (text.substr(i).starts_with("(?<")) {
      found += "?P";
      ++i;
    }
  }
  return found;
}

// A line of JSON with null in the place of the numbers that Python writes and JSON does not have.
std::string without_python_numbers(std::string_view line) {
  constexpr std::array<std::string_view, 3> kNumbers = {"NaN", "Infinity", "-Infinity"};
  std::string found;
  bool in_text = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const auto begins = [&](std::string_view word) { return line.substr(i).starts_with(word); };
    const auto number = std::ranges::find_if(kNumbers, begins);
    if (!in_text && number != kNumbers.end()) {
      found += "null";
      i += number->size() - 1;
      continue;
    }
    found += line[i];
    if (line[i] == '"') in_text = !in_text;
    if (in_text && line[i] == '\\' && i + 1 < line.size()) found += line[++i];
  }
  return found;
}

}  // namespace

Result<std::optional<ToldProgress>> progress_of_file(const std::string& text) {
  const std::size_t end = text.rfind('\n');
  if (end == std::string::npos) return std::optional<ToldProgress>();
  const std::size_t before = end == 0 ? std::string::npos : text.rfind('\n', end - 1);
  const std::size_t begin = before == std::string::npos ? 0 : before + 1;
  const std::string line =
      without_python_numbers(std::string_view(text).substr(begin, end - begin));
  const auto parsed = json::parse(line);
  if (!parsed.ok()) return parsed.error().in("its last line is no JSON");
  if (!(*parsed)["step"].is_number())
    return Error(Code::kInvalid, "its last line has no number \"step\"");
  const auto count = [&](const char* name) -> std::uint64_t {
    const double value = std::round((*parsed)[name].double_or(0));
    return value > 0 ? static_cast<std::uint64_t>(std::min(value, kCountMost)) : 0;
  };
  return std::optional<ToldProgress>(
      {.step = count("step"), .tokens = count("tokens"), .loss = (*parsed)["loss"].double_or(0)});
}

std::string progress_line(const ToldProgress& progress) {
  return fmt::format("{{\"step\": {}, \"tokens\": {}, \"loss\": {}}}\n", progress.step,
                     progress.tokens, progress.loss);
}

// ---- ProgressPattern

struct ProgressPattern::Impl {
  Impl(const std::string& text, const RE2::Options& options) : expression(text, options) {}
  // 0: it has none.
  std::size_t group(const char* name) const {
    const auto& groups = expression.NamedCapturingGroups();
    const auto found = groups.find(name);
    return found == groups.end() ? 0 : static_cast<std::size_t>(found->second);
  }

  const RE2 expression;
  const std::size_t step = group("step");
  const std::size_t loss = group("loss");
  const std::size_t tokens = group("tokens");
};

ProgressPattern::ProgressPattern(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ProgressPattern::ProgressPattern(ProgressPattern&&) noexcept = default;
ProgressPattern& ProgressPattern::operator=(ProgressPattern&&) noexcept = default;
ProgressPattern::~ProgressPattern() = default;

Result<ProgressPattern> ProgressPattern::parse(std::string_view text) {
  if (text.size() > kProgressPatternMost)
    return Error(Code::kInvalid, fmt::format("the pattern has {} bytes; {} are allowed",
                                             text.size(), kProgressPatternMost));
  RE2::Options options;
  options.set_encoding(RE2::Options::EncodingLatin1);  // what is printed need not be text
  options.set_max_mem(kPatternMemory);
  options.set_log_errors(false);
  auto impl = std::make_unique<Impl>(with_python_names(text), options);
  if (!impl->expression.ok())
    return Error(
        Code::kInvalid,
        fmt::format("\"{}\" is no regular expression of RE2 (which looks neither ahead nor "
                    "behind, and has no \\1): {}",
                    text, impl->expression.error()));
  if (impl->step == 0)
    return Error(Code::kInvalid,
                 fmt::format("\"{}\" has no group named step: write (?<step>\\d+) where the lines "
                             "have the number of the step",
                             text));
  return ProgressPattern(std::move(impl));
}

std::optional<ToldProgress> ProgressPattern::find(std::string_view line) const {
  const re2::StringPiece text(line.data(), std::min(line.size(), kProgressLineMost));
  std::vector<re2::StringPiece> groups(1 + std::max({impl_->step, impl_->loss, impl_->tokens}));
  if (!impl_->expression.Match(text, 0, text.size(), RE2::UNANCHORED, groups.data(),
                               static_cast<int>(groups.size())))
    return std::nullopt;
  if (groups[impl_->step].empty()) return std::nullopt;
  const auto word = [&](std::size_t group) {
    return group == 0 ? std::string() : std::string(groups[group].data(), groups[group].size());
  };
  const auto count = [&](std::size_t group) -> std::uint64_t {
    return std::strtoull(word(group).c_str(), nullptr, 10);
  };
  const double loss = std::strtod(word(impl_->loss).c_str(), nullptr);
  return ToldProgress{.step = count(impl_->step),
                      .tokens = count(impl_->tokens),
                      .loss = std::isfinite(loss) ? loss : 0};
}

}  // namespace rubato::worker
