// Workloads of Pollux' artifact (OSDI'21), from its workload files and measured profiles.
#include "scheduler/sim/import/job_list.h"
#include "scheduler/sim/import/pollux_tables.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace rubato::sched::sim {
namespace {

constexpr auto kBatchMax = static_cast<std::int64_t>(kPolluxBatchMost);
constexpr Gpus kGpusPerNode = 4;
constexpr Gpus kPackedMax = 16;  // placements were measured on four nodes
constexpr Gpus kElasticMax = 64;

using Rows = std::vector<MeasuredStep>;  // by local batch

struct FixedApplication {
  std::map<Gpus, Rows> by_gpus;
  std::map<std::int64_t, double> iterations;  // by batch
};

// "4", "14", "24" … the tightest placement of n GPUs, as the artifact writes it.
std::string packed_name(Gpus gpus) {
  std::string digits = gpus % kGpusPerNode == 0 ? "" : std::to_string(gpus % kGpusPerNode);
  digits.append(static_cast<std::size_t>(gpus / kGpusPerNode), '4');
  return digits;
}

Status read_placements(const TraceText& text, FixedApplication& to) {
  TRY(const Csv csv, pollux_placements(text));
  std::map<std::string, Gpus> wanted;
  for (Gpus n = 1; n <= kPackedMax; ++n) wanted[packed_name(n)] = n;
  for (std::size_t i = 0; i < csv.size(); ++i) {
    const auto found = wanted.find(csv.row(i).text("placement"));
    if (found == wanted.end()) continue;
    TRY(const MeasuredStep one, pollux_step(csv.row(i)));
    to.by_gpus[found->second].push_back(one);
  }
  return ok();
}

Status read_scalability(const TraceText& text, FixedApplication& to) {
  TRY(const Csv csv, pollux_scalability(text));
  std::map<Gpus, std::int64_t> fewest;
  for (std::size_t i = 0; i < csv.size(); ++i) {
    const CsvRow row = csv.row(i);
    TRY(const std::int64_t nodes, row.whole("num_nodes", 1, 1'000'000));
    TRY(const Gpus gpus, row.whole("num_replicas", 1, 1'000'000));
    if (gpus <= kPackedMax) continue;
    const auto [known, is_new] = fewest.emplace(gpus, nodes);
    if (nodes > known->second) continue;
    if (nodes < known->second || is_new) to.by_gpus[gpus].clear();
    known->second = nodes;
    TRY(const MeasuredStep one, pollux_step(row));
    to.by_gpus[gpus].push_back(one);
  }
  return ok();
}

// The `iteration` of its last line.
Result<double> read_iterations(const TraceText& text) {
  TRY(const Csv csv, pollux_epochs(text, {"iteration"}));
  return csv.row(csv.size() - 1).number("iteration", 1, kSecondsMax);
}

Result<FixedApplication> read_application(const std::string& name, const PolluxProfile& profile) {
  FixedApplication to;
  TRY_OK(read_placements(profile.placements, to));
  TRY_OK(read_scalability(profile.scalability, to));
  for (const auto& [batch, text] : profile.validation) {
    TRY(to.iterations[batch], read_iterations(text));
  }
  if (to.by_gpus.empty())
    return Error(Code::kInvalid, fmt::format("{}: expected placements of {} such as 1, 4, 44",
                                             profile.placements.file, name));
  for (auto& [gpus, rows] : to.by_gpus)
    std::sort(rows.begin(), rows.end(), [](const MeasuredStep& a, const MeasuredStep& b) {
      return a.local_batch < b.local_batch;
    });
  return to;
}

// Linear between two profiled batches; the smallest where it is smaller.
MeasuredStep at_batch(const Rows& rows, double batch) {
  const auto next =
      std::lower_bound(rows.begin(), rows.end(), batch,
                       [](const MeasuredStep& one, double b) { return one.local_batch < b; });
  if (next == rows.begin()) return rows.front();
  if (next == rows.end()) return rows.back();
  const MeasuredStep& before = *(next - 1);
  const double part = (batch - before.local_batch) / (next->local_batch - before.local_batch);
  return {batch, before.step_s + part * (next->step_s - before.step_s),
          before.sync_s + part * (next->sync_s - before.sync_s)};
}

// Seconds of one iteration of the whole batch.
double iteration_s(const Rows& rows, Gpus gpus, std::int64_t batch) {
  const double local = std::ceil(static_cast<double>(batch) / static_cast<double>(gpus));
  const double passes = std::ceil(local / rows.back().local_batch);
  const MeasuredStep one = at_batch(rows, std::ceil(local / passes));
  return one.step_s + (passes - 1) * (one.step_s - one.sync_s);
}

}  // namespace

Result<std::vector<std::string>> applications_in(const TraceText& trace) {
  TRY(const Csv csv, Csv::parse(trace.file, trace.text, Csv::header_of(trace.text)));
  TRY_OK(csv.require({"application"}));
  std::set<std::string> names;
  for (std::size_t i = 0; i < csv.size(); ++i) {
    TRY(const std::string name, csv.row(i).word("application"));
    // It becomes the name of a folder.
    if (name.find_first_of("/.") != std::string::npos)
      return csv.row(i).error("application", "a name without / and .");
    names.insert(name);
  }
  return std::vector<std::string>(names.begin(), names.end());
}

Result<std::vector<TraceJob>> read_pollux(const TraceText& trace,
                                          const std::map<std::string, PolluxProfile>& profiles) {
  std::map<std::string, FixedApplication> applications;
  for (const auto& [name, profile] : profiles) {
    TRY(FixedApplication one, read_application(name, profile));
    applications[name] = std::move(one);
  }
  TRY(const Csv csv, pollux_workload(trace));
  JobList jobs;
  for (std::size_t i = 0; i < csv.size(); ++i) {
    const CsvRow row = csv.row(i);
    TraceJob job;
    TRY(job.id, row.word("name"));
    TRY(job.submit_ms, row.milliseconds("time"));
    const auto found = applications.find(row.text("application"));
    if (found == applications.end())
      return row.error("application", "one with a profile: a folder of --profiles");
    TRY(job.request, row.whole("num_replicas", 1, kElasticMax));
    TRY(const std::int64_t batch, row.whole("batch_size", 1, kBatchMax));
    const auto iterations = found->second.iterations.find(batch);
    if (iterations == found->second.iterations.end())
      return row.error("batch_size",
                       fmt::format("one with a validation-*.csv of {}", found->first));
    job.work = iterations->second;
    job.profile = fmt::format("{}/{}", found->first, batch);
    job.min = 1;
    job.max = kElasticMax;
    for (const auto& [gpus, rows] : found->second.by_gpus)
      job.speed.add("*", {gpus, 1.0 / iteration_s(rows, gpus, batch)});
    TRY_OK(jobs.add(std::move(job), row, "name"));
  }
  return std::move(jobs).take();
}

}  // namespace rubato::sched::sim
