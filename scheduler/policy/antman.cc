#include "scheduler/policy/antman.h"

#include "scheduler/policy/order.h"
#include "scheduler/policy/pairs.h"

#include <algorithm>
#include <cmath>

namespace rubato::sched {
namespace {

bool is_opportunistic(const Job& job) { return job.priority < 0; }

}  // namespace

Descriptor AntMan::describe() {
  return {
      .name = "antMan",
      .about = "guaranteed jobs by arrival; opportunistic ones on what those leave of GPUs",
      .rule =
          "Jobs of a priority of 0 or more are guaranteed: they go first, by priority and "
          "arrival, and preempt those of lower priority. Jobs of a priority below 0 are "
          "opportunistic: they have free GPUs as long as nobody else needs them, else they are "
          "guests of guaranteed jobs that keep their GPUs busy for less than `busyBelow` of the "
          "time and use less than `memoryBelowGib` of their memory, the least busy first; one "
          "guest a GPU. A guest gets what its host leaves, which loses no speed.",
      .choose =
          "Where jobs with a promise leave GPUs idle between their kernels, and other work may "
          "take as long as it takes. Opportunistic jobs may starve.",
      .source =
          "Xiao et al., OSDI'20. *Reconstruction*: utilisation and memory are as profiled, not "
          "of the last 30 s, and how much a guest gets is (1 - busy of its host) / its own "
          "busy. Its published results are *unverified* here",
      .parameters = {{.name = "busyBelow",
                      .least = 0,
                      .most = 1,
                      .standard = 0.8,
                      .about = "busier GPUs have no guests"},
                     {.name = "memoryBelowGib",
                      .least = 0,
                      .most = 4096,
                      .standard = 16,
                      .unit = "GiB",
                      .about = "GPUs of which a host uses so much have no guests"}},
      .shares = Sharing::kLeftover};
}

AntMan::AntMan(const std::vector<double>& parameters)
    : busy_below_(parameters.at(0)), memory_below_(std::llround(parameters.at(1) * kBytesPerGib)) {}

Targets AntMan::decide(const Problem& problem) const {
  const auto hosts = possible_hosts(
      problem, [](const Job& job) { return std::pair(job.gpu_use->busy, effective_gpus(job)); });
  const auto may_pair = [&](const Job& guest, const Job& host) {
    return is_opportunistic(guest) && !is_opportunistic(host) && host.gpu_use->busy < busy_below_ &&
           host.gpu_use->memory < memory_below_ && effective_gpus(host) >= guest.min;
  };
  return {.order = order_by(problem, [](JobIndex) { return 0; }),
          .displaces = Displaces::kLowerPriority,
          .hosts = hosts_by_guest(problem, hosts, may_pair,
                                  [](const Job&, const Job&) { return true; })};
}

}  // namespace rubato::sched
