#include "tools/rubatoctl/durations.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <string>
#include <utility>

namespace rubato::ctl {
namespace {

// Longer names first: "m" begins "ms".
constexpr std::array<std::pair<std::string_view, double>, 7> kUnits{
    {{"ms", 1e-3}, {"us", 1e-6}, {"µs", 1e-6}, {"ns", 1e-9}, {"h", 3600}, {"m", 60}, {"s", 1}}};

Result<double> seconds_of(std::string_view text) {
  double sum = 0;
  std::string_view rest = text;
  while (!rest.empty()) {
    double number = 0;
    const auto [end, error] =
        std::from_chars(rest.data(), rest.data() + rest.size(), number, std::chars_format::fixed);
    if (error != std::errc() || !std::isfinite(number) || number < 0)
      return Error(Code::kInvalid, "not a number");
    const bool is_all = rest.size() == text.size();
    rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
    if (is_all && rest.empty()) return number;  // of seconds
    const auto* const unit = std::ranges::find_if(
        kUnits, [&](const auto& known) { return rest.starts_with(known.first); });
    if (unit == kUnits.end()) return Error(Code::kInvalid, "not a unit");
    sum += number * unit->second;
    rest.remove_prefix(unit->first.size());
  }
  return sum;
}

}  // namespace

Result<std::chrono::seconds> parse_wait(std::string_view text) {
  const Result<double> wait = seconds_of(text);
  if (text.empty() || !wait.ok())
    return Error(Code::kInvalid, "\"" + std::string(text) +
                                     "\" is no time to wait: name seconds (90), or hours, minutes "
                                     "and seconds as kubectl does (1h30m, 90s)");
  const double most = static_cast<double>(kLongestWait.count());
  return std::chrono::seconds(static_cast<std::int64_t>(std::ceil(std::min(*wait, most))));
}

}  // namespace rubato::ctl
