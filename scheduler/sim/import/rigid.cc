// Traces of rigid jobs: a duration and a number of GPUs.
#include "scheduler/sim/import/csv.h"
#include "scheduler/sim/import/importers.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace rubato::sched::sim {
namespace {

constexpr double kSecondsMax = 1e10;
constexpr Gpus kGpusMax = 1'000'000;

const std::vector<std::string> kPhilly = {"timestamp", "duration", "num_gpus", "gpu_time",
                                          "cluster"};
const std::vector<std::string> kItp = {"job_id", "submission_time", "duration", "num_gpu"};
const std::vector<std::string> kPollux = {"name", "time", "application", "num_replicas",
                                          "batch_size"};

// Days since 1970-01-01 of a date of the Gregorian calendar (Hinnant, "chrono-compatible low-level
// date algorithms").
std::int64_t days_from_civil(std::int64_t year, std::int64_t month, std::int64_t day) {
  year -= month <= 2 ? 1 : 0;
  const std::int64_t era = (year >= 0 ? year : year - 399) / 400;
  const std::int64_t of_era = year - era * 400;
  const std::int64_t of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
  return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
}

// "2017-10-09 07:01:55" in seconds since 1970.
Result<std::int64_t> read_timestamp(const CsvRow& row, const char* column) {
  int y = 0, mo = 0, d = 0, h = 0, mi = 0, s = 0, used = 0;
  const std::string& cell = row.text(column);
  const int n =
      std::sscanf(cell.c_str(), "%4d-%2d-%2d %2d:%2d:%2d%n", &y, &mo, &d, &h, &mi, &s, &used);
  if (n != 6 || used != static_cast<int>(cell.size()) || y < 1970 || mo < 1 || mo > 12 || d < 1 ||
      d > 31 || h < 0 || h > 23 || mi < 0 || mi > 59 || s < 0 || s > 60)
    return row.error(column, "a time as 2017-10-09 07:01:55");
  return ((days_from_civil(y, mo, d) * 24 + h) * 60 + mi) * 60 + s;
}

Status describe_rigid(const CsvRow& row, const char* gpus, TraceJob& job) {
  TRY(job.request, row.whole(gpus, 1, kGpusMax));
  job.min = job.max = job.request;
  // A trace may say 0 s: the job ended within the second.
  TRY(const double duration_s, row.number("duration", 0, kSecondsMax));
  job.work = std::max(duration_s, 0.001);
  job.speed.add("*", {job.request, 1.0});
  return ok();
}

void begin_at_zero(std::vector<TraceJob>& jobs) {
  TimeMs first = std::numeric_limits<TimeMs>::max();
  for (const TraceJob& job : jobs) first = std::min(first, job.submit_ms);
  for (TraceJob& job : jobs) job.submit_ms -= first;
}

bool is_header(const std::vector<std::string>& header, const std::vector<std::string>& wanted) {
  return std::all_of(wanted.begin(), wanted.end(), [&](const std::string& name) {
    return std::find(header.begin(), header.end(), name) != header.end();
  });
}

}  // namespace

Result<TraceFormat> format_of(const TraceText& trace) {
  const std::vector<std::string> header = Csv::header_of(trace.text);
  if (is_header(header, {"submit_s"})) return TraceFormat::kRubato;
  if (is_header(header, kPhilly)) return TraceFormat::kPhilly;
  if (is_header(header, kItp)) return TraceFormat::kItp;
  if (is_header(header, kPollux)) return TraceFormat::kPollux;
  return Error(Code::kInvalid,
               fmt::format("{}:1: the header is of no known format; expected submit_s and others "
                           "(docs/simulate.md), {}, {}, or {}",
                           trace.file, fmt::join(kPhilly, ","), fmt::join(kItp, ","),
                           fmt::join(kPollux, ",")));
}

Result<std::vector<TraceJob>> read_philly(const TraceText& trace) {
  TRY(const Csv csv, Csv::parse(trace.file, trace.text, kPhilly));
  TRY_OK(csv.require(kPhilly));
  std::vector<TraceJob> jobs;
  for (std::size_t i = 0; i < csv.size(); ++i) {
    const CsvRow row = csv.row(i);
    TraceJob job;
    job.id = fmt::format("philly-{:07}", row.line());
    TRY(const std::int64_t at_s, read_timestamp(row, "timestamp"));
    job.submit_ms = at_s * 1000;
    TRY(job.queue, row.word("cluster"));
    TRY_OK(describe_rigid(row, "num_gpus", job));
    jobs.push_back(std::move(job));
  }
  begin_at_zero(jobs);
  return jobs;
}

Result<std::vector<TraceJob>> read_itp(const TraceText& trace) {
  TRY(const Csv csv, Csv::parse(trace.file, trace.text, kItp));
  TRY_OK(csv.require(kItp));
  std::vector<TraceJob> jobs;
  for (std::size_t i = 0; i < csv.size(); ++i) {
    const CsvRow row = csv.row(i);
    TraceJob job;
    TRY(job.id, row.word("job_id"));
    TRY(const double at_s, row.number("submission_time", 0, kSecondsMax));
    job.submit_ms = static_cast<TimeMs>(at_s * 1000.0);
    TRY_OK(describe_rigid(row, "num_gpu", job));
    jobs.push_back(std::move(job));
  }
  begin_at_zero(jobs);
  return jobs;
}

}  // namespace rubato::sched::sim
