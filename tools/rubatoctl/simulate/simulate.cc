#include "tools/rubatoctl/simulate/simulate.h"

#include "common/words.h"
#include "scheduler/policy/registry.h"
#include "scheduler/sim/report.h"
#include "tools/rubatoctl/view/plot.h"
#include "tools/rubatoctl/view/text_table.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace rubato::ctl {

using namespace sched::sim;  // NOLINT: its names fill this file
using sched::TimeMs;

namespace {

constexpr auto kTellEvery = 5s;
constexpr double kBytesPerGib = 1U << 30U;

Result<std::vector<CostModel>> costs_of(const std::string& word) {
  if (word == "both") return std::vector<CostModel>{restart_costs(), in_place_costs()};
  if (const auto one = costs_named(word)) return std::vector<CostModel>{*one};
  return Error(Code::kInvalid,
               fmt::format("--cost {}: expected restart, in-place, rubick or both", word));
}

// None: nodes do not fail.
Result<std::optional<NodeFailures>> failures_of(const SimulateOptions& options) {
  if (options.fail.empty()) return std::optional<NodeFailures>();
  auto failures = parse_failures(options.fail);
  if (!failures.ok()) return failures.error().in("--fail");
  if (options.mode == kPolluxMode)
    return Error(Code::kInvalid,
                 fmt::format("--fail: in the mode {0} nodes do not fail; leave out --fail, or "
                             "--mode {0}",
                             kPolluxMode));
  return std::optional(*failures);
}

double seconds_since(const Clock& clock, MonoTime began) {
  return std::chrono::duration<double>(clock.now() - began).count();
}

Result<SimResult> run_one(const Clock& clock, const SimCluster& cluster,
                          const std::vector<TraceJob>& jobs, const std::string& policy,
                          const CostModel& costs, const SimulateOptions& chosen,
                          const std::map<std::string, sched::Queue>& queues,
                          const std::function<void(const std::string&)>& tell) {
  TRY(const auto scheduler, scheduler_of_words(policy));
  TRY(const auto distances, parse_distances(chosen.distances, cluster));
  TRY(const auto failures, failures_of(chosen));
  const MonoTime began = clock.now();
  MonoTime told = began;
  SimOptions options{.costs = costs,
                     .round_ms = TimeMs{1000} * chosen.round_s,
                     .queues = queues,
                     .growth_pause_ms = TimeMs{1000} * chosen.growth_pause_s,
                     .profiled = chosen.profiled,
                     .in_lockstep = chosen.mode == kPolluxMode,
                     .oracle = chosen.no_oracle ? Oracle::kNothing : Oracle::kTruth,
                     .distances = distances,
                     .failures = failures};
  if (chosen.remote_gib_s > 0)
    options.storage =
        sched::Storage{.cache_bytes = std::llround(chosen.cache_gib * kBytesPerGib),
                       .remote_bytes_per_second = std::llround(chosen.remote_gib_s * kBytesPerGib)};
  if (chosen.node_cpus > 0)
    options.of_node = sched::CpuMemory{.cpu = std::llround(chosen.node_cpus * 1000),
                                       .memory = std::llround(chosen.node_gib * kBytesPerGib)};
  options.stopwatch_ns = [&clock] { return clock.now().time_since_epoch().count(); };
  options.on_progress = [&](std::size_t finished, std::size_t of, TimeMs) {
    if (clock.now() - told < kTellEvery) return true;
    told = clock.now();
    tell(progress_line(policy + ", " + costs.name, finished, of, seconds_since(clock, began)));
    return true;
  };
  auto result = sched::sim::simulate(cluster, jobs, *scheduler, options);
  const bool is_of_trace = !result.ok() && result.error().code() == Code::kInvalid;
  if (is_of_trace && !chosen.trace.empty()) return result.error().in(chosen.trace);
  return result;
}

SimulateOptions as_mode_says(SimulateOptions options) {
  if (options.mode != kPolluxMode) return options;
  options.cost = "restart";
  options.round_s = 60;
  options.growth_pause_s = 0;
  return options;
}

std::string refused_text(const SimResult& result) {
  if (result.refused.empty()) return "";
  constexpr std::size_t kShown = 3;
  std::string text = fmt::format(
      "left out: {}, which could never have their GPUs:\n",
      counted_of(result.refused.size(), result.refused.size() + result.jobs.size(), "job"));
  for (std::size_t i = 0; i < std::min(kShown, result.refused.size()); ++i)
    text += readable(fmt::format("  {}: {}", result.refused[i].id, result.refused[i].why)) + "\n";
  if (result.refused.size() > kShown) text += "  …\n";
  return text;
}

bool is_any_started(const SimResult& result) {
  return std::ranges::any_of(result.jobs, [](const JobResult& job) { return job.start_ms >= 0; });
}

Error nobody_ran(const std::vector<TraceJob>& jobs,
                 const std::map<std::string, sched::Queue>& queues) {
  std::string text = "no job ever ran, whatever the policy";
  for (const auto& [name, queue] : queues)
    if (queue.closed && std::ranges::find(jobs, name, &TraceJob::queue) != jobs.end())
      return Error(Code::kInvalid,
                   readable(fmt::format("{}: queue \"{}\" is closed; expected one that is not "
                                        "(--queues)",
                                        text, name)));
  return Error(Code::kInvalid, std::move(text));
}

std::string hours(double seconds) { return fmt::format("{:.2f}", seconds / 3600.0); }

}  // namespace

std::string policies_text() {
  std::string text;
  for (const sched::Descriptor& one : sched::all_policies())
    text += fmt::format("  {:<20} {}; knows {}\n", one.name, one.about, name_of(one.knows));
  return text;
}

