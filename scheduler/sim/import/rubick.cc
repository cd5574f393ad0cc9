// Workloads of Rubick's artifact (MLSys'25), from its workload file and measured iterations.
#include "common/words.h"
#include "scheduler/sim/import/csv.h"
#include "scheduler/sim/import/importers.h"
#include "scheduler/sim/import/job_list.h"

#include <algorithm>

#include <fmt/format.h>

namespace rubato::sched::sim {
namespace {

constexpr std::int64_t kStepsMax = 1'000'000'000;

const std::vector<std::string> kRubickWorkload = {
    "name",     "submission_time", "duration",  "application", "num_gpus",
    "num_cpus", "bandwidth",       "exec_plan", "steps",       "is_sla"};

// Iterations/s: of each plan, by GPUs, where it was placed best; and of the best plan.
struct PlanSpeeds {
  std::map<std::string, std::map<Gpus, double>> by_plan;
  std::map<Gpus, double> best;
};

void raise_speed(std::map<Gpus, double>& speeds, Gpus gpus, double speed) {
  double& known = speeds[gpus];
  known = std::max(known, speed);
}

// "44": four GPUs on each of two nodes.
Result<Gpus> gpus_of_placement(const CsvRow& row) {
  Gpus gpus = 0;
  for (const char digit : row.text("placement")) {
    if (digit < '1' || digit > '9')
      return row.error("placement", "a digit for each node, its GPUs, as in 44");
    gpus += digit - '0';
  }
  if (gpus == 0) return row.error("placement", "a digit for each node, its GPUs, as in 44");
  return gpus;
}

Result<PlanSpeeds> read_plan_speeds(const TraceText& text) {
  TRY(const Csv csv,
      Csv::parse(text.file, text.text,
                 {"exec_plan", "placement", "iter_time", "forward", "overlap_sync", "optimize"}));
  TRY_OK(csv.require({"exec_plan", "placement", "iter_time"}));
  PlanSpeeds to;
  for (std::size_t i = 0; i < csv.size(); ++i) {
    const CsvRow row = csv.row(i);
    TRY(const std::string plan, row.word("exec_plan"));
    TRY(const Gpus gpus, gpus_of_placement(row));
    TRY(const double iteration_s, row.number("iter_time", 1e-9, kSecondsMax));
    raise_speed(to.by_plan[plan], gpus, 1 / iteration_s);
    raise_speed(to.best, gpus, 1 / iteration_s);
  }
  if (to.best.empty()) return Error(Code::kInvalid, text.file + ":2: expected a row for each plan");
  return to;
}

// On n GPUs runs the best plan for n or fewer: no plan was measured for a number in between.
void describe_elastic(const PlanSpeeds& speeds, TraceJob& job) {
  job.min = speeds.best.begin()->first;
  job.max = job.min;
  double best = 0;
  std::map<Gpus, double> frontier;
  for (const auto& [gpus, speed] : speeds.best) {
    if (speed <= best) continue;
    best = frontier[gpus] = speed;
    job.max = gpus;
  }
  job.min = std::min(job.min, job.request);
  job.max = std::max(job.max, job.request);
  for (Gpus n = frontier.begin()->first; n <= job.max; ++n)
    job.speed.add("*", {n, std::prev(frontier.upper_bound(n))->second});
}

}  // namespace

Result<std::vector<TraceJob>> read_rubick(const TraceText& trace,
                                          const std::map<std::string, TraceText>& placements) {
  std::map<std::string, PlanSpeeds> applications;
  for (const auto& [name, text] : placements) {
    TRY(applications[name], read_plan_speeds(text));
  }
  TRY(const Csv csv, Csv::parse(trace.file, trace.text, kRubickWorkload));
  TRY_OK(csv.require(kRubickWorkload));
  JobList jobs;
  for (std::size_t i = 0; i < csv.size(); ++i) {
    const CsvRow row = csv.row(i);
    TraceJob job;
    TRY(job.id, row.word("name"));
    TRY(job.submit_ms, row.milliseconds("submission_time"));
    TRY(const std::int64_t is_guaranteed, row.whole("is_sla", 0, 1));
    job.queue = is_guaranteed == 1 ? "guaranteed" : "best-effort";
    const auto found = applications.find(row.text("application"));
    if (found == applications.end())
      return row.error("application", "one with a profile: a folder of --profiles");
    job.profile = found->first;
    TRY(job.request, row.whole("num_gpus", 1, kGpusMax));
    TRY(const std::int64_t steps, row.whole("steps", 1, kStepsMax));
    job.work = static_cast<double>(steps);
    const auto plan = found->second.by_plan.find(row.text("exec_plan"));
    if (plan == found->second.by_plan.end() || !plan->second.contains(job.request))
      return row.error("exec_plan", fmt::format("one that was measured of {} on {}", found->first,
                                                counted(job.request, "GPU")));
    job.request_speed = plan->second.at(job.request);
    describe_elastic(found->second, job);
    TRY_OK(jobs.add(std::move(job), row, "name"));
  }
  return std::move(jobs).take();
}

}  // namespace rubato::sched::sim
