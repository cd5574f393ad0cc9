#include "scheduler/sim/results.h"

#include "common/json.h"
#include "scheduler/sim/import/csv.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace rubato::sched::sim {
namespace {

double seconds(TimeMs ms) { return static_cast<double>(ms) / 1000.0; }

template <class T>
T at_percentile(const std::vector<T>& sorted, double share) {
  if (sorted.empty()) return T{};
  const auto index = static_cast<std::size_t>(share * static_cast<double>(sorted.size()));
  return sorted[std::min(index, sorted.size() - 1)];
}

void add_decisions(const SimResult& result, Summary& sum) {
  const DecisionTimes& times = result.decisions;
  sum.decision_p50_us = static_cast<double>(times.percentile_ns(0.5)) / 1e3;
  sum.decision_p99_us = static_cast<double>(times.percentile_ns(0.99)) / 1e3;
  sum.decision_worst_us = static_cast<double>(times.worst_ns()) / 1e3;
  sum.decision_total_s = times.total_ns() / 1e9;
}

}  // namespace

TimeMs alone_ms(const TraceJob& job, const SimCluster& cluster, double jobs_beside,
                TimeMs start_ms) {
  const double n = std::max(jobs_beside, 1.0);
  double usable = 0;
  double weighted = 0;
  std::vector<std::pair<std::string, double>> types;
  for (const auto& [type, gpus] : cluster.gpus_by_type()) {
    if (!job.may_use(type)) continue;
    types.emplace_back(type, static_cast<double>(gpus));
    usable += static_cast<double>(gpus);
  }
  const double share = usable / n;
  const Gpus size = std::clamp(static_cast<Gpus>(share), job.min, job.max);
  for (const auto& [type, gpus] : types) weighted += gpus / usable * job.speed.at(type, size);
  const double part_of_time = std::min(1.0, share / static_cast<double>(size));
  if (!(weighted > 0)) return 0;
  return start_ms + std::llround(job.work / (weighted * part_of_time) * 1000.0);
}

Summary summarise(const SimResult& result) {
  Summary sum{.policy = result.policy, .costs = result.costs, .knows = name_of(result.knows)};
  if (result.profiled) sum.knows += ", speeds";
  sum.refused = std::ssize(result.refused);
  sum.failures = result.failures;
  sum.rounds = result.rounds;
  sum.job_rounds = result.job_rounds;
  std::vector<TimeMs> jcts;
  TimeMs first = std::numeric_limits<TimeMs>::max();
  TimeMs last = 0;
  GpuMs held = 0;
  GpuMs training = 0;
  GpuMs lost = 0;
  double waited = 0;
  std::int64_t unfair = 0;
  for (const JobResult& job : result.jobs) {
    first = std::min(first, job.submit_ms);
    held += job.gpu_ms;
    training += job.training_gpu_ms;
    lost += job.lost_gpu_ms;
    sum.restarts += job.restarts;
    sum.rescales += job.rescales;
    sum.preemptions += job.preemptions;
    if (job.deadline_ms) ++sum.deadlines;
    if (job.is_on_time()) ++sum.deadlines_met;
    QueueShare& queue = sum.queues[job.queue];
    queue.gpu_ms += job.gpu_ms;
    if (job.finish_ms < 0) {
      ++sum.unfinished;
      continue;
    }
    ++queue.jobs;
    queue.jct_mean_s += seconds(job.jct_ms());
    last = std::max(last, job.finish_ms);
    jcts.push_back(job.jct_ms());
    waited += seconds(job.start_ms - job.submit_ms);
    sum.rho_worst = std::max(sum.rho_worst, job.rho());
    if (job.rho() > kUnfairRho) ++unfair;
  }
  for (auto& [name, queue] : sum.queues) {
    if (held > 0) queue.share = static_cast<double>(queue.gpu_ms) / static_cast<double>(held);
    if (queue.jobs > 0) queue.jct_mean_s /= static_cast<double>(queue.jobs);
  }
  add_decisions(result, sum);
  sum.finished = std::ssize(jcts);
  sum.gpu_hours = seconds(held) / 3600.0;
  sum.lost_gpu_hours = seconds(lost) / 3600.0;
  if (held > 0) sum.training_share = static_cast<double>(training) / static_cast<double>(held);
  if (jcts.empty()) return sum;
  std::sort(jcts.begin(), jcts.end());
  const auto n = static_cast<double>(jcts.size());
  for (const TimeMs jct : jcts) sum.jct_mean_s += seconds(jct) / n;
  sum.jct_p50_s = seconds(at_percentile(jcts, 0.5));
  sum.jct_p99_s = seconds(at_percentile(jcts, 0.99));
  sum.wait_mean_s = waited / n;
  sum.rho_above_share = static_cast<double>(unfair) / n;
  sum.makespan_s = seconds(last - first);
  const TimeMs end = std::max(last, result.freed_ms);  // GPUs count as held while their pods leave
  const double all = static_cast<double>(result.cluster.gpus()) * static_cast<double>(end - first);
  if (all > 0) sum.utilisation = static_cast<double>(held) / all;
  return sum;
}

