#include "scheduler/policy/liquid.h"

#include "scheduler/policy/order.h"
#include "scheduler/policy/starts.h"

#include <algorithm>

namespace rubato::sched {
namespace {

// By job: what its pods exchange, over the mean of one GPU. As many as its GPUs where nothing is
// known of it.
std::vector<double> traffic_by_job(const ClusterState& state) {
  double bytes = 0, gpus = 0;
  for (const Job& job : state.jobs) {
    if (job.traffic <= 0) continue;
    bytes += job.traffic;
    gpus += static_cast<double>(job.min);
  }
  std::vector<double> traffic;
  traffic.reserve(state.jobs.size());
  for (const Job& job : state.jobs)
    traffic.push_back(job.traffic > 0 ? job.traffic * gpus / bytes : static_cast<double>(job.min));
  return traffic;
}

// On the first type that has room for it. False: none has.
bool join_batch(const Problem& problem, JobIndex j, double traffic, Room& room,
                LiquidSearch& search) {
  for (const TypeIndex type : types_with_room(problem, j, room)) {
    const Gpus gpus = *size_at_least(problem.job(j), problem.job(j).min);
    if (!search.add(j, type, gpus, traffic)) continue;
    room.take(j, type, gpus);
    return true;
  }
  return false;
}

}  // namespace

Descriptor Liquid::describe() {
  return {
      .name = "liquid",
      .about = "arrival order; pods of jobs that start are near to each other, by a genetic search",
      .rule =
          "Jobs of one priority are served in order of arrival; one that does not fit is passed "
          "over, and nobody is preempted or moved. Those that start in a round are placed "
          "together, at most 64 of them. A genetic search begins with best fit, and with pods "
          "around nodes by chance; a mutation takes all jobs off one node and places them anew. "
          "What costs least is kept: of each job its traffic times the mean distance between two "
          "of its pods, and its nodes per pod; and a little for what is left of nodes. The "
          "distance is 0 on one node, 1 between nodes of one domain of the narrowest topology "
          "level, `acrossRacks` between those, `acrossZones` beyond the next wider level. A job "
          "of which no traffic is known has that of a mean job with as many GPUs. Jobs keep "
          "their minimums, and do not grow.",
      .choose =
          "Where jobs span nodes and the network between racks is slow, on a cluster whose "
          "topology levels are known. Large jobs may starve.",
      .source =
          "Gu et al., TPDS'22. *Reconstruction*: traffic is given in place of its estimator, all "
          "pods of a job exchange alike, CPU and memory are as requested, and GPUs are not "
          "shared. Its published results are *unverified* here",
      .parameters = {{.name = "generations",
                      .least = 0,
                      .most = 1000,
                      .standard = 50,
                      .about = "of the search, at most; 0: best fit, as under other policies",
                      .is_whole = true},
                     {.name = "seed",
                      .least = 0,
                      .most = 1e9,
                      .standard = 0,
                      .about = "of the search; equal ones give equal plans",
                      .is_whole = true},
                     {.name = "acrossRacks",
                      .least = 1,
                      .most = 1000,
                      .standard = 4,
                      .about = "distance between two domains of the narrowest level"},
                     {.name = "acrossZones",
                      .least = 1,
                      .most = 10000,
                      .standard = 40,
                      .about = "distance between two domains of the next wider level"}}};
}

Liquid::Liquid(const std::vector<double>& parameters)
    : settings_{.generations = static_cast<int>(parameters.at(0)),
                .seed = static_cast<std::uint64_t>(parameters.at(1)),
                .across_racks = parameters.at(2),
                .across_zones = parameters.at(3)} {}

Targets Liquid::decide(const Problem& problem) const {
  Targets targets{.order = order_by(problem, [](JobIndex) { return 0; }),
                  .displaces = Displaces::kNobody,
                  .sizes = held_or_minimum(problem.state())};
  if (settings_.generations == 0) return targets;
  const std::vector<double> traffic = traffic_by_job(problem.state());
  Room room = Room::unheld(problem);
  LiquidSearch search(problem, settings_);
  std::vector<JobIndex> batch;
  for (const JobIndex j : targets.order) {
    if (batch.size() == kBatchMost) break;
    if (may_start(problem, j) && join_batch(problem, j, traffic[j.value], room, search))
      batch.push_back(j);
  }
  if (batch.empty()) return targets;
  targets.places.resize(targets.order.size());
  std::vector<std::vector<NodeIndex>> places = search.run();
  for (std::size_t i = 0; i < batch.size(); ++i)
    targets.places[batch[i].value] = std::move(places[i]);
  return targets;
}

}  // namespace rubato::sched