Result<std::vector<std::string>> chosen_policies(const std::string& first,
                                                 const std::vector<std::string>& others) {
  std::vector<std::string> policies;
  const auto add = [&](std::string_view text) {
    const std::string_view words = trimmed(text);
    if (!words.empty() && std::ranges::find(policies, words) == policies.end())
      policies.emplace_back(words);
  };
  add(first);
  for (const std::string& other : others) add(other);
  if (policies.empty())
    return Error(Code::kInvalid, "--compare: expected names of policies, as in fifo,srtf");
  return policies;
}

std::string progress_line(const std::string& run, std::size_t finished, std::size_t of,
                          double seconds) {
  const double done = of == 0 ? 1 : static_cast<double>(finished) / static_cast<double>(of);
  std::string line = fmt::format("{}: {:.0f} % of {}, {}", run, done * 100, counted(of, "job"),
                                 short_time(seconds));
  if (done > 0) line += fmt::format(", {} to go", short_time(seconds / done - seconds));
  return line;
}

std::string summary_table(const std::vector<Summary>& runs) {
  const bool has_deadlines =
      std::ranges::any_of(runs, [](const Summary& run) { return run.deadlines > 0; });
  const bool has_failures =
      std::ranges::any_of(runs, [](const Summary& run) { return run.failures.has_value(); });
  TextTable table{
      {"POLICY", "COST", "KNOWS", "JCT MEAN s", "P50 s", "P99 s", "MAKESPAN h", "GPU h", "USED",
       "TRAINED", "WORST RHO", "RHO>1.05", "RESTARTS", "RESCALES", "DECISION µs P50/P99", "DONE"},
      {}};
  if (has_deadlines) table.head.emplace_back("ON TIME");
  if (has_failures)
    for (const char* name : {"FAILURES", "LOST GPU h"}) table.head.emplace_back(name);
  for (const Summary& run : runs) {
    table.rows.push_back(
        {run.policy, run.costs, run.knows, fmt::format("{:.1f}", run.jct_mean_s),
         fmt::format("{:.1f}", run.jct_p50_s), fmt::format("{:.1f}", run.jct_p99_s),
         hours(run.makespan_s), fmt::format("{:.1f}", run.gpu_hours),
         fmt::format("{:.1f} %", run.utilisation * 100),
         fmt::format("{:.1f} %", run.training_share * 100), fmt::format("{:.2f}", run.rho_worst),
         fmt::format("{:.1f} %", run.rho_above_share * 100), std::to_string(run.restarts),
         std::to_string(run.rescales),
         fmt::format("{:.0f}/{:.0f}", run.decision_p50_us, run.decision_p99_us),
         run.unfinished == 0 ? std::to_string(run.finished)
                             : fmt::format("{}, {} never", run.finished, run.unfinished)});
    if (has_deadlines)
      table.rows.back().push_back(fmt::format("{} of {}", run.deadlines_met, run.deadlines));
    if (!has_failures) continue;
    table.rows.back().push_back(std::to_string(run.failures.value_or(0)));
    table.rows.back().push_back(fmt::format("{:.1f}", run.lost_gpu_hours));
  }
  return render(table);
}

Result<std::string> simulate(FileSystem& files, const Clock& clock, const SimulateOptions& chosen,
                             const std::function<void(const std::string&)>& tell) {
  const SimulateOptions options = as_mode_says(chosen);
  auto cluster = parse_cluster(options.nodes);
  if (!cluster.ok()) return cluster.error().in("--nodes");
  auto domains = parse_domains(options.domains);
  if (!domains.ok()) return domains.error().in("--domains");
  cluster->domains = std::move(*domains);
  if (const auto distances = parse_distances(options.distances, *cluster); !distances.ok())
    return distances.error().in("--distance");
  if (const auto failures = failures_of(options); !failures.ok()) return failures.error();
  TRY(const auto costs, costs_of(options.cost));
  for (const std::string& policy : options.policies) TRY_OK(scheduler_of_words(policy));
  TRY(auto jobs, load_trace(files, options));
  TRY(const auto queues, load_queues(options));
  TRY_OK(put_into_queues(jobs, queues, *cluster, options));
  if (!options.out.empty()) TRY_OK(files.make_directories(options.out));
  std::vector<Summary> runs;
  std::vector<SimResult> results;
  std::string left_out;
  bool has_any_run = false;
  for (const CostModel& cost : costs) {
    for (const std::string& policy : options.policies) {
      TRY(SimResult result, run_one(clock, *cluster, jobs, policy, cost, options, queues, tell));
      if (result.jobs.empty())
        return Error(Code::kInvalid,
                     readable(fmt::format("no job could ever have its GPUs; {}: {}",
                                          result.refused.front().id, result.refused.front().why)));
      has_any_run = has_any_run || is_any_started(result);
      runs.push_back(summarise(result));
      left_out = refused_text(result);
      if (options.out.empty()) continue;
      TRY_OK(replace_file(files, fmt::format("{}/jobs-{}-{}.csv", options.out, policy, cost.name),
                          to_csv(result)));
      results.push_back(std::move(result));
    }
  }
  if (!has_any_run) return nobody_ran(jobs, queues);
  std::string text = summary_table(runs) + left_out;
  if (options.out.empty()) return text;
  const std::string title = options.trace.empty()
                                ? fmt::format("{} made jobs, seed {}", options.jobs, options.seed)
                                : options.trace;
  TRY_OK(replace_file(files, options.out + "/summary.json", to_json(*cluster, runs)));
  TRY_OK(replace_file(files, options.out + "/report.html", html_report(title, results, runs)));
  return text + fmt::format("written: {0}/report.html, summary.json and jobs-POLICY-COST.csv\n",
                            options.out);
}

}  // namespace rubato::ctl
