// Soak: very many stories, which may be interrupted (SIGINT) and gone on with. What they came to is
// kept range by range in FOLDER/<commit>-<digest of this program>/ranges.jsonl, so that no other
// program goes on with it. One at a time works on a record.
#pragma once

#include "tests/sim/tally.h"

#include <string>
#include <vector>

namespace rubato::sim {

constexpr std::uint64_t kRangeStories = 100;  // a killed soak tells at most a few ranges again

struct SeedRange {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
  bool operator==(const SeedRange&) const = default;
};

class SoakRecord {
 public:
  // Opens or makes FOLDER/<name>. kConflict: somebody else works on it.
  static Result<SoakRecord> open(const std::string& folder, const std::string& name);
  SoakRecord(SoakRecord&& other) noexcept;
  SoakRecord& operator=(SoakRecord&&) = delete;
  ~SoakRecord();

  // What is not told yet of `first` …, in ranges of at most kRangeStories.
  std::vector<SeedRange> missing(std::uint64_t first, std::uint64_t count) const;
  // On disk when it returns.
  Status add(std::uint64_t first, const Totals& totals);
  const Totals& totals() const { return totals_; }
  const std::string& path() const { return path_; }

 private:
  SoakRecord(int file, std::string path) : file_(file), path_(std::move(path)) {}
  Status read();

  int file_ = -1;
  std::string path_;
  std::vector<SeedRange> told_;
  Totals totals_;
};

struct SoakOptions {
  std::string folder;
  std::string commit;
  std::uint64_t first = 1;
  std::uint64_t stories = 1;
  int jobs = 1;
};
// The exit status: 0 when all are told, none of the record has failed, and it lacks no large ones
// (shortage_of).
int soak(const SoakOptions& options);

}  // namespace rubato::sim
