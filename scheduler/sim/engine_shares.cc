// How fast jobs are with what they have of cache and remote bandwidth, of CPU and memory.
#include "scheduler/sim/engine.h"

namespace rubato::sched::sim {

std::vector<GpusOnNodes> Engine::places_held() const {
  std::vector<GpusOnNodes> places;
  places.reserve(state_.jobs.size());
  for (const Job& job : state_.jobs) {
    GpusOnNodes& of = places.emplace_back();
    for (const Held& held : job.held)
      if (held.stays()) of[held.node] += held.gpus;
  }
  return places;
}

// As a plan says that is done, or equal shares of what it says nothing of.
void Engine::share_out(const Plan& plan) {
  if (!state_.storage && !options_.of_node) return;
  std::vector<Gpus> gpus;
  gpus.reserve(state_.jobs.size());
  for (const std::uint32_t index : index_of_job_) gpus.push_back(runs_[index].held);
  std::optional<StorageShares> storage = plan.storage;
  if (state_.storage && !storage) storage = uniform_shares(state_, gpus);
  std::optional<CpuMemoryShares> cpu_memory = plan.cpu_memory;
  if (options_.of_node && !cpu_memory) cpu_memory = proportional_shares(state_, places_held());
  for (std::size_t i = 0; i < state_.jobs.size(); ++i) {
    if (gpus[i] == 0) continue;
    const Job& job = state_.jobs[i];
    double part = storage ? part_of_full_speed(job, gpus[i], *storage) : 1;
    if (cpu_memory)
      if (const auto share = cpu_memory->find(job.id); share != cpu_memory->end())
        part = std::min(part, part_of_full_speed(job, share->second));
    const std::size_t index = index_of_job_[i];
    if (runs_[index].shares_part == part) continue;
    runs_[index].shares_part = part;
    change_speed(index);
  }
}

}  // namespace rubato::sched::sim
