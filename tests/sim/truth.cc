#include "tests/sim/truth.h"

#include "operator/api/resources.h"
#include "scheduler/policy/registry.h"
#include "tests/sim/sim_host.h"
#include "tests/sim/whole_cluster.h"

#include <algorithm>
#include <cmath>

namespace rubato::sim {
namespace {

using json::Value;

constexpr Duration kLongest = 6h;
constexpr int kGrownPerRound = 100;  // jobs, as scheduler/sim has it

bool is_elastic(const std::string& policy) {
  const auto all = sched::all_policies();
  return std::ranges::find(all, policy, &sched::Descriptor::name)->elastic;
}

Scenario scenario_of(const TruthTrace& trace, const TruthPolicy& policy, std::uint64_t seed) {
  Scenario scenario;
  scenario.seed = seed * 2 + 1;  // odd: images are there (ModelNode::is_pulled)
  scenario.times = trace.times;
  for (int i = 0; i < trace.nodes; ++i)
    scenario.nodes.push_back(
        {.name = fmt::format("n{}", i), .gpu_type = kTruthType, .gpus = trace.gpus_per_node});
  for (const TruthJob& job : trace.jobs) {
    JobPlan plan;
    plan.shape = {.name = job.name, .micro_batches = job.micro_batches, .steps = job.steps};
    plan.min = is_elastic(policy.name) ? job.min : job.gpus;
    plan.max = is_elastic(policy.name) ? job.max : job.gpus;
    plan.submit_at = job.submit_at;
    scenario.jobs.push_back(std::move(plan));
  }
  return scenario;
}

void put_in_force(const TruthPolicy& policy, kube::MemoryServer& server) {
  Value parameters = Value::object();
  for (const auto& [name, value] : policy.parameters) parameters.set(name, value);
  const Value budget = Value::object(
      {{"perJobSeconds", policy.growth_pause_seconds}, {"jobsPerRound", kGrownPerRound}});
  const Value spec = Value::object({{"policy", policy.name},
                                    {"parameters", std::move(parameters)},
                                    {"roundSeconds", policy.round_seconds},
                                    {"rescaleBudget", budget}});
  const auto put = server.create(api::kSchedulingPolicy, "",
                                 Value::object({{"apiVersion", std::string(api::kApiVersion)},
                                                {"kind", "SchedulingPolicy"},
                                                {"metadata", Value::object({{"name", "default"}})},
                                                {"spec", spec}}));
  CHECK(put.ok());
}

// Looks at the jobs after each event.
class Onlooker {
 public:
  Onlooker(WholeCluster& cluster, const TruthTrace& trace) : cluster_(cluster), trace_(trace) {
    seen_.jobs.resize(trace.jobs.size());
    worlds_.resize(trace.jobs.size());
    for (std::size_t i = 0; i < trace.jobs.size(); ++i)
      seen_.jobs[i].submitted = cluster.now() + trace.jobs[i].submit_at;
  }

  bool all_are_over() {
    for (std::size_t i = 0; i < worlds_.size(); ++i)
      if (worlds_[i] != nullptr)
        while (seen_.jobs[i].steps.size() < worlds_[i]->highest_step())
          seen_.jobs[i].steps.push_back(cluster_.now());
    if (cluster_.witness().changes() == changes_) return over_ == worlds_.size();
    changes_ = cluster_.witness().changes();
    for (std::size_t i = 0; i < worlds_.size(); ++i) {
      Lived& job = seen_.jobs[i];
      if (job.finished != MonoTime{}) continue;
      const auto found = cluster_.witness().jobs().find("default/" + trace_.jobs[i].name);
      if (found == cluster_.witness().jobs().end()) continue;
      if (worlds_[i] != nullptr)
        look(found->second, job);
      else if (cluster_.now() > job.submitted)
        worlds_[i] = &cluster_.world(trace_.jobs[i].name);
    }
    return false;
  }
  Played& seen() { return seen_; }

