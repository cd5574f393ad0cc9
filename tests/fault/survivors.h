// Survivors: whether a worker that nothing has hit is the process that it was, by its id and start
// time. Needs a /proc of the process ids that JobProcesses knows. Not thread-safe.
#pragma once

#include "tests/integration/coordinator/job_processes.h"

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include <sys/types.h>

namespace rubato::fault {

class Survivors {
 public:
  explicit Survivors(const coordinator::JobProcesses& job) : job_(job) {}

  // Compares the pod's worker with the one that was first seen there. What is wrong; empty while it
  // is the same, or gone.
  std::string look_at(const coordinator::JobProcesses::Pod& pod);
  bool has_seen(const coordinator::JobProcesses::Pod& pod) const {
    return seen_.contains(pod.number);
  }

 private:
  using Life = std::pair<pid_t, std::uint64_t>;
  const coordinator::JobProcesses& job_;
  std::map<int, Life> seen_;
};

}  // namespace rubato::fault
