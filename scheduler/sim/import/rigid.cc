// Traces of rigid jobs: a duration and a number of GPUs.
#include "common/clock.h"
#include "scheduler/sim/import/csv.h"
#include "scheduler/sim/import/importers.h"
#include "scheduler/sim/import/job_list.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace rubato::sched::sim {
namespace {

const std::vector<std::string> kPhilly = {"timestamp", "duration", "num_gpus", "gpu_time",
                                          "cluster"};
const std::vector<std::string> kItp = {"job_id", "submission_time", "duration", "num_gpu"};
const std::vector<std::string> kPollux = {"name", "time", "application", "num_replicas",
                                          "batch_size"};
const std::vector<std::string> kRubick = {"name",     "submission_time", "application",
                                          "num_gpus", "exec_plan",       "steps"};

// "2017-10-09 07:01:55", in milliseconds since 1970.
Result<TimeMs> read_timestamp(const CsvRow& row, const char* column) {
  std::string text = row.text(column);
  const bool has_form = text.size() == 19 && text[10] == ' ' && text >= "1970";
  if (has_form) text[10] = 'T';
  const auto time = parse_rfc3339(text + "Z");
  if (!has_form || !time.ok()) return row.error(column, "a time as 2017-10-09 07:01:55");
  return std::chrono::duration_cast<std::chrono::milliseconds>(time->time_since_epoch()).count();
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

std::vector<TraceJob> begun_at_zero(std::vector<TraceJob> jobs) {
  TimeMs first = std::numeric_limits<TimeMs>::max();
  for (const TraceJob& job : jobs) first = std::min(first, job.submit_ms);
  for (TraceJob& job : jobs) job.submit_ms -= first;
  return jobs;
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
  if (is_header(header, kRubick)) return TraceFormat::kRubick;
  if (is_gavel_trace(trace)) return TraceFormat::kGavel;
  return Error(Code::kInvalid,
               fmt::format("{}:1: the header is of no known format; expected submit_s and others "
                           "(docs/simulate.md), {}, {}, {}, or {}",
                           trace.file, fmt::join(kPhilly, ","), fmt::join(kItp, ","),
                           fmt::join(kPollux, ","), fmt::join(kRubick, ",")));
}

Result<std::vector<TraceJob>> read_philly(const TraceText& trace) {
  TRY(const Csv csv, Csv::parse(trace.file, trace.text, kPhilly));
  TRY_OK(csv.require(kPhilly));
  JobList jobs;
  for (std::size_t i = 0; i < csv.size(); ++i) {
    const CsvRow row = csv.row(i);
    TraceJob job;
    job.id = fmt::format("philly-{:07}", row.line());
    TRY(job.submit_ms, read_timestamp(row, "timestamp"));
    TRY(job.queue, row.word("cluster"));
    TRY_OK(describe_rigid(row, "num_gpus", job));
    TRY_OK(jobs.add(std::move(job), row, "timestamp"));
  }
  return begun_at_zero(std::move(jobs).take());
}

Result<std::vector<TraceJob>> read_itp(const TraceText& trace) {
  TRY(const Csv csv, Csv::parse(trace.file, trace.text, kItp));
  TRY_OK(csv.require(kItp));
  JobList jobs;
  for (std::size_t i = 0; i < csv.size(); ++i) {
    const CsvRow row = csv.row(i);
    TraceJob job;
    TRY(job.id, row.word("job_id"));
    TRY(job.submit_ms, row.milliseconds("submission_time"));
    TRY_OK(describe_rigid(row, "num_gpu", job));
    TRY_OK(jobs.add(std::move(job), row, "job_id"));
  }
  return begun_at_zero(std::move(jobs).take());
}

}  // namespace rubato::sched::sim
