#include "tests/sim/tally.h"

#include <algorithm>

#include <unistd.h>

namespace rubato::sim {
namespace {

using json::Value;

constexpr std::uint64_t kProgressEvery = 100;  // stories, where there is no terminal

template <std::size_t N>
Value array_of(const std::array<std::uint64_t, N>& counts) {
  Value array = Value::array();
  for (const std::uint64_t count : counts) array.push_back(count);
  return array;
}

template <std::size_t N>
bool read_counts(const Value& array, std::array<std::uint64_t, N>& counts) {
  if (array.size() != N) return false;
  for (std::size_t i = 0; i < N; ++i) counts[i] = static_cast<std::uint64_t>(array[i].int_or(0));
  return true;
}

double share_of_large(const Totals& totals) {
  return static_cast<double>(totals.large) /
         static_cast<double>(std::max<std::uint64_t>(totals.stories, 1));
}

// At most five characters.
std::string brief(std::uint64_t count) {
  if (count == 0) return "·";
  if (count < 100'000) return std::to_string(count);
  return count < 10'000'000 ? fmt::format("{}k", count / 1000)
                            : fmt::format("{}M", count / 1'000'000);
}

std::string line_of(const std::string& name, const std::array<std::uint64_t, kPhases>& counts) {
  std::string line = fmt::format("{:30}", name);
  for (const std::uint64_t count : counts) line += fmt::format(" {:>5}", brief(count));
  return line + '\n';
}

}  // namespace

void Totals::add(const Outcome& outcome) {
  ++stories;
  virtual_seconds += outcome.result.virtual_seconds;
  decisions += outcome.result.decisions;
  writes += outcome.result.writes;
  lives += outcome.result.lives;
  if (outcome.result.members >= kLargeMembers) ++large;
  coverage.add(outcome.result.coverage);
  if (!outcome.result.ok) failed.push_back({outcome.trial.seed, outcome.result.what});
}

void Totals::add(const Totals& other) {
  stories += other.stories;
  virtual_seconds += other.virtual_seconds;
  decisions += other.decisions;
  writes += other.writes;
  lives += other.lives;
  large += other.large;
  coverage.add(other.coverage);
  failed.insert(failed.end(), other.failed.begin(), other.failed.end());
}

Value to_json(const Totals& totals) {
  Value failed = Value::array();
  for (const FailedSeed& each : totals.failed)
    failed.push_back(Value::object({{"seed", each.seed}, {"what", each.what}}));
  Value met = Value::array();
  for (const auto& counts : totals.coverage.met) met.push_back(array_of(counts));
  return Value::object({{"stories", totals.stories},
                        {"virtualSeconds", totals.virtual_seconds},
                        {"decisions", totals.decisions},
                        {"writes", totals.writes},
                        {"lives", totals.lives},
                        {"large", totals.large},
                        {"failed", std::move(failed)},
                        {"reached", array_of(totals.coverage.reached)},
                        {"met", std::move(met)}});
}

std::optional<Totals> totals_of(const Value& value) {
  const auto count = [&](const char* name) {
    return static_cast<std::uint64_t>(value[name].int_or(0));
  };
  Totals totals;
  totals.stories = count("stories");
  totals.virtual_seconds = value["virtualSeconds"].double_or(0);
  totals.decisions = count("decisions");
  totals.writes = count("writes");
  totals.lives = count("lives");
  totals.large = count("large");
  for (const Value& each : value["failed"].items())
    totals.failed.push_back(
        {static_cast<std::uint64_t>(each["seed"].int_or(0)), each["what"].string_or("")});
  const Value& met = value["met"];
  if (totals.stories == 0 || met.size() != totals.coverage.met.size() ||
      !read_counts(value["reached"], totals.coverage.reached))
    return std::nullopt;
  for (std::size_t kind = 0; kind < met.size(); ++kind)
    if (!read_counts(met[kind], totals.coverage.met[kind])) return std::nullopt;
  return totals;
}

std::string to_string(const Totals& totals) {
  return fmt::format(
      "{:.1f} virtual hours, {} stories with {} members ({:.1f} %), {} rounds decided by workers, "
      "{} "
      "writes and {} lives of operators",
      totals.virtual_seconds / 3600, totals.large, kLargeMembers, 100 * share_of_large(totals),
      totals.decisions, totals.writes, totals.lives);
}

std::string shortage_of(const Totals& totals) {
  if (totals.stories < kLargeCounted || share_of_large(totals) >= kLargeLeast) return "";
  return fmt::format("{} of {} stories had {} members, and {:.0f} % are to have", totals.large,
                     totals.stories, kLargeMembers, 100 * kLargeLeast);
}

std::string coverage_table(const Coverage& coverage) {
  std::string text = fmt::format("{:30}", "workers that a fault met at");
  for (std::size_t p = 0; p < kPhases; ++p)
    text += fmt::format(" {:>5.5}", name_of(static_cast<Phase>(p)));
  text += '\n' + line_of("(reached)", coverage.reached);
  for (std::size_t kind = 0; kind < coverage.met.size(); ++kind)
    text += line_of(name_of(static_cast<FaultKind>(kind)), coverage.met[kind]);
  return text;
}

Tally::Tally(std::uint64_t planned) : planned_(planned), live_(::isatty(1) != 0) {}

void Tally::add(const Outcome& outcome) {
  totals_.add(outcome);
  if (!outcome.result.ok) {
    fmt::print("{}seed {} failed: {}\n  replay: {}\n", live_ ? "\r\033[K" : "", outcome.trial.seed,
               outcome.result.what, replay_command(outcome.trial));
    failures.push_back(outcome);
  }
  if (live_ || totals_.stories % kProgressEvery == 0) progress(live_ ? "" : "\n");
}

void Tally::tell_all() const {
  progress("\n");
  fmt::print("{}\n", to_string(totals_));
}

void Tally::progress(const char* tail) const {
  const double real =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
  fmt::print("{}{} of {} stories, {} failed; {:.1f} a second, {:.2f} virtual days per minute{}",
             live_ ? "\r" : "", totals_.stories, planned_, failures.size(),
             static_cast<double>(totals_.stories) / real,
             totals_.virtual_seconds / 86400 / (real / 60), tail);
  std::fflush(stdout);
}

}  // namespace rubato::sim
