#include "scheduler/policy/gandiva.h"

#include "scheduler/policy/order.h"
#include "scheduler/policy/pairs.h"
#include "scheduler/policy/turns.h"

#include <algorithm>
#include <cmath>

namespace rubato::sched {
namespace {

std::optional<double> part_beside(const Job& job, const Job& other) {
  const auto found = std::ranges::find(job.beside, other.id, &SpeedBeside::job);
  if (found == job.beside.end()) return std::nullopt;
  return found->part;
}

}  // namespace

Descriptor Gandiva::describe() {
  return {.name = "gandiva",
          .about = "all jobs take turns; two on the same GPUs where both together get more done",
          .rule =
              "Who has had its GPUs for the least time goes first, and takes the turn of those who "
              "have had them for a quantum. Before that, a job that finds no free GPUs is tried on "
              "those of a job that has as many and no guest yet: of what has room in a GPU's "
              "memory, the one that uses least of it first. It stays there if the parts of their "
              "speed alone that both keep add up to `leastGain` or more; else it stops, and the "
              "two are not tried together again.",
          .choose =
              "Where users wait for first results of many jobs, as in a search of hyperparameters, "
              "and changes of turn cost little. Nobody starves, and long jobs pay for it.",
          .source =
              "Xiao et al., OSDI'18. *Reconstruction*: without migration between nodes and without "
              "affinity of nodes to sizes; what is left over makes elastic jobs grow as under all "
              "policies. Its published results are *unverified* here",
          .parameters = {{.name = "quantumSeconds",
                          .least = 1,
                          .most = 86'400,
                          .standard = 60,
                          .unit = "s",
                          .about = "a job keeps its GPUs for at least so long"},
                         {.name = "leastGain",
                          .least = 0,
                          .most = 2,
                          .standard = 1,
                          .about = "what two jobs on the same GPUs must get done together, in what "
                                   "one of them gets done alone"},
                         {.name = "gpuMemoryGib",
                          .least = 1,
                          .most = 4096,
                          .standard = 16,
                          .unit = "GiB",
                          .about = "memory of a GPU, for both"}},
          .timed = true,
          .shares = Sharing::kEqual};
}

Gandiva::Gandiva(const std::vector<double>& parameters)
    : quantum_ms_(std::llround(parameters.at(0) * 1000)),
      least_gain_(parameters.at(1)),
      memory_(std::llround(parameters.at(2) * kBytesPerGib)) {}

// As far as it is known.
bool Gandiva::is_worth_it(const Job& guest, const Job& host) const {
  const auto of_host = part_beside(host, guest);
  const auto of_guest = part_beside(guest, host);
  return !of_host || !of_guest || *of_host + *of_guest >= least_gain_;
}

Targets Gandiva::decide(const Problem& problem) const {
  const TimeMs now = problem.state().now_ms;
  auto hosts = possible_hosts(problem, [](const Job& job) { return job.gpu_use->memory; });
  leave_out_taken(problem, hosts);
  const auto may_pair = [&](const Job& guest, const Job& host) {
    return guest.min == effective_gpus(host) && is_worth_it(guest, host) &&
           guest.gpu_use->memory + host.gpu_use->memory <= memory_;
  };
  return {.order = order_by(problem,
                            [&](JobIndex j) -> TimeMs {
                              const Job& job = problem.job(j);
                              if (is_in_quantum(job, now, quantum_ms_)) return -1;
                              return job.attained_gpu_ms / job.min;
                            }),
          .displaces = Displaces::kLaterInOrder,
          .hosts = hosts_by_guest(problem, hosts, may_pair, [&](const Job& guest, const Job& host) {
            return is_worth_it(guest, host);
          })};
}

std::optional<TimeMs> Gandiva::next_wake(const ClusterState& state) const {
  return end_of_first_quantum(state, quantum_ms_);
}

}  // namespace rubato::sched