std::string to_csv(const SimResult& result) {
  const bool has_deadlines = std::ranges::any_of(
      result.jobs, [](const JobResult& job) { return job.deadline_ms.has_value(); });
  std::string text =
      "id,queue,gpus,submit_s,start_s,finish_s,jct_s,gpu_s,training_gpu_s,alone_s,rho,restarts,"
      "rescales,preemptions";
  text += has_deadlines ? ",deadline_s,on_time\n" : "\n";
  const auto time = [](TimeMs ms) {
    return ms < 0 ? std::string() : fmt::format("{:.3f}", seconds(ms));
  };
  for (const JobResult& job : result.jobs) {
    const bool done = job.finish_ms >= 0;
    text += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{},{}", csv_cell(job.id),
                        csv_cell(job.queue), job.request, time(job.submit_ms), time(job.start_ms),
                        time(job.finish_ms), done ? time(job.jct_ms()) : "", time(job.gpu_ms),
                        time(job.training_gpu_ms), done ? time(job.alone_ms) : "",
                        done ? fmt::format("{:.4f}", job.rho()) : "", job.restarts, job.rescales,
                        job.preemptions);
    if (job.deadline_ms)
      text += fmt::format(",{},{}", time(*job.deadline_ms), job.is_on_time() ? 1 : 0);
    else if (has_deadlines)
      text += ",,";
    text += '\n';
  }
  return text;
}

std::string to_json(const SimCluster& cluster, const std::vector<Summary>& runs) {
  auto list = json::Value::array();
  for (const Summary& run : runs) {
    auto queues = json::Value::object();
    for (const auto& [name, queue] : run.queues)
      queues.set(name, json::Value::object({{"jobs", queue.jobs},
                                            {"gpuHours", seconds(queue.gpu_ms) / 3600.0},
                                            {"share", queue.share},
                                            {"jctMeanSeconds", queue.jct_mean_s}}));
    auto one = json::Value::object({{"policy", run.policy},
                                    {"costs", run.costs},
                                    {"knows", run.knows},
                                    {"finished", run.finished},
                                    {"unfinished", run.unfinished},
                                    {"refused", run.refused},
                                    {"jctMeanSeconds", run.jct_mean_s},
                                    {"jctP50Seconds", run.jct_p50_s},
                                    {"jctP99Seconds", run.jct_p99_s},
                                    {"waitMeanSeconds", run.wait_mean_s},
                                    {"makespanSeconds", run.makespan_s},
                                    {"gpuHours", run.gpu_hours},
                                    {"utilisation", run.utilisation},
                                    {"trainingShare", run.training_share},
                                    {"rhoWorst", run.rho_worst},
                                    {"rhoAboveShare", run.rho_above_share},
                                    {"restarts", run.restarts},
                                    {"rescales", run.rescales},
                                    {"preemptions", run.preemptions},
                                    {"rounds", run.rounds},
                                    {"jobRounds", run.job_rounds},
                                    {"decisionP50Micros", run.decision_p50_us},
                                    {"decisionP99Micros", run.decision_p99_us},
                                    {"decisionWorstMicros", run.decision_worst_us},
                                    {"decisionTotalSeconds", run.decision_total_s},
                                    {"queues", std::move(queues)}});
    if (run.deadlines > 0) {
      one.set("deadlines", run.deadlines);
      one.set("deadlinesMet", run.deadlines_met);
    }
    if (run.failures) {
      one.set("failures", *run.failures);
      one.set("lostGpuHours", run.lost_gpu_hours);
    }
    list.push_back(std::move(one));
  }
  return json::dump(json::Value::object({{"cluster", to_text(cluster)},
                                         {"gpus", cluster.gpus()},
                                         {"runs", std::move(list)}}),
                    2) +
         "\n";
}

}  // namespace rubato::sched::sim