 private:
  void hear(const Value& point, Lived& job) {
    const double speed = point["tokensPerSecond"].double_or(0) / tokens_a_round(job);
    const auto [at, is_first] = job.told.try_emplace(static_cast<int>(point["gpus"].int_or(0)),
                                                     Lived::Told{cluster_.now(), speed, speed});
    at->second.least = std::min(at->second.least, speed);
    at->second.most = std::max(at->second.most, speed);
  }
  double tokens_a_round(const Lived& job) const {
    const auto index = static_cast<std::size_t>(&job - seen_.jobs.data());
    return static_cast<double>(trace_.jobs[index].micro_batches) * kSequence;
  }

  void look(const SeenJob& now, Lived& job) {
    const int gpus = now.allocation ? static_cast<int>(now.allocation->gpus) : 0;
    if (gpus != (job.held.empty() ? 0 : job.held.back().gpus))
      job.held.push_back({cluster_.now(), gpus});
    for (const Value& point : now.object["status"]["performance"]["byType"].items())
      hear(point, job);
    if (now.object["status"]["state"].string_view_or("") != "Complete") return;
    job.finished = cluster_.now();
    ++over_;
  }

  WholeCluster& cluster_;
  const TruthTrace& trace_;
  Played seen_;
  std::vector<const World*> worlds_;  // of the jobs that are there
  std::size_t over_ = 0;
  std::uint64_t changes_ = ~std::uint64_t{0};
};

std::uint64_t rounds_of(const TruthJob& job, std::uint64_t steps) {
  return ReferenceRun({.micro_batches = job.micro_batches, .steps = job.steps}).rounds(steps);
}

double median(std::vector<double> values) {
  CHECK(!values.empty());
  std::ranges::sort(values);
  return values[values.size() / 2];
}

sched::TimeMs to_ms(double seconds) { return std::llround(seconds * 1000); }

// ---- Calibration

constexpr std::uint64_t kWarm = 5;  // steps that a speed is not measured in
constexpr std::uint64_t kMeasured = 45;
constexpr int kTries = 8;

class Calibration {
 public:
  explicit Calibration(const TruthTrace& trace) : trace_(trace) {}

  Figures run() {
    for (const TruthJob& job : trace_.jobs)
      for (int gpus = 1; gpus <= trace_.gpus(); ++gpus)
        if (!figures_.speeds[job.micro_batches].contains(gpus)) alone(job.micro_batches, gpus);
    for (int i = 0; i < kTries; ++i) {
      takes_turns(i);
      grows(i);
    }
    figures_.costs = {.name = "calibrated",
                      .source = "measured in the simulated operator",
                      .start_ms = to_ms(median(start_)),
                      .restart_ms = to_ms(median(restart_)),
                      .release_ms = to_ms(median(release_)),
                      .rescale_ms = to_ms(median(stall_)),
                      .join_ms = to_ms(median(join_))};
    figures_.observe_ms = to_ms(median(learned_));
    return figures_;
  }

 private:
  TruthTrace empty() const { return {trace_.nodes, trace_.gpus_per_node, trace_.times, {}}; }
  double round_seconds(const TruthJob& job, int gpus) const {
    return 1 / figures_.speeds.at(job.micro_batches).at(gpus);
  }
  static Played played(const TruthTrace& trace, const TruthPolicy& policy) {
    Played out = play(trace, policy);
    if (!out.broken.empty()) check_failed(__FILE__, __LINE__, out.broken);
    return out;
  }

  // A job alone: its speed, its start, its end.
  void alone(std::uint32_t micro_batches, int gpus) {
    TruthTrace trace = empty();
    trace.jobs = {{.name = "alone",
                   .submit_at = 10s + 37ms * gpus,
                   .micro_batches = micro_batches,
                   .steps = kMeasured,
                   .gpus = gpus}};
    const Lived job = played(trace, {.name = "fifo"}).jobs[0];
    const double took = seconds(job.steps.back() - job.steps[kWarm - 1]);
    const auto rounds =
        static_cast<double>(rounds_of(trace.jobs[0], kMeasured) - rounds_of(trace.jobs[0], kWarm));
    figures_.speeds[micro_batches][gpus] = rounds / took;
    start_.push_back(start_of(trace.jobs[0], job));
    for (const auto& [size, told] : job.told)
      learned_.push_back(seconds(told.at - job.held[0].at) - start_.back());
  }

