#include "tools/rubatoctl/simulate/command.h"

#include "common/command.h"

#include <cstdio>

#include <CLI/CLI.hpp>
#include <fmt/core.h>

namespace rubato::ctl {
namespace {

const char* const kSimulate =
    "What policies would make of a trace of jobs: completion times, fairness, GPU hours\n\n"
    "Plays the trace once for each policy and cost model, without a cluster, and prints a line for "
    "each.\nThe format of a trace is known by its header: our own CSV (docs/simulate.md), Philly, "
    "ITP, Pollux,\nRubick and Gavel. Without --trace jobs are made: Poisson arrivals from "
    "--seed.\n\n"
    "  rubatoctl simulate --jobs 200 --per-hour 20 --elastic 4\n"
    "  rubatoctl simulate --trace jobs.csv --nodes 16x4:T4,2x8:A100 --out result\n"
    "  rubatoctl simulate --trace jobs.csv --nodes 16x4:T4 --fail mtbf=200,repair=30\n"
    "  rubatoctl simulate --trace workload-1.csv --profiles traces --compare fifo,srtf,tiresias\n"
    "  rubatoctl simulate --throughputs simulation_throughputs.json --round 360 \\\n"
    "    --nodes 9x4:v100,9x4:p100,9x4:k80 --compare rubato,gavel,gavel:objective=1\n\n"
    "Policies:\n";

// What nodes have beside GPUs.
void add_node_options(CLI::App& sub, SimulateOptions& to) {
  sub.add_option("--cache-gib", to.cache_gib, "cache of all nodes together, for --remote-gib-s")
      ->check(number_from(0, 1e9));
  sub.add_option("--remote-gib-s", to.remote_gib_s,
                 "GiB a second that all jobs together can read of data sets beside the cache; 0: "
                 "they wait for no data")
      ->check(number_from(0, 1e9));
  CLI::Option* const node_gib =
      sub.add_option("--node-gib", to.node_gib, "memory of each node, for --node-cpus")
          ->check(number_from(0.001, 1e6));
  sub.add_option("--node-cpus", to.node_cpus,
                 "CPUs of each node, for jobs that say how sensitive they are; 0: these have all "
                 "that they can use")
      ->check(number_from(0, 1e6))
      ->needs(node_gib);
}

}  // namespace

CLI::App* add_simulate_command(CLI::App& app, SimulateChoice& choice) {
  SimulateOptions& to = choice.options;
  CLI::App* sub = app.add_subcommand("simulate", kSimulate + policies_text());
  CLI::Option* const trace =
      sub->add_option("--trace", to.trace, "file of jobs, or -; without it jobs are made");
  sub->add_option("--profiles", to.profiles,
                  "folder of measured applications, for Pollux and Rubick workloads");
  sub->add_option("--throughputs", to.throughputs,
                  "Gavel's table of speeds by model and GPU type, for its traces or made jobs");
  sub->add_option("--nodes", to.nodes, "nodes x GPUs : type, separated by commas")
      ->capture_default_str();
  sub->add_option("--domains", to.domains,
                  "topology levels, the widest first, with the nodes of a domain: zone=16,rack=4");
  sub->add_option("--distance", to.distances,
                  "how many times slower a job is that spans nodes, or domains of a level: "
                  "node=1.1,rack=1.5");
  sub->add_option("--fail", to.fail,
                  "nodes fail, the same ones at the same times under every policy: "
                  "mtbf=HOURS[,repair=MINUTES][,checkpoint=MINUTES][,seed=NUMBER]; of each node on "
                  "average, until it is back (60), between two checkpoints of a job (30), of the "
                  "draw (1)");
  add_node_options(*sub, to);
  sub->add_option("--policy", choice.policy, "the first line of the table");
  sub->add_option("--compare", choice.compare,
                  "the other ones, separated by commas; parameters of one: gavel:objective=1")
      ->delimiter(',');
  sub->add_option("--mode", to.mode,
                  "pollux-osdi21: Pollux workloads as its own simulator plays them: batches adapt, "
                  "rounds at whole minutes, 30 s a change")
      ->check(CLI::IsMember({kPolluxMode}));
  sub->add_option(
         "--cost", to.cost,
         "restart: each change stops a job for 30 s; in-place: Rubato's, measured; rubick: 260 "
         "s; both: the first two")
      ->check(CLI::IsMember({"restart", "in-place", "rubick", "both"}))
      ->capture_default_str();
  sub->add_option("--out", to.out, "folder for report.html, summary.json, jobs-*.csv");
  sub->add_option("--queues", to.queues,
                  "file with the list of queues as in a snapshot: quotas, cells, borrowing");
  sub->add_option("--draw-queues", to.draw_queues,
                  "seed: each job is put into one of --queues, by their weights; 0: its own")
      ->check(CLI::Range(0, 1 << 30));
  sub->add_option("--only-queue", to.only_queue, "play the jobs of this queue and no others");
  sub->add_flag("--one-node", to.one_node, "jobs that fit on one node stay on one");
  sub->add_option("--first", to.first, "only so many jobs of the trace; 0: all")
      ->check(CLI::Range(0, 1 << 30));
  sub->add_option("--round", to.round_s, "seconds between rounds, at most")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();
  sub->add_flag("--no-oracle", to.no_oracle,
                "tell no policy durations or remaining work, whatever it asks for");
  sub->add_flag("--profiled", to.profiled,
                "speeds on all sizes are known when a job comes, not only once it ran there");
  sub->add_option("--growth-pause", to.growth_pause_s,
                  "seconds between two growths of one job (rescaleBudget.perJobSeconds)")
      ->check(CLI::Range(0, 86400))
      ->capture_default_str();
  sub->add_option("--jobs", to.jobs, "how many are made")
      ->check(CLI::Range(1, 10'000'000))
      ->excludes(trace)
      ->capture_default_str();
  sub->add_option("--per-hour", to.per_hour, "how many of them arrive in an hour")
      ->check(number_from(0.001, 1e6))
      ->excludes(trace)
      ->capture_default_str();
  sub->add_option("--seed", to.seed, "of the made trace")
      ->check(number_from(-9e18, 9e18))
      ->excludes(trace)
      ->capture_default_str();
  sub->add_option("--elastic", to.elastic,
                  "made jobs may hold up to so many times their request; 1: not elastic")
      ->check(CLI::Range(1, 64))
      ->excludes(trace)
      ->capture_default_str();
  return sub;
}

Status run_simulate(FileSystem& files, const SimulateChoice& choice) {
  SimulateOptions options = choice.options;
  if (!choice.policy.empty() || !choice.compare.empty()) {
    TRY(options.policies, chosen_policies(choice.policy, choice.compare));
  }
  const SystemClock clock;
  TRY(const std::string text, simulate(files, clock, options, [](const std::string& line) {
        fmt::print(stderr, "{}\n", line);
      }));
  std::fputs(text.c_str(), stdout);
  return ok();
}

}  // namespace rubato::ctl
