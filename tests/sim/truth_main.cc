// sim_truth [--jobs N] [--seed S] [--load L] [-v] [POLICY…]: mean completion times of one trace in
// the simulated operator and in the trace simulator, by policy. -v shows each job.
#include "common/log.h"
#include "scheduler/policy/registry.h"
#include "tests/sim/truth.h"

#include <algorithm>
#include <cstdlib>

#include <fmt/core.h>

namespace rubato::sim {
namespace {

struct Options {
  DrawTruth draw;
  std::vector<std::string> policies;
  bool shows_jobs = false;
};

Options options_of(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : "";
    const int before = i++;
    if (word == "--jobs")
      options.draw.jobs = std::atoi(value);
    else if (word == "--seed")
      options.draw.seed = std::strtoull(value, nullptr, 10);
    else if (word == "--load")
      options.draw.load = std::atof(value);
    else {
      i = before;
      if (word == "-v")
        options.shows_jobs = true;
      else
        options.policies.emplace_back(word);
    }
  }
  if (options.policies.empty())
    for (const auto& policy : sched::all_policies()) options.policies.push_back(policy.name);
  return options;
}

void print_figures(const TruthTrace& trace, const Figures& figures) {
  const auto& costs = figures.costs;
  fmt::print("{} jobs, offered load {:.2f}; in ms: start {} restart {} release {} rescale {} ",
             trace.jobs.size(), offered_load(trace), costs.start_ms, costs.restart_ms,
             costs.release_ms, costs.rescale_ms);
  fmt::print("join {} observe {}\n", costs.join_ms, figures.observe_ms);
  for (const auto& [micro_batches, speeds] : figures.speeds) {
    fmt::print("rounds/s of {} micro-batches by GPUs:", micro_batches);
    for (const auto& [gpus, speed] : speeds) fmt::print(" {}={:.3f}", gpus, speed);
    fmt::print("\n");
  }
}

double in_seconds(Duration time) { return std::chrono::duration<double>(time).count(); }

// What each of its sizes began at, in both worlds.
void print_job(const TruthJob& job, const Lived& lived, const sched::sim::JobResult& simulated,
               const std::string& sizes) {
  fmt::print("  {} {:.2f} s, simulated {:.2f} s:", job.name, in_seconds(lived.jct()),
             static_cast<double>(simulated.jct_ms()) / 1000);
  for (const auto& held : lived.held)
    fmt::print(" {:.2f}={}", in_seconds(held.at - lived.submitted + job.submit_at), held.gpus);
  fmt::print(", simulated{}\n", sizes);
}

// The operator refuses those that need what no worker of ours does, and another one decides there.
bool is_refused(const std::string& name) {
  const sched::Descriptor& policy = sched::descriptor_of(name);
  return policy.shares != sched::Sharing::kNone || policy.shares_storage ||
         policy.shares_cpu_memory;
}

bool compare(const TruthTrace& trace, const Figures& figures, const std::string& name,
             bool shows_jobs) {
  if (is_refused(name)) {
    fmt::print("{:20} needs workers that share: the operator refuses it\n", name);
    return true;
  }
  const TruthPolicy policy{.name = name};
  const Played real = play(trace, policy);
  std::map<std::string, std::string> sizes;
  std::map<std::string, std::ptrdiff_t> held;
  const auto simulated =
      simulate(trace, policy, figures, [&](sched::TimeMs now, const sched::Plan& plan) {
        for (const auto& action : plan.actions) {
          held[action.job] += std::ssize(action.add) - std::ssize(action.remove);
          sizes[action.job] +=
              fmt::format(" {:.2f}={}", static_cast<double>(now) / 1000, held[action.job]);
        }
      });
  if (!real.broken.empty() || !simulated.ok()) {
    fmt::print("{}: {} {}\n", name, real.broken, simulated.ok() ? "" : simulated.error().what());
    return false;
  }
  if (shows_jobs)
    for (std::size_t i = 0; i < trace.jobs.size(); ++i)
      print_job(trace.jobs[i], real.jobs[i], simulated->jobs[i], sizes[trace.jobs[i].name]);
  const double operators = mean_jct_seconds(real);
  const double simulators = mean_jct_seconds(*simulated);
  fmt::print("{:20} operator {:8.2f} s  simulator {:8.2f} s  {:+6.2f} %  ({:.0f} virtual s)\n",
             name, operators, simulators, 100 * (simulators / operators - 1),
             in_seconds(real.length));
  std::fflush(stdout);
  return true;
}

int truth_main(int argc, char** argv) {
  const Options options = options_of(argc, argv);
  configure_log({.level = LogLevel::kError});
  const TruthTrace trace = draw_truth(options.draw);
  const Figures figures = calibrate(trace);
  print_figures(trace, figures);
  bool well = true;
  for (const std::string& policy : options.policies)
    well = compare(trace, figures, policy, options.shows_jobs) && well;
  return well ? 0 : 1;
}

}  // namespace
}  // namespace rubato::sim

int main(int argc, char** argv) { return rubato::sim::truth_main(argc, argv); }
