// How long one decision takes, from a ClusterState to placed actions, and how far its plan is from
// the best, by the size of the cluster and by what is asked of it. One thread.
//
//   build/bench/bin/scheduler_bench [--rounds N] [--policy NAME] [--sizes N] [--case NAME]
//   build/bench/bin/scheduler_bench --nodes N --types N --jobs N [--rounds N] [--case NAME]
//
// The second form has one size of its own, and tells the most memory that the process had, too.
//
// Made clusters (seed 1): nodes of 8 GPUs of 1, 3 or 6 types; jobs of 1 to 32 GPUs at least, four
// times as many at most, measured at three sizes on one or two types; each case changes that
// (kCases). `cold`: nothing runs yet. `warm`: the plan before was applied, 1 % of the jobs have
// ended, and as many have come. The gap (scheduler/certificate) is that of the last warm state once
// nothing is left to do; with one type and no limits beside it what the best plan is worth,
// exactly.
#include "common/clock.h"
#include "scheduler/certificate/certificate.h"
#include "scheduler/policy/registry.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/core.h>
#include <sys/resource.h>

namespace rubato::sched {
namespace {

struct Size {
  const char* name;
  std::int64_t nodes;
  std::int64_t types;
  std::int64_t jobs;
};

struct Case {
  const char* name;
  // Sums over the jobs, of the GPUs that there are; 0: as drawn. No job has less than one GPU.
  double min_load = 0;
  double max_load = 0;
  bool identical = false;
  std::int64_t gangs = 0;    // jobs that need a twentieth of all GPUs each
  bool failed = false;       // a twentieth of the GPUs, each inside another node
  std::int64_t queues = 0;   // each of which may have half of what its jobs want at least
  std::int64_t parents = 0;  // of these queues, each with as many; and one of them all
  bool weights = false;      // of these queues, from 1 to 5, which count; and nothing is limited
  bool may_preempt = true;   // what each job may do
};

constexpr Case kCases[] = {
    {.name = "plain"},
    {.name = "max1", .min_load = 0.5, .max_load = 1},
    {.name = "max3", .min_load = 0.5, .max_load = 3},
    {.name = "max10", .min_load = 0.5, .max_load = 10},
    {.name = "min0.5", .min_load = 0.5, .max_load = 2},
    {.name = "min1", .min_load = 1, .max_load = 2},
    {.name = "min1.5", .min_load = 1.5, .max_load = 3},
    {.name = "identical", .min_load = 1, .max_load = 4, .identical = true},
    {.name = "gangs", .gangs = 10},
    {.name = "failed", .failed = true},
    {.name = "queues", .min_load = 1, .max_load = 4, .queues = 100},
    {.name = "tree", .min_load = 1, .max_load = 4, .queues = 90, .parents = 9},
    {.name = "weights",
     .min_load = 1.5,
     .max_load = 4,
     .queues = 90,
     .parents = 9,
     .weights = true},
    {.name = "never", .min_load = 1.5, .max_load = 3, .may_preempt = false},
};

// Of two to the smaller of two draws from 0 to 5, about.
constexpr double kMeanMin = 5.0;

class Made {
 public:
  Made(const Size& size, const Case& of) : size_(size), case_(of) {
    for (std::int64_t n = 0; n < size.nodes; ++n) {
      const Gpus works = of.failed && n % 5 < 2 ? 7 : 8;
      state_.nodes.push_back({.id = fmt::format("n{:05}", n),
                              .gpu_type = fmt::format("T{}", n * size.types / size.nodes),
                              .gpus_total = 8,
                              .free = {works, 64'000, Bytes{1} << 39U}});
    }
    state_.queues["default"] = {.name = "default"};
    while (std::ssize(state_.jobs) < size.jobs) state_.jobs.push_back(new_job());
    for (std::int64_t i = 0; i < of.gangs; ++i) {
      Job& job = state_.jobs[static_cast<std::size_t>(i)];
      job.min = job.max = std::max<Gpus>(gpus() / 20, 1);
      job.remaining_ms = 36'000'000;
    }
    limit_queues();
  }

  Gpus gpus() const { return size_.nodes * 8; }
  double min_load() const { return sum_of(&Job::min) / static_cast<double>(gpus()); }
  double max_load() const { return sum_of(&Job::max) / static_cast<double>(gpus()); }

  const ClusterState& state() const { return state_; }

  void apply(const Plan& plan) {
    std::map<JobId, Job*> jobs;
    for (Job& job : state_.jobs) jobs[job.id] = &job;
    std::map<NodeId, Node*> nodes;
    for (Node& node : state_.nodes) nodes[node.id] = &node;
    for (const Action& action : plan.actions) {
      Job& job = *jobs.at(action.job);
      std::erase_if(job.held, [&](const Held& pod) {
        if (std::ranges::count(action.remove, pod.ordinal) == 0) return false;
        nodes.at(pod.node)->free += job.per_pod;
        return true;
      });
      for (const Placement& placement : action.add) {
        job.held.push_back({.ordinal = next_++,
                            .node = placement.node,
                            .gpu_type = placement.gpu_type,
                            .gpus = placement.gpus});
        nodes.at(placement.node)->free -= job.per_pod;
      }
      job.started = !job.held.empty();
      job.allocated_ms = job.started ? state_.now_ms : -1;
    }
  }

  // A minute passes: 1 % of the jobs end, and as many come.
  void pass() {
    state_.now_ms += 60'000;
    std::map<NodeId, Node*> nodes;
    for (Node& node : state_.nodes) nodes[node.id] = &node;
    for (Job& job : state_.jobs) {
      for (const Held& pod : job.held) job.attained_gpu_ms += pod.gpus * 60'000;
      if (number(0, 99) > 0) continue;
      for (const Held& pod : job.held) nodes.at(pod.node)->free += job.per_pod;
      job = new_job();
    }
  }

 private:
  std::int64_t number(std::int64_t from, std::int64_t to) {
    return std::uniform_int_distribution<std::int64_t>(from, to)(random_);
  }

  double sum_of(Gpus Job::* size) const {
    Gpus sum = 0;
    for (const Job& job : state_.jobs) sum += job.*size;
    return static_cast<double>(sum);
  }

  void limit_queues() {
    std::map<std::string, Gpus> wanted;
    for (const Job& job : state_.jobs) wanted[job.queue] += job.min;
    for (std::int64_t q = 0; q < case_.queues; ++q) {
      const std::string name = fmt::format("q{}", q);
      state_.queues[name] = {.name = name};
      state_.queues[name].quotas["*"].limit = std::max<Gpus>(wanted[name] / 2, 1);
    }
    if (case_.parents > 0) put_under_parents();
    for (auto& [name, queue] : state_.queues) {
      if (!case_.weights) break;
      queue.quotas.clear();
      queue.weight = 1 + static_cast<double>(name.back() % 5);
    }
  }

  // Each may hold nine tenths of what its parts may.
  void put_under_parents() {
    const auto add_part = [this](const std::string& whole, const std::string& part) {
      state_.queues[whole].name = state_.queues[part].parent = whole;
      Quota& quota = state_.queues[whole].quotas["*"];
      quota.limit = quota.limit.value_or(0) + *state_.queues[part].quotas["*"].limit * 9 / 10;
    };
    for (std::int64_t q = 0; q < case_.queues; ++q)
      add_part(fmt::format("p{}", q % case_.parents), fmt::format("q{}", q));
    for (std::int64_t p = 0; p < case_.parents; ++p) add_part("all", fmt::format("p{}", p));
  }

  void draw_sizes(Job& job) {
    if (case_.identical) random_.seed(1);
    job.min = Gpus{1} << static_cast<unsigned>(std::min(number(0, 5), number(0, 5)));
    job.max = std::min<Gpus>(job.min * 4, 64);
    if (case_.min_load == 0) return;
    const double per_job = static_cast<double>(gpus()) / static_cast<double>(size_.jobs);
    const double part = case_.identical ? 1 : static_cast<double>(job.min) / kMeanMin;
    job.min = std::max<Gpus>(std::llround(part * case_.min_load * per_job), 1);
    job.max = std::max<Gpus>(std::llround(part * case_.max_load * per_job), job.min);
  }

  Job new_job() {
    Job job;
    job.id = job.name = fmt::format("job-{:06}", next_job_);
    job.queue = case_.queues > 0 ? fmt::format("q{}", next_job_ % case_.queues) : "default";
    ++next_job_;
    job.queued_at = static_cast<double>(state_.now_ms) / 1000;
    draw_sizes(job);
    job.per_pod = {1, 1000, Bytes{1} << 30U};
    job.may_preempt = case_.may_preempt;
    job.remaining_ms = number(1, 600) * number(1, 600) * 100;
    for (int i = 0; i < 2; ++i) {
      const std::string type = fmt::format("T{}", number(0, size_.types - 1));
      const double one = static_cast<double>(number(500, 2000));
      const double serial = static_cast<double>(number(1, 20)) / 100;
      for (const Gpus n : {job.min, job.min * 2, job.max})
        job.measured.push_back({type, n, one / (serial + (1 - serial) / static_cast<double>(n))});
      if (size_.types == 1) break;
    }
    return job;
  }

  Size size_;
  Case case_;
  std::mt19937_64 random_{1};
  ClusterState state_;
  std::int64_t next_ = 0;
  std::int64_t next_job_ = 0;
};

// What the best sizes of jobs of one type are worth together: a knapsack, exact.
std::int64_t best_of_one_type(const ValueTable& values, Gpus gpus) {
  std::vector<std::int64_t> best(static_cast<std::size_t>(gpus) + 1, 0);  // by GPUs
  for (JobIndex j; j < values.end_key(); ++j) {
    if (values[j].types.empty()) continue;
    const JobValues::List& list = values[j].of(values[j].types.front());
    for (Gpus room = gpus; room > 0; --room)
      for (const auto& [size, value] : list)
        if (size <= room)
          best[static_cast<std::size_t>(room)] =
              std::max(best[static_cast<std::size_t>(room)],
                       best[static_cast<std::size_t>(room - size)] + value);
  }
  return best.back();
}

// Once nothing is left to do: what was given back is given out.
std::string how_good(Made& made, const Policy& policy, const PolicyConfig& config) {
  for (int i = 0; i < 10; ++i) {
    const Plan plan = make_plan(made.state(), policy, config);
    if (plan.actions.empty()) break;
    made.apply(plan);
  }
  const SystemClock clock;
  const MonoTime began = clock.now();
  const auto certificate = certify(made.state(), config, {});
  const double seconds = std::chrono::duration<double>(clock.now() - began).count();
  if (!certificate) return "";
  std::string text = fmt::format("; gap {:.2f} %, certified in {:.0f} ms", 100 * certificate->gap(),
                                 1000 * seconds);
  const Problem problem(made.state());
  if (problem.count_types() > 1 || made.state().queues.size() > 1) return text;
  const std::int64_t best =
      best_of_one_type(*policy.values(problem), capacity_of(made.state()).begin()->second);
  return text +
         fmt::format("; {:.2f} % of the best plan",
                     100 * static_cast<double>(certificate->value) / static_cast<double>(best));
}

void measure(const Size& size, const Case& of, PolicyConfig config, int rounds) {
  config.queue_weights = of.weights;
  const auto policy = make_policy(config.policy, config.parameters).value();
  const SystemClock clock;
  Made made(size, of);
  const double min_load = made.min_load(), max_load = made.max_load();
  std::vector<double> ms;
  for (int round = 0; round <= rounds; ++round) {
    const MonoTime began = clock.now();
    const Plan plan = make_plan(made.state(), *policy, config);
    ms.push_back(std::chrono::duration<double, std::milli>(clock.now() - began).count());
    made.apply(plan);
    if (round < rounds) made.pass();
  }
  const double cold = ms.front();
  ms.erase(ms.begin());
  std::ranges::sort(ms);
  const auto at = [&](double part) {
    return ms[static_cast<std::size_t>(part * static_cast<double>(ms.size() - 1))];
  };
  fmt::print(
      "{} {}: {} GPUs of {} types, {} jobs that want {:.1f} to {:.1f} times as many: cold {:.1f} "
      "ms; warm p50 {:.1f} ms, p99 {:.1f} ms, worst {:.1f} ms{}\n",
      size.name, of.name, made.gpus(), size.types, size.jobs, min_load, max_load, cold, at(0.5),
      at(0.99), ms.back(), how_good(made, *policy, config));
  std::fflush(stdout);
}

}  // namespace
}  // namespace rubato::sched

namespace {

// Of this process so far.
double most_memory_mib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("How long one decision of the scheduler takes, and how good it is");
  int rounds = 100;
  int largest = 3;
  std::string only;
  rubato::sched::Size own{.name = "own", .nodes = 0, .types = 1, .jobs = 1};
  rubato::sched::PolicyConfig config{.policy = "rubato"};
  app.add_option("--rounds", rounds, "warm rounds of each size")->check(CLI::Range(1, 100000));
  auto* sizes = app.add_option("--sizes", largest, "how many of the three sizes");
  sizes->check(CLI::Range(1, 3));
  app.add_option("--policy", config.policy, "its name in docs/policies.md");
  app.add_option("--case", only, "one of the cases alone");
  auto* nodes = app.add_option("--nodes", own.nodes, "one size instead: nodes of 8 GPUs each");
  auto* types = app.add_option("--types", own.types, "… of so many types")->needs(nodes);
  auto* jobs = app.add_option("--jobs", own.jobs, "… for so many jobs")->needs(types);
  nodes->check(CLI::Range(1, 100'000))->needs(jobs)->excludes(sizes);
  types->check(CLI::Range(1, 64));
  jobs->check(CLI::Range(1, 1'000'000));
  CLI11_PARSE(app, argc, argv);
  const auto measure = [&](const rubato::sched::Size& size, int rounds_of_it) {
    for (const rubato::sched::Case& of : rubato::sched::kCases)
      if (only.empty() || only == of.name) rubato::sched::measure(size, of, config, rounds_of_it);
  };
  constexpr rubato::sched::Size kSizes[] = {
      {"small", 8, 1, 45}, {"medium", 256, 3, 1440}, {"large", 12'500, 6, 10'000}};
  if (own.nodes > 0) {
    measure(own, rounds);
    fmt::print("memory: {:.1f} MiB at most\n", most_memory_mib());
    return 0;
  }
  for (int i = 0; i < largest; ++i) measure(kSizes[i], i == 2 ? std::min(rounds, 20) : rounds);
  return 0;
}
