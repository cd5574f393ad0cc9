#include "scheduler/sim/failures.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <set>

#include <fmt/format.h>

namespace rubato::sched::sim {
namespace {

constexpr double kMsPerHour = 3.6e6;
constexpr double kMsPerMinute = 6e4;
constexpr double kMtbfHoursLeast = 0.01;
constexpr double kCheckpointMinutesLeast = 0.01;
constexpr double kFailureNumberMost = 1e6;

struct FailurePart {
  std::string_view name;
  double number = 0;
};

// None: it is no NAME=NUMBER.
std::optional<FailurePart> part_of_failures(std::string_view text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos) return std::nullopt;
  FailurePart part{.name = text.substr(0, equals)};
  const std::string_view number = text.substr(equals + 1);
  const auto [end, wrong] = std::from_chars(number.begin(), number.end(), part.number);
  if (wrong != std::errc() || end != number.end()) return std::nullopt;
  return part;
}

bool is_within(double number, double least) {
  return number >= least && number <= kFailureNumberMost;  // nan is not
}

bool set_part(NodeFailures& failures, const FailurePart& part) {
  const auto set_time = [&](TimeMs& time, double ms_per_unit, double least) {
    if (!is_within(part.number, least)) return false;
    time = std::llround(part.number * ms_per_unit);
    return true;
  };
  if (part.name == "mtbf") return set_time(failures.mtbf_ms, kMsPerHour, kMtbfHoursLeast);
  if (part.name == "repair") return set_time(failures.repair_ms, kMsPerMinute, 0);
  if (part.name == "checkpoint")
    return set_time(failures.checkpoint_ms, kMsPerMinute, kCheckpointMinutesLeast);
  if (part.name != "seed" || !is_within(part.number, 0) || part.number != std::floor(part.number))
    return false;
  failures.seed = static_cast<std::uint64_t>(part.number);
  return true;
}

}  // namespace

Result<NodeFailures> parse_failures(std::string_view text) {
  NodeFailures failures;
  std::set<std::string_view> named;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view word = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(word.size() + 1, rest.size()));
    const auto part = part_of_failures(word);
    if (!part || !named.insert(part->name).second || !set_part(failures, *part))
      return Error(Code::kInvalid,
                   fmt::format("\"{}\": expected mtbf=HOURS (from {}), repair=MINUTES (from 0), "
                               "checkpoint=MINUTES (from {}) or seed=NUMBER (whole, from 0), each "
                               "once and at most {:.0f}, as in mtbf=720,repair=60",
                               word, kMtbfHoursLeast, kCheckpointMinutesLeast, kFailureNumberMost));
  }
  if (named.contains("mtbf")) return failures;
  return Error(
      Code::kInvalid,
      fmt::format("\"{}\": expected the hours after which a node fails on average, too, as "
                  "in mtbf=720,repair=60",
                  text));
}

Uptimes::Uptimes(const NodeFailures& failures, std::size_t node)
    : mean_ms_(static_cast<double>(failures.mtbf_ms)), rng_(Rng(failures.seed).fork(node)) {}

TimeMs Uptimes::next() {
  return std::max<TimeMs>(std::llround(-std::log(1 - rng_.unit()) * mean_ms_), 1);
}

}  // namespace rubato::sched::sim
