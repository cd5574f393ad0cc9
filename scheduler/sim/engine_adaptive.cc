// Jobs whose speed depends on their batch, their epoch and their nodes: they train from round to
// round, and between two rounds nothing changes for them.
#include "scheduler/sim/engine.h"

#include <algorithm>
#include <cmath>

namespace rubato::sched::sim {
namespace {

GpusByNode placement_of(const Job& job) {
  std::map<NodeId, Gpus> by_node;
  for (const Held& held : job.held)
    if (!held.leaving) by_node[held.node] += held.gpus;
  GpusByNode placement;
  for (const auto& [node, gpus] : by_node) placement.push_back(gpus);
  return placement;
}

}  // namespace

// Under a policy that asks for no goodput they are jobs of one batch.
void Engine::choose_batches() {
  if (about_.uses_goodput) return;
  for (TraceJob& job : trace_) {
    if (!job.training) continue;
    job.speed = job.training->fixed_speed;
    job.max = job.training->fixed_max;
  }
}

void Engine::tell_goodput() {
  if (!about_.uses_goodput) return;
  for (std::size_t i = 0; i < state_.jobs.size(); ++i) {
    Run& run = runs_[index_of_job_[i]];
    if (!run.adaptive || run.told == run.adaptive->version()) continue;
    run.told = run.adaptive->version();
    Job& job = state_.jobs[i];
    job.goodput.clear();
    for (const std::string& type : job.allow) {
      const auto of_type = std::ranges::max_element(
          cluster_.groups, {}, [&](const NodeGroup& g) { return g.gpu_type == type ? g.gpus : 0; });
      const auto points = run.adaptive->goodput(type, of_type->gpus, job.max);
      job.goodput.insert(job.goodput.end(), points.begin(), points.end());
    }
  }
}

// Until the next round, or its end. Its rate is the mean of that time.
void Engine::train_on(std::size_t index) {
  Run& run = runs_[index];
  const TimeMs until = next_in_lockstep();
  run.trained_to_ms = until;
  const auto done =
      run.adaptive->train(placement_of(job_of(index)), static_cast<double>(until - now_) / 1000.0);
  if (done) {
    const TimeMs takes = std::max<TimeMs>(std::llround(*done * 1000.0), 1);
    run.rate = (run.left + takes - 1) / takes;
    push(EventKind::kFinish, index, now_ + takes);
    return;
  }
  const double left =
      static_cast<double>(run.total) - run.adaptive->progress() * run.quanta_per_unit;
  const auto after = std::max<std::int64_t>(std::llround(left), 1);
  run.rate = std::max<std::int64_t>((run.left - after) / (until - now_), 1);
}

// A round has just been, at the end of the last window of those that train.
void Engine::begin_windows() {
  if (!options_.in_lockstep) return;
  for (const std::uint32_t index : index_of_job_) {
    Run& run = runs_[index];
    if (!run.adaptive || run.phase != Phase::kTraining || run.trained_to_ms != now_) continue;
    advance(index);
    ++run.version;
    train_on(index);
  }
}

}  // namespace rubato::sched::sim
