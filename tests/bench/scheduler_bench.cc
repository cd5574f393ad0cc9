// How long one decision takes, from a ClusterState to placed actions, and how far its plan is from
// the best, by the size of the cluster. One thread.
//
//   build/bench/bin/scheduler_bench [--rounds N] [--policy NAME]
//
// Made clusters (seed 1): nodes of 8 GPUs of 1, 3 or 6 types; jobs of 1 to 32 GPUs at least, four
// times as many at most, measured at three sizes on one or two types. `cold`: nothing runs yet.
// `warm`: the plan before was applied, 1 % of the jobs have ended, and as many have come. The gap
// (scheduler/certificate) is that of the last warm state once nothing is left to do.
#include "common/clock.h"
#include "scheduler/certificate/certificate.h"
#include "scheduler/policy/registry.h"

#include <algorithm>
#include <random>

#include <CLI/CLI.hpp>
#include <fmt/core.h>

namespace rubato::sched {
namespace {

struct Size {
  const char* name;
  std::int64_t nodes;
  std::int64_t types;
  std::int64_t jobs;
};

class Made {
 public:
  explicit Made(const Size& size) : size_(size) {
    for (std::int64_t n = 0; n < size.nodes; ++n)
      state_.nodes.push_back({.id = fmt::format("n{:05}", n),
                              .gpu_type = fmt::format("T{}", n * size.types / size.nodes),
                              .gpus_total = 8,
                              .free = {8, 64'000, Bytes{1} << 39U}});
    state_.queues["default"] = {.name = "default"};
    while (std::ssize(state_.jobs) < size.jobs) state_.jobs.push_back(new_job());
  }

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

  Job new_job() {
    Job job;
    job.id = job.name = fmt::format("job-{:06}", next_job_++);
    job.queue = "default";
    job.queued_at = static_cast<double>(state_.now_ms) / 1000;
    job.min = Gpus{1} << static_cast<unsigned>(std::min(number(0, 5), number(0, 5)));
    job.max = std::min<Gpus>(job.min * 4, 64);
    job.per_pod = {1, 1000, Bytes{1} << 30U};
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
  std::mt19937_64 random_{1};
  ClusterState state_;
  std::int64_t next_ = 0;
  std::int64_t next_job_ = 0;
};

void measure(const Size& size, const PolicyConfig& config, int rounds) {
  const auto policy = make_policy(config.policy, config.parameters).value();
  const SystemClock clock;
  Made made(size);
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
  // Nothing happens any more: what was given back is given out.
  for (int i = 0; i < 10; ++i) {
    const Plan plan = make_plan(made.state(), *policy, config);
    if (plan.actions.empty()) break;
    made.apply(plan);
  }
  const MonoTime began = clock.now();
  const auto certificate = certify(made.state(), config, {});
  const double seconds = std::chrono::duration<double>(clock.now() - began).count();
  fmt::print(
      "{}: {} GPUs of {} types, {} jobs: cold {:.1f} ms; warm p50 {:.1f} ms, p99 {:.1f} ms, worst "
      "{:.1f} ms",
      size.name, size.nodes * 8, size.types, size.jobs, cold, at(0.5), at(0.99), ms.back());
  if (certificate)
    fmt::print("; gap {:.2f} %, certified in {:.0f} ms", 100 * certificate->gap(), 1000 * seconds);
  fmt::print("\n");
  std::fflush(stdout);
}

}  // namespace
}  // namespace rubato::sched

int main(int argc, char** argv) {
  CLI::App app("How long one decision of the scheduler takes, and how good it is");
  int rounds = 100;
  int largest = 3;
  rubato::sched::PolicyConfig config{.policy = "rubato"};
  app.add_option("--rounds", rounds, "warm rounds of each size")->check(CLI::Range(1, 100000));
  app.add_option("--sizes", largest, "how many of the three sizes")->check(CLI::Range(1, 3));
  app.add_option("--policy", config.policy, "its name in docs/policies.md");
  CLI11_PARSE(app, argc, argv);
  constexpr rubato::sched::Size kSizes[] = {
      {"small", 8, 1, 45}, {"medium", 256, 3, 1440}, {"large", 12'500, 6, 10'000}};
  for (int i = 0; i < largest; ++i)
    rubato::sched::measure(kSizes[i], config, i == 2 ? std::min(rounds, 20) : rounds);
  return 0;
}
