// Workloads of Pollux' artifact (OSDI'21), their batches adapting as in its simulator.
#include "scheduler/sim/import/job_list.h"
#include "scheduler/sim/import/pollux_tables.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

namespace rubato::sched::sim {
namespace {

constexpr double kProgressLeast = 1e-3;
constexpr double kGradientMost = 1e300;
constexpr std::size_t kNodesMost = 16;
constexpr Gpus kNodeGpus = 4;  // of the nodes that were measured
constexpr Gpus kJobGpus = 64;  // what the artifact's simulator gives at most
const std::vector<std::int64_t> kCurveSizes = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64};
// The artifact lets it have less than was measured, and this one adapts nothing.
const std::string kSmallBatches = "yolov3";
constexpr double kSmallBatch = 8;
const std::string kRigid = "ncf";

// "144": one GPU on a node, four on each of two.
Result<GpusByNode> read_digits(const CsvRow& row) {
  GpusByNode nodes;
  for (const char digit : row.text("placement")) {
    if (digit < '1' || digit > '9')
      return row.error("placement", "a digit for each node, its GPUs, as in 144");
    nodes.push_back(digit - '0');
  }
  if (nodes.empty() || nodes.size() > kNodesMost)
    return row.error("placement", "a digit for each node, its GPUs, as in 144");
  return normal_form(std::move(nodes));
}

void add_means(Application& to) {
  std::map<std::tuple<std::int64_t, Gpus, double>, std::pair<MeasuredStep, double>> sums;
  for (const auto& [placement, rows] : to.placements) {
    Gpus gpus = 0;
    for (const Gpus of_node : placement) gpus += of_node;
    for (const MeasuredStep& row : rows) {
      auto& [sum, count] = sums[{std::ssize(placement), gpus, row.local_batch}];
      sum.step_s += row.step_s;
      sum.sync_s += row.sync_s;
      ++count;
    }
  }
  for (const auto& [key, of] : sums) {
    const auto& [nodes, gpus, local_batch] = key;
    const auto& [sum, count] = of;
    to.spreads.push_back({{nodes, gpus}, {local_batch, sum.step_s / count, sum.sync_s / count}});
  }
}

Status read_placements_of(const TraceText& text, Application& to) {
  TRY(const Csv csv, pollux_placements(text));
  double least = std::numeric_limits<double>::infinity(), most = 0;
  for (std::size_t i = 0; i < csv.size(); ++i) {
    TRY(const GpusByNode placement, read_digits(csv.row(i)));
    TRY(const MeasuredStep step, pollux_step(csv.row(i)));
    to.placements[placement].push_back(step);
    least = std::min(least, step.local_batch);
    most = std::max(most, step.local_batch);
  }
  if (to.placements.empty())
    return Error(Code::kInvalid, text.file + ":2: expected a row for each placement and batch");
  for (auto& [placement, rows] : to.placements)
    std::ranges::sort(rows, {}, &MeasuredStep::local_batch);
  to.limits.min_local = least;
  to.limits.max_local = to.name == kSmallBatches ? std::max(kSmallBatch, least) : most;
  add_means(to);
  return ok();
}

Status read_scalability_of(const TraceText& text, Application& to) {
  TRY(const Csv csv, pollux_scalability(text));
  for (std::size_t i = 0; i < csv.size(); ++i) {
    const CsvRow row = csv.row(i);
    SpreadStep one;
    TRY(one.spread.nodes, row.whole("num_nodes", 1, kGpusMax));
    TRY(one.spread.gpus, row.whole("num_replicas", one.spread.nodes, kGpusMax));
    TRY(one.step, pollux_step(row));
    to.spreads.push_back(one);
  }
  return ok();
}

Result<std::vector<MeasuredEpoch>> read_epochs(const TraceText& text) {
  TRY(const Csv csv, pollux_epochs(text, {"progress", "grad_sqr", "grad_var"}));
  std::vector<MeasuredEpoch> epochs(csv.size());
  for (std::size_t i = 0; i < csv.size(); ++i) {
    const CsvRow row = csv.row(i);
    const double before = i == 0 ? kProgressLeast : epochs[i - 1].progress;
    TRY(epochs[i].progress, row.number("progress", before, kSecondsMax));
    TRY(epochs[i].noise.square, row.number("grad_sqr", -kGradientMost, kGradientMost));
    TRY(epochs[i].noise.variance, row.number("grad_var", -kGradientMost, kGradientMost));
  }
  return epochs;
}

Result<Application> read_whole(const std::string& name, const PolluxProfile& profile) {
  Application to{.name = name};
  TRY_OK(read_placements_of(profile.placements, to));
  TRY_OK(read_scalability_of(profile.scalability, to));
  for (const auto& [batch, text] : profile.validation) {
    TRY(to.epochs[batch], read_epochs(text));
  }
  if (to.epochs.empty())
    return Error(Code::kInvalid, fmt::format("{}: expected validation-BATCH.csv beside it",
                                             profile.placements.file));
  to.limits.first_batch = static_cast<double>(to.epochs.begin()->first);
  to.limits.max_batch = static_cast<double>(to.epochs.rbegin()->first);
  return to;
}

SpeedCurve curve_of(StepTimes& steps, Gpus most, double batch) {
  SpeedCurve curve;
  for (const Gpus gpus : kCurveSizes)
    if (gpus <= most) curve.add("*", {gpus, mean_goodput(steps, gpus, kNodeGpus, batch)});
  return curve;
}

// What jobs of one application share.
struct Shared {
  std::shared_ptr<const Application> application;
  SpeedCurve adapted;
  std::map<std::int64_t, SpeedCurve> fixed;  // by batch
};

Result<TraceJob> read_adaptive_job(const CsvRow& row, std::map<std::string, Shared>& shared) {
  TraceJob job;
  TRY(job.id, row.word("name"));
  TRY(job.submit_ms, row.milliseconds("time"));
  const auto found = shared.find(row.text("application"));
  if (found == shared.end())
    return row.error("application", "one with a profile: a folder of --profiles");
  Shared& of = found->second;
  TRY(job.request, row.whole("num_replicas", 1, kJobGpus));
  TRY(const std::int64_t batch,
      row.whole("batch_size", 1, static_cast<std::int64_t>(kPolluxBatchMost)));
  if (!of.application->epochs.contains(batch))
    return row.error("batch_size", fmt::format("one with a validation-*.csv of {}", found->first));
  const bool is_rigid = found->first == kRigid;
  StepTimes steps(*of.application);
  const Gpus most = std::min(of.application->gpus_most(), kJobGpus);
  if (of.adapted.points().empty()) of.adapted = curve_of(steps, most, 0);
  SpeedCurve& fixed = of.fixed[batch];
  const auto split =
      static_cast<Gpus>(static_cast<double>(batch) / of.application->limits.min_local);
  const Gpus fixed_most = std::clamp(split, job.request, kJobGpus);
  if (fixed.points().empty())
    fixed = curve_of(steps, std::min(most, fixed_most), static_cast<double>(batch));
  job.profile = fmt::format("{}/{}", found->first, batch);
  job.work = of.application->progress_after(of.application->count_epochs());
  job.speed = is_rigid ? fixed : of.adapted;
  job.max = is_rigid ? job.request : std::max(most, job.request);
  job.training = AdaptiveTraining{.application = of.application,
                                  .batch = static_cast<double>(batch),
                                  .adapts = !is_rigid,
                                  .fixed_max = is_rigid ? job.request : fixed_most,
                                  .fixed_speed = fixed};
  return job;
}

}  // namespace

Result<std::vector<TraceJob>> read_pollux_batches(
    const TraceText& trace, const std::map<std::string, PolluxProfile>& profiles) {
  std::map<std::string, Shared> shared;
  for (const auto& [name, profile] : profiles) {
    TRY(Application one, read_whole(name, profile));
    shared[name].application = std::make_shared<const Application>(std::move(one));
  }
  TRY(const Csv csv, pollux_workload(trace));
  JobList jobs;
  for (std::size_t i = 0; i < csv.size(); ++i) {
    TRY(TraceJob job, read_adaptive_job(csv.row(i), shared));
    TRY_OK(jobs.add(std::move(job), csv.row(i), "name"));
  }
  return std::move(jobs).take();
}

}  // namespace rubato::sched::sim
