#include "worker/script/progress.h"

#include "common/json.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <regex>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace rubato::worker {
namespace {

struct Expression {
  std::string text;                // without names
  std::vector<std::string> names;  // by group, from the first; "" has none
};

// Names of groups are not ECMAScript's of std::regex.
Expression without_names(std::string_view text) {
  Expression found;
  bool in_class = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    found.text += c;
    if (c == '\\' && i + 1 < text.size()) {
      found.text += text[++i];
    } else if (in_class) {
      in_class = c != ']';
    } else if (c == '[') {
      in_class = true;
    } else if (c == '(') {
      std::string_view rest = text.substr(i + 1);
      if (!rest.starts_with("?")) {
        found.names.emplace_back();
        continue;
      }
      const std::size_t name = rest.starts_with("?P<") ? 3 : 2;
      const std::size_t end = rest.find('>');
      const bool is_named = (rest.starts_with("?<") || name == 3) && end != std::string_view::npos;
      if (!is_named) continue;  // (?:…) is no group
      found.names.emplace_back(rest.substr(name, end - name));
      i += end + 1;
    }
  }
  return found;
}

}  // namespace

std::optional<ToldProgress> progress_of_file(const std::string& text) {
  const std::size_t end = text.rfind('\n');
  if (end == std::string::npos) return std::nullopt;
  const std::size_t before = end == 0 ? std::string::npos : text.rfind('\n', end - 1);
  const std::size_t begin = before == std::string::npos ? 0 : before + 1;
  const auto parsed = json::parse(std::string_view(text).substr(begin, end - begin));
  if (!parsed.ok() || !(*parsed)["step"].is_number()) return std::nullopt;
  const auto count = [&](const char* name) {
    return static_cast<std::uint64_t>(std::max<std::int64_t>((*parsed)[name].int_or(0), 0));
  };
  return ToldProgress{
      .step = count("step"), .tokens = count("tokens"), .loss = (*parsed)["loss"].double_or(0)};
}

std::string progress_line(const ToldProgress& progress) {
  return fmt::format("{{\"step\": {}, \"tokens\": {}, \"loss\": {}}}\n", progress.step,
                     progress.tokens, progress.loss);
}

// ---- ProgressPattern

struct ProgressPattern::Impl {
  std::regex expression;
  std::size_t step = 0;
  std::size_t loss = 0;  // 0: it has none
  std::size_t tokens = 0;
};

ProgressPattern::ProgressPattern(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ProgressPattern::ProgressPattern(ProgressPattern&&) noexcept = default;
ProgressPattern& ProgressPattern::operator=(ProgressPattern&&) noexcept = default;
ProgressPattern::~ProgressPattern() = default;

Result<ProgressPattern> ProgressPattern::parse(std::string_view text) {
  if (text.size() > kProgressPatternMost)
    return Error(Code::kInvalid, fmt::format("the pattern has {} bytes; {} are allowed",
                                             text.size(), kProgressPatternMost));
  const Expression expression = without_names(text);
  auto impl = std::make_unique<Impl>();
  for (std::size_t i = 0; i < expression.names.size(); ++i) {
    const std::string& name = expression.names[i];
    if (name == "step") impl->step = i + 1;
    if (name == "loss") impl->loss = i + 1;
    if (name == "tokens") impl->tokens = i + 1;
  }
  if (impl->step == 0)
    return Error(Code::kInvalid,
                 fmt::format("\"{}\" has no group named step: write (?<step>\\d+) where the lines "
                             "have the number of the step",
                             text));
  try {
    impl->expression = std::regex(expression.text, std::regex::ECMAScript | std::regex::optimize);
  } catch (const std::regex_error& error) {
    return Error(Code::kInvalid, fmt::format("\"{}\" is no regular expression of ECMAScript: {}",
                                             text, error.what()));
  }
  return ProgressPattern(std::move(impl));
}

std::optional<ToldProgress> ProgressPattern::find(std::string_view line) const {
  line = line.substr(0, kProgressLineMost);
  std::cmatch match;
  try {
    if (!std::regex_search(line.data(), line.data() + line.size(), match, impl_->expression))
      return std::nullopt;
  } catch (const std::regex_error&) {  // too much to look at
    return std::nullopt;
  }
  const auto count = [&](std::size_t group) -> std::uint64_t {
    return group == 0 ? 0 : std::strtoull(match.str(group).c_str(), nullptr, 10);
  };
  if (match.length(impl_->step) == 0) return std::nullopt;
  const double loss = impl_->loss == 0 ? 0 : std::strtod(match.str(impl_->loss).c_str(), nullptr);
  return ToldProgress{.step = count(impl_->step),
                      .tokens = count(impl_->tokens),
                      .loss = std::isfinite(loss) ? loss : 0};
}

}  // namespace rubato::worker
