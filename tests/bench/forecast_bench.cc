// How good expected starts are (scheduler/forecast, `status.expectedStartTime`): a trace is played,
// each job that has to wait gets its forecast in the round in which it begins to, and what came of
// it is compared.
//
//   build/bench/bin/forecast_bench TRACE.csv…     of ITP or Philly
//
// The jobs in the middle of each trace, on as many nodes of 8 GPUs as make the offered load. Work
// left is known as in the operator (of a job that was measured), or of all jobs.
#include "common/files.h"
#include "scheduler/forecast.h"
#include "scheduler/sim/import/importers.h"
#include "scheduler/sim/results.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <unordered_map>

#include <fmt/core.h>

namespace rubato::sched::sim {
namespace {

constexpr std::size_t kJobs = 1000;
constexpr Gpus kGpusPerNode = 8;
constexpr double kLoad = 0.9;
constexpr TimeMs kWaitLeast = 60'000;  // less is the time that pods take to leave
constexpr std::size_t kTraceBytesMost = 64 << 20;

struct Forecast {
  TimeMs at_ms = 0;
  std::optional<TimeMs> start_ms;
};

// As `inner`, and takes down what would have been said.
class Forecasting : public Scheduler {
 public:
  Forecasting(std::unique_ptr<Scheduler> inner, PolicyConfig config)
      : inner_(std::move(inner)), config_(std::move(config)), about_(inner_->descriptor()) {
    about_.knows = Knows::kRemaining;  // forecasts need it, whatever the policy looks at
  }
  const Descriptor& descriptor() const override { return about_; }
  std::optional<TimeMs> next_wake(const ClusterState& state) const override {
    return inner_->next_wake(state);
  }
  Plan decide(const ClusterState& state) override {
    Plan plan = inner_->decide(state);
    const auto waits_anew = [&](std::size_t i) {
      return plan.verdicts[i].outcome == Outcome::kNotNow && !state.jobs[i].started &&
             !made_.contains(state.jobs[i].id);
    };
    std::vector<std::optional<TimeMs>> starts;
    for (std::size_t i = 0; i < state.jobs.size(); ++i) {
      if (!waits_anew(i)) continue;
      if (starts.empty()) starts = expected_starts(state, config_);
      Forecast& made = made_[state.jobs[i].id];
      made.at_ms = state.now_ms;
      if (starts[i]) made.start_ms = state.now_ms + *starts[i];
    }
    return plan;
  }
  const std::unordered_map<JobId, Forecast>& made() const { return made_; }

 private:
  const std::unique_ptr<Scheduler> inner_;
  const PolicyConfig config_;
  Descriptor about_;
  std::unordered_map<JobId, Forecast> made_;
};

template <class T>
T must(Result<T> result) {
  if (result.ok()) return std::move(result).value();
  fmt::print(stderr, "{}\n", result.error().what());
  std::exit(1);
}

std::vector<TraceJob> middle_of(const std::string& path) {
  PosixFileSystem files;
  const std::string text = must(read_text(files, path, kTraceBytesMost));
  const TraceText trace{path, text};
  const TraceFormat format = must(format_of(trace));
  std::vector<TraceJob> jobs =
      must(format == TraceFormat::kPhilly ? read_philly(trace) : read_itp(trace));
  std::ranges::stable_sort(jobs, {}, &TraceJob::submit_ms);
  for (TraceJob& job : jobs) job.queue = "default";
  const std::size_t first = jobs.size() > kJobs ? (jobs.size() - kJobs) / 2 : 0;
  jobs.erase(jobs.begin(), jobs.begin() + static_cast<std::ptrdiff_t>(first));
  jobs.resize(std::min(jobs.size(), kJobs));
  return jobs;
}

std::int64_t nodes_for(const std::vector<TraceJob>& jobs) {
  const TimeMs end = jobs.back().submit_ms;
  double asked = 0;
  for (const TraceJob& job : jobs)  // work is in seconds
    asked += static_cast<double>(job.request) *
             std::min(job.work * 1e3, static_cast<double>(end - job.submit_ms));
  const double gpus = asked / static_cast<double>(end - jobs.front().submit_ms) / kLoad;
  return std::max<std::int64_t>(1, std::llround(gpus / kGpusPerNode));
}

double quantile(std::vector<double> of, double share) {
  std::ranges::sort(of);
  return of[static_cast<std::size_t>(share * static_cast<double>(of.size() - 1))];
}

void play(const std::string& path, const std::string& policy, Oracle oracle) {
  const std::vector<TraceJob> jobs = middle_of(path);
  const std::int64_t nodes = nodes_for(jobs);
  Forecasting scheduler(must(scheduler_named(policy)), {.policy = policy, .sharing = true});
  const SimResult result =
      must(simulate(must(parse_cluster(fmt::format("{}x{}:A", nodes, kGpusPerNode))), jobs,
                    scheduler, {.costs = in_place_costs(), .oracle = oracle}));
  std::size_t waited = 0;
  std::vector<double> errors, minutes;
  for (const JobResult& job : result.jobs) {
    const auto found = scheduler.made().find(job.id);
    if (found == scheduler.made().end() || job.start_ms - found->second.at_ms < kWaitLeast)
      continue;
    ++waited;
    if (!found->second.start_ms) continue;
    const auto wait = static_cast<double>(job.start_ms - found->second.at_ms);
    const double off = std::abs(static_cast<double>(*found->second.start_ms - job.start_ms));
    errors.push_back(off / wait);
    minutes.push_back(off / 60e3);
  }
  const double known = 100.0 * static_cast<double>(errors.size()) /
                       static_cast<double>(std::max<std::size_t>(1, waited));
  const std::string figures =
      errors.empty() ? "– | – | – | –"
                     : fmt::format("{:.0f} % | {:.0f} % | {:.1f} | {:.1f}",
                                   100 * quantile(errors, 0.5), 100 * quantile(errors, 0.8),
                                   quantile(minutes, 0.5), quantile(minutes, 0.8));
  fmt::print("| {} | {} | {} | {} | {} | {:.0f} % | {} |\n", path.substr(path.rfind('/') + 1),
             policy, oracle == Oracle::kTruth ? "all jobs" : "those measured", nodes, waited, known,
             figures);
}

}  // namespace
}  // namespace rubato::sched::sim

int main(int argc, char** argv) {
  using rubato::sched::sim::Oracle;
  if (argc < 2) {
    fmt::print(stderr, "usage: forecast_bench TRACE.csv…\n");
    return 2;
  }
  fmt::print(
      "{} jobs from the middle of each trace, offered load {}. Jobs that waited for a minute "
      "and more; errors are parts of what they still waited, and minutes.\n\n",
      rubato::sched::sim::kJobs, rubato::sched::sim::kLoad);
  fmt::print(
      "| trace | policy | work left is known of | nodes | jobs that waited | with a forecast | "
      "median error | 80 % are within | median, min | 80 %, min |\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
  for (int i = 1; i < argc; ++i)
    for (const char* policy : {"fifo", "fifoBackfill", "srtf", "rubato"})
      for (const Oracle oracle : {Oracle::kObserved, Oracle::kTruth})
        rubato::sched::sim::play(argv[i], policy, oracle);
  return 0;
}