  // From its submission, less what it trained for.
  double start_of(const TruthJob& plan, const Lived& job) const {
    return seconds(job.jct()) -
           static_cast<double>(rounds_of(plan, plan.steps)) * round_seconds(plan, job.held[0].gpus);
  }

  // b preempts a, which comes again when b is over.
  void takes_turns(int number) {
    TruthTrace trace = empty();
    const Duration apart = 53ms * number;
    trace.jobs = {{.name = "a", .submit_at = 10s, .steps = 300, .gpus = trace_.gpus()},
                  {.name = "b", .submit_at = 30s + apart, .steps = 30, .gpus = trace_.gpus()}};
    const Played both = played(trace, {.name = "las", .parameters = {{"quantumSeconds", 10}}});
    const Lived& a = both.jobs[0];
    const Lived& b = both.jobs[1];
    CHECK(a.held.size() >= 3 && a.held[1].gpus == 0);
    release_.push_back(seconds(b.held[0].at - a.held[1].at));
    release_.push_back(seconds(a.held[2].at - b.finished));
    const auto next = std::ranges::upper_bound(a.steps, a.held[2].at);
    restart_.push_back(seconds(*next - a.held[2].at) - round_seconds(trace.jobs[0], trace_.gpus()));
  }

  // a has half of the cluster, and grows when b is over. The time that the change cost it is what
  // it ends later than at the new speed from the instant at which newcomers joined.
  void grows(int number) {
    TruthTrace trace = empty();
    const int half = trace_.gpus() / 2;
    const Duration apart = 53ms * number;
    trace.jobs = {
        {.name = "b", .submit_at = 10s, .steps = 60, .gpus = half, .min = half, .max = half},
        {.name = "a",
         .submit_at = 10500ms + apart,
         .steps = 250,
         .gpus = half,
         .min = half,
         .max = trace_.gpus()}};
    const Lived a = played(trace, {.name = "marginalThroughput"}).jobs[1];
    CHECK(a.held.size() >= 2 && a.held[1].gpus == trace_.gpus());
    const double slow = round_seconds(trace.jobs[1], half);
    const double fast = round_seconds(trace.jobs[1], trace_.gpus());
    // The first two steps in a row at the new speed, neither done again.
    const auto grown = std::ranges::upper_bound(a.steps, a.held[1].at);
    auto step = static_cast<std::size_t>(grown - a.steps.begin());
    const auto length = [&](std::size_t s) { return seconds(a.steps[s] - a.steps[s - 1]); };
    const std::size_t last = step - 1;  // before the allocation
    while (length(step) > (slow + fast) / 2 || length(step + 1) > (slow + fast) / 2) ++step;
    const double joined = seconds(a.steps[step - 1] - a.held[1].at);
    const auto done =
        static_cast<double>(rounds_of(trace.jobs[1], step) - rounds_of(trace.jobs[1], last + 1));
    join_.push_back(joined);
    stall_.push_back(std::max(0.0, seconds(a.steps[step - 1] - a.steps[last]) - done * slow));
  }

