// Our own format: docs/simulate.md has the columns.
#include "scheduler/sim/import/csv.h"
#include "scheduler/sim/import/importers.h"
#include "scheduler/sim/import/job_list.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

namespace rubato::sched::sim {
namespace {

constexpr double kWorkMax = 4e18;
constexpr double kGibMax = 4096;
constexpr double kGibLeast = 1e-6;
constexpr double kDatasetGibMax = 1e6;
constexpr double kCpusMax = 1e6;
constexpr double kBytesPerGib = 1U << 30U;
constexpr std::int64_t kPriorityMax = 2'000'000'000;

const std::vector<std::string> kColumns = {
    "id",          "submit_s",       "queue",          "priority",      "gpus",       "min_gpus",
    "max_gpus",    "gpu_types",      "duration_s",     "work",          "throughput", "deadline_s",
    "gpu_busy",    "gpu_memory_gib", "beside_another", "traffic_gib_s", "dataset",    "dataset_gib",
    "reads_gib_s", "sensitivity",
};

std::vector<std::string_view> parts_of(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

template <class T>
bool read(std::string_view text, T& to) {
  const auto [end, wrong] = std::from_chars(text.data(), text.data() + text.size(), to);
  return !text.empty() && wrong == std::errc() && end == text.data() + text.size();
}

// "T4:1=10;T4:4=35;*:8=60": type : GPUs = units a second.
Status read_speeds(const CsvRow& row, SpeedCurve& to) {
  const Error bad =
      row.error("throughput", "type:gpus=units a second, separated by ; as in T4:1=10;T4:4=35");
  for (const std::string_view part : parts_of(row.text("throughput"), ';')) {
    const std::size_t colon = part.find(':');
    const std::size_t equals = part.find('=');
    if (colon == 0 || colon == std::string_view::npos || equals == std::string_view::npos ||
        equals < colon)
      return bad;
    SpeedPoint point;
    if (!read(part.substr(colon + 1, equals - colon - 1), point.gpus) ||
        !read(part.substr(equals + 1), point.units_per_second) || point.gpus < 1 ||
        point.gpus > kGpusMax || !(point.units_per_second > 0) ||
        !std::isnormal(point.units_per_second))  // one over it is counted with
      return bad;
    to.add(std::string(part.substr(0, colon)), point);
  }
  return ok();
}

Status read_work(const CsvRow& row, TraceJob& job) {
  const bool has_duration = !row.text("duration_s").empty();
  if (has_duration != row.text("work").empty())
    return row.error("duration_s", "either duration_s, or work and throughput");
  if (!has_duration) {
    TRY(job.work, row.number("work", 1e-9, kWorkMax));
    return read_speeds(row, job.speed);
  }
  if (!row.text("throughput").empty()) return row.error("throughput", "nothing beside duration_s");
  if (job.min != job.max)
    return row.error("duration_s", "work and throughput, because min_gpus and max_gpus differ");
  TRY(job.work, row.number("duration_s", 0.001, kSecondsMax));
  job.speed.add("*", {job.request, 1.0});
  return ok();
}

// With nobody, unless it says how busy it keeps a GPU.
Status read_sharing(const CsvRow& row, TraceJob& job) {
  if (row.text("gpu_busy").empty()) {
    for (const char* column : {"gpu_memory_gib", "beside_another"})
      if (!row.text(column).empty()) return row.error(column, "nothing without gpu_busy");
    return ok();
  }
  GpuUse& use = job.sharing.emplace().use;
  TRY(use.busy, row.number("gpu_busy", 0.01, 1));
  use.beside_another = std::min(1.0, 1 / (2 * use.busy));  // beside one like itself
  if (!row.text("beside_another").empty()) {
    TRY(use.beside_another, row.number("beside_another", 0, 1));
  }
  if (!row.text("gpu_memory_gib").empty()) {
    TRY(const double gib, row.number("gpu_memory_gib", 0, kGibMax));
    use.memory = std::llround(gib * kBytesPerGib);
  }
  return ok();
}

// Nothing, unless it names a data set.
Status read_dataset(const CsvRow& row, TraceJob& job) {
  if (row.text("dataset").empty()) {
    for (const char* column : {"dataset_gib", "reads_gib_s"})
      if (!row.text(column).empty()) return row.error(column, "nothing without dataset");
    return ok();
  }
  Dataset& dataset = job.dataset.emplace();
  dataset.name = row.text("dataset");
  TRY(const double gib, row.number("dataset_gib", kGibLeast, kDatasetGibMax));
  TRY(const double a_second, row.number("reads_gib_s", kGibLeast, kGibMax));
  dataset.bytes = std::llround(gib * kBytesPerGib);
  dataset.bytes_per_second = std::llround(a_second * kBytesPerGib);
  return ok();
}

// "2:50=0.5;4:100=1": CPUs : GiB = part of its full speed, for each GPU.
Status read_sensitivity(const CsvRow& row, TraceJob& job) {
  const std::string& text = row.text("sensitivity");
  if (text.empty()) return ok();
  const Error bad =
      row.error("sensitivity",
                "CPUs:GiB=part of its speed, for each GPU, separated by ; as in 2:50=0.5;4:100=1");
  for (const std::string_view part : parts_of(text, ';')) {
    const std::size_t colon = std::min(part.find(':'), part.size());
    const std::size_t equals = part.find('=', colon);
    if (equals == std::string_view::npos) return bad;
    double cpus = 0, gib = 0;
    SensitivityPoint point;
    if (!read(part.substr(0, colon), cpus) ||
        !read(part.substr(colon + 1, equals - colon - 1), gib) ||
        !read(part.substr(equals + 1), point.part) || !(cpus >= 0.001 && cpus <= kCpusMax) ||
        !(gib >= kGibLeast && gib <= kDatasetGibMax) || !(point.part > 0 && point.part <= 1))
      return bad;
    point.per_gpu = {std::llround(cpus * 1000), std::llround(gib * kBytesPerGib)};
    job.sensitivity.push_back(point);
  }
  return ok();
}

Result<TraceJob> read_job(const CsvRow& row) {
  TraceJob job;
  job.id = row.text("id").empty() ? fmt::format("job-{:06}", row.line()) : row.text("id");
  TRY(job.submit_ms, row.milliseconds("submit_s"));
  if (!row.text("deadline_s").empty()) {
    TRY(job.deadline_ms, row.milliseconds("deadline_s"));
  }
  if (!row.text("queue").empty()) job.queue = row.text("queue");
  TRY(job.priority, row.whole_or("priority", 0, -kPriorityMax, kPriorityMax));
  if (row.text("gpus").empty() && row.text("min_gpus").empty())
    return row.error("gpus", "a whole number, or min_gpus and max_gpus");
  TRY(job.min, row.whole_or("min_gpus", 0, 1, kGpusMax));
  TRY(job.request, row.whole_or("gpus", job.min, 1, kGpusMax));
  if (job.min == 0) job.min = job.request;
  TRY(job.max, row.whole_or("max_gpus", job.request, 1, kGpusMax));
  if (job.min > job.request) return row.error("min_gpus", "at most gpus");
  if (job.max < job.request) return row.error("max_gpus", "at least gpus");
  if (!row.text("gpu_types").empty())
    for (const std::string_view type : parts_of(row.text("gpu_types"), ';'))
      job.allow.emplace_back(type);
  if (!row.text("traffic_gib_s").empty()) {
    TRY(const double gib, row.number("traffic_gib_s", 0, kGibMax));
    job.traffic = gib * kBytesPerGib;
  }
  TRY_OK(read_work(row, job));
  TRY_OK(read_sharing(row, job));
  TRY_OK(read_dataset(row, job));
  TRY_OK(read_sensitivity(row, job));
  return job;
}

}  // namespace

Result<std::vector<TraceJob>> read_rubato(const TraceText& trace) {
  TRY(const Csv csv, Csv::parse(trace.file, trace.text, kColumns));
  TRY_OK(csv.require({"submit_s"}));
  JobList jobs;
  for (std::size_t i = 0; i < csv.size(); ++i) {
    TRY(TraceJob job, read_job(csv.row(i)));
    TRY_OK(jobs.add(std::move(job), csv.row(i), "id"));
  }
  return std::move(jobs).take();
}

}  // namespace rubato::sched::sim
