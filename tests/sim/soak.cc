#include "tests/sim/soak.h"

#include "worker/backend/digest.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

namespace rubato::sim {
namespace {

using RealClock = std::chrono::steady_clock;

constexpr auto kProgressLive = std::chrono::milliseconds(200);
constexpr auto kProgressPlain = std::chrono::seconds(30);
constexpr int kInterrupted = 130;

volatile std::sig_atomic_t interrupts = 0;

// The first lets the stories that run come to their end, in their processes too; the second ends.
void on_interrupt(int) {
  const int before = interrupts;
  interrupts = before + 1;
  if (before > 0) ::_exit(kInterrupted);
}

Error failed(const std::string& what) {
  return {Code::kUnavailable, what + ": " + std::strerror(errno)};
}

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string span_of(double seconds) {
  const auto all = static_cast<std::uint64_t>(seconds);
  return all < 3600 ? fmt::format("{} min {:02} s", all / 60, all % 60)
                    : fmt::format("{} h {:02} min", all / 3600, all / 60 % 60);
}

}  // namespace

// ---- The record

Result<SoakRecord> SoakRecord::open(const std::string& folder, const std::string& name) {
  const std::filesystem::path directory = std::filesystem::path(folder) / name;
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return Error(Code::kUnavailable, directory.string() + ": " + error.message());
  const std::string path = (directory / "ranges.jsonl").string();
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0) return failed(path);
  SoakRecord record(file, path);
  if (::flock(file, LOCK_EX | LOCK_NB) != 0)
    return Error(Code::kConflict, path + " is worked on by another soak");
  TRY_OK(record.read());
  return record;
}

SoakRecord::SoakRecord(SoakRecord&& other) noexcept
    : file_(std::exchange(other.file_, -1)),
      path_(std::move(other.path_)),
      told_(std::move(other.told_)),
      totals_(std::move(other.totals_)) {}

SoakRecord::~SoakRecord() {
  if (file_ >= 0) ::close(file_);
}

// What is behind the last line that ends was cut short by a kill, and goes.
Status SoakRecord::read() {
  const std::string text = text_of(path_);
  const std::size_t end = text.rfind('\n') + 1;  // 0 when there is none
  if (end < text.size() && ::ftruncate(file_, static_cast<off_t>(end)) != 0) return failed(path_);
  std::istringstream lines(text.substr(0, end));
  for (std::string line; std::getline(lines, line);) {
    const Result<json::Value> value = json::parse(line);
    const std::optional<Totals> totals = value.ok() ? totals_of(*value) : std::nullopt;
    if (!totals) return Error(Code::kInvalid, path_ + " has a line that is no range");
    told_.push_back({static_cast<std::uint64_t>((*value)["first"].int_or(0)), totals->stories});
    totals_.add(*totals);
  }
  return ok();
}

std::vector<SeedRange> SoakRecord::missing(std::uint64_t first, std::uint64_t count) const {
  std::vector<SeedRange> told = told_;
  std::ranges::sort(told, {}, &SeedRange::first);
  std::vector<SeedRange> ranges;
  std::uint64_t at = first;
  const auto add_until = [&](std::uint64_t end) {
    while (at < end) {
      const std::uint64_t size = std::min(end - at, kRangeStories - at % kRangeStories);
      ranges.push_back({at, size});
      at += size;
    }
  };
  for (const SeedRange& range : told) {
    add_until(std::min(range.first, first + count));
    at = std::max(at, range.first + range.count);
  }
  add_until(first + count);
  return ranges;
}

Status SoakRecord::add(std::uint64_t first, const Totals& totals) {
  json::Value value = to_json(totals);
  value.set("first", first);
  const std::string line = json::dump(value) + '\n';
  if (::write(file_, line.data(), line.size()) != static_cast<ssize_t>(line.size()) ||
      ::fdatasync(file_) != 0)
    return failed(path_);
  told_.push_back({first, totals.stories});
  totals_.add(totals);
  return ok();
}

// ---- The run

namespace {

// Hands out the stories of ranges in order, and keeps each range when its last story has ended.
class SoakRun {
 public:
  SoakRun(SoakRecord& record, std::vector<SeedRange> ranges) : record_(record) {
    for (const SeedRange& range : ranges) {
      planned_ += range.count;
      open_.emplace(range.first, Open{range.count, {}});
    }
    next_ = open_.empty() ? 0 : open_.begin()->first;
  }