  const TruthTrace& trace_;
  Figures figures_;
  std::vector<double> start_, restart_, release_, join_, stall_, learned_;
};

}  // namespace

Played play(const TruthTrace& trace, const TruthPolicy& policy, std::uint64_t seed) {
  WholeCluster cluster(scenario_of(trace, policy, seed));
  const MonoTime began = cluster.now();
  Onlooker onlooker(cluster, trace);
  cluster.start();
  put_in_force(policy, cluster.server());
  const bool over = cluster.run_until([&] { return onlooker.all_are_over(); }, kLongest);
  Played played = std::move(onlooker.seen());
  played.length = cluster.now() - began;
  if (!over) played.broken = cluster.violation().value_or("not all jobs end");
  return played;
}

TruthTrace draw_truth(const DrawTruth& wanted) {
  Rng rng(wanted.seed);
  TruthTrace trace;
  const double micro = seconds(trace.times.micro);
  const double apart = wanted.mean_gpu_seconds / wanted.load / trace.gpus();
  double at = 10, last = 0;
  for (int i = 0; i < wanted.jobs; ++i) {
    TruthJob job{.name = fmt::format("job-{:03}", i)};
    // Each in a second of its own: the API server tells no more of when objects were made, and who
    // of two in one second comes first is chance (their uids).
    at = std::max(std::round(at), last + 1);
    last = at;
    job.submit_at = std::chrono::milliseconds(to_ms(at));
    job.micro_batches = rng.chance(0.5) ? 24 : 12;
    job.gpus = 1 << rng.below(3);
    job.min = std::max(1, job.gpus / 2);
    job.max = 2 * job.gpus;
    const double work = wanted.mean_gpu_seconds * (0.2 + 1.6 * rng.unit());
    job.steps = static_cast<std::uint64_t>(std::max(work / (micro * job.micro_batches), 20.0));
    trace.jobs.push_back(std::move(job));
    at += -apart * std::log(1 - rng.unit());
  }
  return trace;
}

double offered_load(const TruthTrace& trace) {
  double work = 0;
  for (const TruthJob& job : trace.jobs)
    work += static_cast<double>(rounds_of(job, job.steps)) * job.micro_batches *
            seconds(trace.times.micro);
  const Duration span = trace.jobs.back().submit_at - trace.jobs.front().submit_at;
  return work / seconds(span) / trace.gpus();
}

double mean_jct_seconds(const Played& played) {
  double sum = 0;
  for (const Lived& job : played.jobs) sum += seconds(job.jct());
  return sum / static_cast<double>(played.jobs.size());
}

double mean_jct_seconds(const sched::sim::SimResult& result) {
  double sum = 0;
  for (const auto& job : result.jobs) sum += static_cast<double>(job.jct_ms()) / 1000;
  return sum / static_cast<double>(result.jobs.size());
}

Figures calibrate(const TruthTrace& trace) { return Calibration(trace).run(); }

Result<sched::sim::SimResult> simulate(
    const TruthTrace& trace, const TruthPolicy& policy, const Figures& figures,
    const std::function<void(sched::TimeMs, const sched::Plan&)>& on_plan) {
  TRY(const auto scheduler, sched::sim::scheduler_named(policy.name, policy.parameters));
  std::vector<sched::sim::TraceJob> jobs;
  for (const TruthJob& job : trace.jobs) {
    sched::sim::TraceJob told;
    told.id = job.name;
    told.submit_ms = std::chrono::duration_cast<std::chrono::milliseconds>(job.submit_at).count();
    told.request = job.gpus;
    told.min = job.min;
    told.max = job.max;
    told.profile = std::to_string(job.micro_batches);
    told.work = static_cast<double>(rounds_of(job, job.steps));
    for (const auto& [gpus, speed] : figures.speeds.at(job.micro_batches))
      told.speed.add(kTruthType, {gpus, speed});
    jobs.push_back(std::move(told));
  }
  const sched::sim::SimCluster cluster{
      {{.nodes = trace.nodes, .gpus = trace.gpus_per_node, .gpu_type = kTruthType}}};
  return sched::sim::simulate(cluster, std::move(jobs), *scheduler,
                              {.costs = figures.costs,
                               .round_ms = policy.round_seconds * 1000,
                               .observe_ms = figures.observe_ms,
                               .growth_pause_ms = policy.growth_pause_seconds * 1000,
                               .oracle = sched::sim::Oracle::kObserved,
                               .on_plan = on_plan});
}

}  // namespace rubato::sim
