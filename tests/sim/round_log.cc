#include "tests/sim/round_log.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include <fmt/format.h>

namespace rubato::sim {
namespace {
constexpr int kQuietMost = 2;
}

struct RoundLog::Book {
  std::ofstream file;
  std::uint64_t seed = 0;
  std::uint64_t round = 0;
  int quiet = 0;
  std::set<std::size_t> seen;  // hashes of snapshots
};

RoundLog::RoundLog(const std::string& folder, std::uint64_t seed)
    : book_(std::make_shared<Book>()) {
  std::filesystem::create_directories(folder);
  book_->file.open(fmt::format("{}/seed-{}.jsonl", folder, seed), std::ios::trunc);
  CHECK(book_->file.good());
  book_->seed = seed;
}

void RoundLog::operator()(const sched::Snapshot& snapshot, const sched::Plan& plan) const {
  ++book_->round;
  const bool is_quiet =
      plan.actions.empty() && std::ranges::all_of(plan.verdicts, [](const auto& verdict) {
        return verdict.outcome == sched::Outcome::kPlaced;
      });
  if (is_quiet && book_->quiet >= kQuietMost) return;
  const std::string text = to_text(snapshot);
  const std::string lasting = to_text(without_time(snapshot));
  if (!book_->seen.insert(std::hash<std::string>()(lasting)).second) return;
  if (is_quiet) ++book_->quiet;
  book_->file << fmt::format(R"({{"from":"seed {} round {}","snapshot":{},"plan":{}}})",
                             book_->seed, book_->round, text, to_text(plan, snapshot.state))
              << std::endl;
}

}  // namespace rubato::sim