  std::optional<Trial> next() {
    if (interrupts > 0 || started_ == planned_) return std::nullopt;
    auto range = std::prev(open_.upper_bound(next_));
    if (next_ == range->first + range->second.count) next_ = std::next(range)->first;
    Trial trial;
    trial.seed = next_++;
    ++started_;
    return trial;
  }

  void ended(const Outcome& outcome) {
    const auto range = std::prev(open_.upper_bound(outcome.trial.seed));
    range->second.totals.add(outcome);
    ++ended_;
    if (!outcome.result.ok) {
      ++failed_;
      fmt::print("{}seed {} failed: {}\n", live_ ? "\r\033[K" : "", outcome.trial.seed,
                 outcome.result.what);
    }
    if (range->second.totals.stories == range->second.count) keep(range->first);
    tell_progress();
  }

  // Of an interrupted range what was begun has ended, and was begun in order.
  void keep_all() {
    for (auto& [first, range] : open_)
      if (range.totals.stories > 0 && range.totals.stories < range.count) keep(first);
    if (live_) fmt::print("\r\033[K");
  }

  double stories_a_second() const { return ended_ == 0 ? 0 : static_cast<double>(ended_) / real(); }

 private:
  struct Open {
    std::uint64_t count = 0;
    Totals totals;
  };

  double real() const { return std::chrono::duration<double>(RealClock::now() - began_).count(); }
  void keep(std::uint64_t first) {
    const Status kept = record_.add(first, open_.at(first).totals);
    if (!kept.ok()) check_failed(__FILE__, __LINE__, kept.error().to_string());
  }
  void tell_progress() {
    const auto now = RealClock::now();
    if (now < next_progress_) return;
    next_progress_ = now + (live_ ? RealClock::duration(kProgressLive) : kProgressPlain);
    const double rate = stories_a_second();
    fmt::print("{}{} of {} stories, {} failed; {:.1f} a second; {} left{}", live_ ? "\r\033[K" : "",
               ended_, planned_, failed_, rate,
               span_of(static_cast<double>(planned_ - ended_) / rate), live_ ? "" : "\n");
    std::fflush(stdout);
  }

  SoakRecord& record_;
  std::map<std::uint64_t, Open> open_;  // by their first seed
  std::uint64_t planned_ = 0;
  std::uint64_t next_ = 0;  // seed
  std::uint64_t started_ = 0;
  std::uint64_t ended_ = 0;
  std::uint64_t failed_ = 0;
  const RealClock::time_point began_ = RealClock::now();
  RealClock::time_point next_progress_ = began_ + kProgressLive;
  const bool live_ = ::isatty(1) != 0;
};

void tell(const SoakRecord& record, double rate) {
  Totals totals = record.totals();
  std::ranges::sort(totals.failed, {}, &FailedSeed::seed);
  for (const FailedSeed& each : totals.failed)
    fmt::print("seed {} failed: {}\n  replay: {}\n", each.seed, each.what,
               replay_command({.seed = each.seed}));
  fmt::print("{}", coverage_table(totals.coverage));
  fmt::print("{} stories in {}, {} failed; {:.1f} a second in this run\n{}\n", totals.stories,
             record.path(), totals.failed.size(), rate, to_string(totals));
  if (const std::string shortage = shortage_of(totals); !shortage.empty())
    fmt::print("{}\n", shortage);
}

}  // namespace

int soak(const SoakOptions& options) {
  const std::string program = text_of("/proc/self/exe");
  const std::string name =
      options.commit + "-" + worker::to_hex(worker::digest_of(program.data(), program.size()));
  auto record = SoakRecord::open(options.folder, name);
  if (!record.ok()) {
    fmt::print(stderr, "{}\n", record.error().to_string());
    return 1;
  }
  SoakRun run(*record, record->missing(options.first, options.stories));
  struct sigaction action = {};
  action.sa_handler = on_interrupt;
  for (const int signal : {SIGINT, SIGTERM}) ::sigaction(signal, &action, nullptr);
  run_all(
      options.jobs, [&] { return run.next(); },
      [&](const Outcome& outcome) {
        run.ended(outcome);
        return true;
      });
  run.keep_all();
  tell(*record, run.stories_a_second());
  if (!record->totals().failed.empty() || !shortage_of(record->totals()).empty()) return 1;
  return interrupts > 0 ? kInterrupted : 0;
}

}  // namespace rubato::sim
