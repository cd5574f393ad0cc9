#include "scheduler/sim/baselines/registry.h"

#include "scheduler/sim/baselines/fifo.h"
#include "scheduler/sim/baselines/las.h"
#include "scheduler/sim/baselines/marginal_throughput.h"
#include "scheduler/sim/baselines/shortest.h"
#include "scheduler/sim/baselines/tiresias.h"

namespace rubato::sched::sim {
namespace {

std::vector<std::unique_ptr<Scheduler>> make_all() {
  std::vector<std::unique_ptr<Scheduler>> all;
  all.push_back(std::make_unique<MarginalThroughput>());
  all.push_back(std::make_unique<Fifo>(false));
  all.push_back(std::make_unique<Fifo>(true));
  all.push_back(std::make_unique<Shortest>(ShortestBy::kDuration));
  all.push_back(std::make_unique<Shortest>(ShortestBy::kRemainingTime));
  all.push_back(std::make_unique<Shortest>(ShortestBy::kRemainingService));
  all.push_back(std::make_unique<Las>());
  all.push_back(std::make_unique<Tiresias>());
  return all;
}

}  // namespace

std::unique_ptr<Scheduler> scheduler_named(std::string_view name) {
  for (std::unique_ptr<Scheduler>& one : make_all())
    if (one->descriptor().name == name) return std::move(one);
  return nullptr;
}

std::vector<Descriptor> all_schedulers() {
  std::vector<Descriptor> all;
  for (const std::unique_ptr<Scheduler>& one : make_all()) all.push_back(one->descriptor());
  return all;
}

}  // namespace rubato::sched::sim
