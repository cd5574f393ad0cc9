// The clockwork: instants, events, rounds. engine_jobs.cc has what happens to a job.
#include "scheduler/sim/engine.h"

#include "common/check.h"
#include "common/words.h"
#include "scheduler/model/quota.h"
#include "scheduler/placement/cells.h"
#include "scheduler/sim/results.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

namespace rubato::sched::sim {
namespace {

constexpr TimeMs kNever = std::numeric_limits<TimeMs>::max();
constexpr int kRoundsPerInstant = 1000;
constexpr std::int64_t kRoundsPerReport = 16;
constexpr std::int64_t kRoundsWithoutProgress = 100'000;
constexpr std::int64_t kQuantaPerUnit = 1'000'000'000;

// Units/s where it is slowest, of the types and sizes that it may have. Between two points of a
// curve no size is slower than both.
double slowest(const TraceJob& job, const std::vector<std::string>& types) {
  double least = job.request_speed.value_or(std::numeric_limits<double>::infinity());
  for (const std::string& type : types) {
    if (!job.may_use(type)) continue;
    least = std::min({least, job.speed.at(type, job.min), job.speed.at(type, job.max)});
    for (const SpeedPoint& point : job.speed.points_on(type))
      if (point.gpus > job.min && point.gpus < job.max)
        least = std::min(least, point.units_per_second);
  }
  return least;
}

double quanta_per_unit(const TraceJob& job, const std::vector<std::string>& types) {
  double scale = static_cast<double>(kQuantaPerUnit);
  while (job.work * scale > kQuantaMost && scale > 1) scale /= 10;
  const double least = slowest(job, types);
  while (least * scale / 1000 < kRateLeast && job.work * scale * 10 <= kQuantaMost) scale *= 10;
  return scale;
}

}  // namespace

Result<SimResult> simulate(const SimCluster& cluster, std::vector<TraceJob> jobs,
                           Scheduler& scheduler, const SimOptions& options) {
  return Engine(cluster, std::move(jobs), scheduler, options).run();
}

Engine::Engine(const SimCluster& cluster, std::vector<TraceJob> jobs, Scheduler& scheduler,
               const SimOptions& options)
    : cluster_(cluster),
      trace_(std::move(jobs)),
      scheduler_(scheduler),
      options_(options),
      about_(scheduler.descriptor()) {
  sort_jobs(trace_);
  for (const auto& [type, gpus] : cluster_.gpus_by_type()) types_.push_back(type);
  for (const NodeGroup& group : cluster_.groups) {
    for (std::int64_t i = 0; i < group.nodes; ++i) {
      // Names of one length, so that their order is that of the numbers.
      const NodeId id = fmt::format("n{:06}", state_.nodes.size());
      node_of_[id] = state_.nodes.size();
      type_of_node_.push_back(static_cast<std::size_t>(
          std::lower_bound(types_.begin(), types_.end(), group.gpu_type) - types_.begin()));
      state_.nodes.push_back({.id = id,
                              .gpu_type = group.gpu_type,
                              .gpus_total = group.gpus,
                              .free = {group.gpus},
                              .total = options.of_node});
    }
  }
  state_.queues = options.queues;
  state_.storage = options.storage;
  for (const TraceJob& job : trace_) state_.queues[job.queue].name = job.queue;
  choose_batches();
  put_into_domains();
  find_mean_traffic();
  begin_failures();
}

Status Engine::check_jobs() const {
  std::unordered_map<JobId, bool> known;
  double gpu_seconds = 0;
  for (const TraceJob& job : trace_) {
    const auto bad = [&](const std::string& why) {
      const std::string where = job.line > 0 ? fmt::format("line {}: ", job.line) : "";
      return Error(Code::kInvalid, fmt::format("{}job {}: {}", where, readable(job.id), why));
    };
    if (!known.emplace(job.id, true).second) return bad("there are two of this id");
    if (job.submit_ms < 0) return bad("is submitted before the trace begins");
    if (!(job.work > 0) || job.work > kQuantaMost) return bad("work must be above 0, below 4e18");
    if (job.min < 1 || job.max < job.min || job.request < job.min || job.request > job.max)
      return bad(fmt::format("sizes must be 1 <= min <= request <= max, and are {}, {}, {}",
                             job.min, job.request, job.max));
    if (job.training && !options_.in_lockstep) return bad("adapts its batch: needs lockstep");
    if (job.request_speed && !(*job.request_speed > 0)) return bad("its speed must be above 0");
    const double seconds = job.work / slowest(job, types_);
    if (!(seconds <= kJobSecondsMost))
      return bad(fmt::format("trains for {:g} s where it is slowest; at most {:g} can be played",
                             seconds, kJobSecondsMost));
    const double fastest = std::max(job.speed.fastest(), job.request_speed.value_or(0));
    const double rounds =
        job.work / fastest * 1000 / static_cast<double>(std::max<TimeMs>(options_.round_ms, 1));
    if ((about_.timed || options_.in_lockstep) &&
        rounds > static_cast<double>(options_.rounds_most))
      return bad(
          fmt::format("trains for {:g} s at least, in which policy {} decides {:g} times; "
                      "at most {} rounds can be played: make the time between them longer",
                      job.work / fastest, about_.name, rounds, options_.rounds_most));
    gpu_seconds += seconds * static_cast<double>(job.max);
    if (gpu_seconds > kGpuSecondsMost)
      return bad(
          fmt::format("with those before it more than {:g} GPU-seconds of work", kGpuSecondsMost));
  }
  return ok();
}

// A job that no set of nodes could ever hold, or its queue never lets have its GPUs, would stand at
// the head of a queue for ever.
void Engine::refuse_what_never_fits() {
  const auto by_type = cluster_.gpus_by_type();
  const auto of_node = cluster_.largest_node_by_type();
  const Problem problem(state_);
  const QuotaBook quota(problem);
  const Cells cells(problem);
  std::erase_if(trace_, [&](const TraceJob& job) {
    const QueueIndex queue = problem.queue_named(job.queue);
    Gpus of_nodes = 0;
    Gpus most = 0;
    for (const auto& [type, gpus] : job.one_node ? of_node : by_type) {
      if (!job.may_use(type)) continue;
      of_nodes = std::max(of_nodes, gpus);
      most = std::max(most, std::min(gpus, quota.most(queue, problem.type_named(type))));
    }
    if (is_confined_to_cells(*problem.queue(queue))) most = std::min(most, cells.most_of(queue));
    // By its request for every policy, so that all of them run the same jobs.
    if (job.request <= most) return false;
    result_.refused.push_back(
        {job.id,
         fmt::format("asks for {}{}; the most of one type that {} is {}",
                     counted(job.request, "GPU"), job.one_node ? " on one node" : "",
                     job.request > of_nodes ? "it can use"
                                            : fmt::format("queue \"{}\" lets it have", job.queue),
                     std::min(most, of_nodes))});
    return true;
  });
}

Result<SimResult> Engine::run() {
  refuse_what_never_fits();
  TRY_OK(check_jobs());
  runs_.resize(trace_.size());
  result_.jobs.resize(trace_.size());
  for (std::size_t i = 0; i < trace_.size(); ++i) {
    const TraceJob& job = trace_[i];
    index_of_[job.id] = i;
    const double scale = quanta_per_unit(job, types_);
    runs_[i].quanta_per_unit = scale;
    runs_[i].total = std::max<std::int64_t>(std::llround(job.work * scale), 1);
    runs_[i].left = runs_[i].saved_left = runs_[i].total;
    result_.jobs[i] = {.id = job.id,
                       .queue = job.queue,
                       .submit_ms = job.submit_ms,
                       .deadline_ms = job.deadline_ms,
                       .request = job.request};
    if (job.training) {
      const Application& application = *job.training->application;
      StepTimes& steps = steps_.try_emplace(&application, application).first->second;
      const bool adapts = about_.uses_goodput && job.training->adapts;
      runs_[i].adaptive.emplace(steps, adapts ? 0 : job.training->batch);
    }
  }
  while (true) {
    const TimeMs next = next_instant();
    if (next == kNever) break;
    const auto passed = static_cast<double>(next - in_system_at_ms_);
    in_system_ += static_cast<double>(state_.jobs.size()) * passed;
    held_gpu_ms_ += static_cast<double>(held_) * passed;
    if (held_gpu_ms_ > kGpuSecondsMost * 1000)
      return Error(Code::kInvalid,
                   fmt::format("policy {}: until {} ms the jobs hold GPUs for more than {:g} "
                               "GPU-seconds, which is the most that can be played",
                               about_.name, next, kGpuSecondsMost));
    in_system_at_ms_ = now_ = next;
    while (arrived_ < trace_.size() && trace_[arrived_].submit_ms == now_) arrive(arrived_++);
    while (!events_.empty() && events_.top().at_ms == now_) {
      const Event event = events_.top();
      events_.pop();
      TRY_OK(handle(event));
    }
    TRY_OK(handle_nodes());
    if (options_.in_lockstep ? now_ % options_.round_ms != 0 : !changed_ && next_round() != now_)
      continue;
    TRY_OK(round());
    begin_windows();
    if (++rounds_without_progress_ > kRoundsWithoutProgress)
      return without_progress(
          fmt::format("policy {} makes no progress at {} ms: no job has trained for {} rounds",
                      about_.name, now_, kRoundsWithoutProgress));
    if (result_.rounds > options_.rounds_most)
      return Error(Code::kInvalid,
                   fmt::format("policy {} has decided {} times until {} ms, which is the most that "
                               "can be played, and {} done: make the time between rounds longer, "
                               "or play fewer jobs",
                               about_.name, options_.rounds_most, now_,
                               counted_of(finished_, trace_.size(), "job")));
    if (options_.on_progress && result_.rounds % kRoundsPerReport == 0 &&
        !options_.on_progress(finished_, trace_.size(), now_))
      return Error(Code::kCancelled, "stopped");
  }
  return collect();
}

// When a round comes although nothing happens. A plan that was empty stays empty while nothing
// changes, unless time itself changes it. Where nothing else can happen any more, it is the last.
TimeMs Engine::next_round() const {
  const bool is_over = !changed_ && last_plan_was_empty_ && held_ == 0 && events_.empty() &&
                       arrived_ == trace_.size();
  if (state_.jobs.empty() || is_over) return kNever;
  if (options_.in_lockstep) return next_in_lockstep();
  TimeMs next = kNever;
  if (wake_ms_) next = std::max(*wake_ms_, last_round_ms_ + 1);
  if (about_.timed || !last_plan_was_empty_)
    next = std::min(next, last_round_ms_ + options_.round_ms);
  return next;
}

TimeMs Engine::next_instant() const {
  TimeMs next = next_round();
  if (arrived_ < trace_.size()) next = std::min(next, trace_[arrived_].submit_ms);
  if (!events_.empty()) next = std::min(next, events_.top().at_ms);
  // Where nothing else happens, jobs may wait for nodes that are being repaired.
  const bool goes_on = next != kNever || (nodes_away_ > 0 && !state_.jobs.empty());
  if (!node_events_.empty() && goes_on) next = std::min(next, node_events_.top().at_ms);
  return next;
}

void Engine::arrive(std::size_t index) {
  const TraceJob& trace = trace_[index];
  Run& run = runs_[index];
  run.phase = Phase::kWaiting;
  run.since_ms = now_;
  run.position = state_.jobs.size();
  run.seen_before = in_system_;
  Job job;
  job.id = job.name = trace.id;
  job.queue = trace.queue;
  job.priority = trace.priority;
  job.deadline_ms = trace.deadline_ms;
  job.queued_at = static_cast<double>(trace.submit_ms) / 1000.0;
  job.min = about_.elastic ? trace.min : trace.request;
  job.max = about_.elastic ? trace.max : trace.request;
  job.per_pod.gpus = 1;
  job.one_node = trace.one_node;
  const double of_request = static_cast<double>(job.min) / static_cast<double>(trace.request);
  job.traffic = trace.traffic * of_request;
  job.sensitivity = trace.sensitivity;
  job.dataset = trace.dataset;
  if (job.dataset)
    job.dataset->bytes_per_second = std::max<Bytes>(
        std::llround(static_cast<double>(trace.dataset->bytes_per_second) * of_request), 1);
  for (const std::string& type : types_)
    if (trace.may_use(type)) job.allow.push_back(type);
  if (const auto known = observed_.find(trace.profile); known != observed_.end())
    job.measured = known->second;
  if (options_.profiled) tell_speeds(trace, job);
  if (about_.shares != Sharing::kNone && trace.sharing) job.gpu_use = trace.sharing->use;
  state_.jobs.push_back(std::move(job));
  tell_times(index);
  rounds_without_progress_ = 0;
  index_of_job_.push_back(static_cast<std::uint32_t>(index));
  changed_ = true;
}

Status Engine::handle(const Event& event) {
  if (event.kind == EventKind::kReleased) {
    state_.nodes[event.node].free.gpus += event.gpus;
    held_ -= event.gpus;
    result_.freed_ms = now_;
    if (runs_[event.job].phase != Phase::kDone)
      std::erase_if(job_of(event.job).held,
                    [&](const Held& held) { return held.ordinal == event.ordinal; });
    else
      state_.queues[trace_[event.job].queue].held_by_leavers[types_[type_of_node_[event.node]]] -=
          event.gpus;
    changed_ = true;
    return ok();
  }
  if (event.kind == EventKind::kCooled) {
    const Run& cooled = runs_[event.job];
    if (cooled.phase == Phase::kDone || cooled.cool_ms != now_) return ok();
    job_of(event.job).cooling = false;
    changed_ = true;
    return ok();
  }
  if (event.kind == EventKind::kGivesUp) {
    const Run& parked = runs_[event.job];
    if (parked.phase == Phase::kDone || parked.gives_up_ms != now_) return ok();
    give_up(event.job);
    changed_ = true;
    return ok();
  }
  Run& run = runs_[event.job];
  if (event.version != run.version) return ok();
  switch (event.kind) {
    case EventKind::kReady:
      if (run.until_ms != now_) return ok();  // a join came between
      advance(event.job);
      train(event.job);
      if (!about_.elastic) return ok();  // what has begun to train is nothing new to the others
      break;
    case EventKind::kJoin:
      advance(event.job);
      ++run.version;  // its end at the old pace is void
      run.training = run.held;
      run.join_ms = -1;
      job_of(event.job).join_ms = options_.costs.join_ms;
      stall(run, options_.costs.rescale_ms);
      push(EventKind::kReady, event.job, run.until_ms);
      return ok();
    case EventKind::kFinish:
      TRY_OK(finish(event.job));
      break;
    case EventKind::kObserve:
      observe(event.job);
      return ok();
    case EventKind::kCooled:
    case EventKind::kReleased:
    case EventKind::kGivesUp:
      break;
  }
  changed_ = true;
  return ok();
}

Status Engine::round() {
  for (int i = 0; i < kRoundsPerInstant; ++i) {
    if (state_.jobs.empty()) {
      changed_ = false;
      sample();
      return ok();
    }
    refresh_history();
    tell_goodput();
    const std::int64_t began = options_.stopwatch_ns ? options_.stopwatch_ns() : 0;
    const Plan plan = scheduler_.decide(state_);
    if (options_.stopwatch_ns) result_.decisions.add(options_.stopwatch_ns() - began);
    wake_ms_ = scheduler_.next_wake(state_);
    ++result_.rounds;
    result_.job_rounds += std::ssize(state_.jobs);
    if (options_.on_plan) options_.on_plan(now_, plan);
    last_round_ms_ = now_;
    changed_ = false;
    freed_at_once_ = false;
    last_plan_was_empty_ = plan.actions.empty();
    TRY_OK(apply(plan));
    sample();
    share_out(plan);
    if (!freed_at_once_) return ok();
  }
  return Error(Code::kInternal,
               fmt::format("policy {} never comes to rest at {} ms: {} plans that free GPUs",
                           about_.name, now_, kRoundsPerInstant));
}

// Only what jobs hold changes by itself.
void Engine::refresh_history() {
  state_.now_ms = now_;
  for (std::size_t i = 0; i < state_.jobs.size(); ++i) {
    if (state_.jobs[i].held.empty()) continue;
    advance(index_of_job_[i]);
    tell_times(index_of_job_[i]);
  }
}

void Engine::sample() {
  const Sample now{now_, held_, running_, std::ssize(state_.jobs) - running_};
  std::vector<Sample>& samples = result_.samples;
  if (!samples.empty() && samples.back().at_ms == now_) samples.pop_back();
  if (!samples.empty() && samples.back().held == now.held &&
      samples.back().running == now.running && samples.back().waiting == now.waiting)
    return;
  samples.push_back(now);
}

SimResult Engine::collect() {
  result_.policy = about_.name;
  result_.costs = options_.costs.name;
  result_.knows = knows();
  result_.profiled = options_.profiled;
  result_.cluster = cluster_;
  return std::move(result_);
}

}  // namespace rubato::sched::sim
