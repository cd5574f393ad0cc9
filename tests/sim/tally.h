// Totals: what many stories add up to. Tally: tells how far they are. coverage_table(): which kinds
// of faults met workers where.
#pragma once

#include "common/json.h"
#include "tests/sim/runner.h"

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace rubato::sim {

constexpr std::uint64_t kLargeMembers = 32;
constexpr double kLargeLeast = 0.02;          // of stories, which have so many members
constexpr std::uint64_t kLargeCounted = 500;  // of fewer stories the share says little

struct FailedSeed {
  std::uint64_t seed = 0;
  std::string what;
};

struct Totals {
  std::uint64_t stories = 0;
  double virtual_seconds = 0;
  std::uint64_t decisions = 0;  // of workers
  std::uint64_t writes = 0;     // of operators
  std::uint64_t lives = 0;      // of operators
  std::uint64_t large = 0;      // stories in which kLargeMembers trained together
  Coverage coverage;
  std::vector<FailedSeed> failed;

  void add(const Outcome& outcome);
  void add(const Totals& other);
};
json::Value to_json(const Totals& totals);
std::optional<Totals> totals_of(const json::Value& value);  // none: not what to_json() writes
std::string to_string(const Totals& totals);
// What is wrong with so many stories that none of them shows alone; "": nothing.
std::string shortage_of(const Totals& totals);

// One line a kind of fault, one column a place; a dot where they never met.
std::string coverage_table(const Coverage& coverage);

// Adds up stories as they end, and prints failures and progress.
class Tally {
 public:
  explicit Tally(std::uint64_t planned);
  void add(const Outcome& outcome);
  void tell_all() const;
  const Totals& totals() const { return totals_; }

  std::vector<Outcome> failures;

 private:
  void progress(const char* tail) const;

  const std::uint64_t planned_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  const bool live_;  // a terminal
  Totals totals_;
};

}  // namespace rubato::sim
