// What the agent tells a worker by its environment, and the parts of a WorkerProcess that follow
// from it: for rubato-worker and for a script that trains by itself (worker/pytorch).
#pragma once

#include "common/result.h"
#include "worker/collective/peer.h"

#include <cstdint>
#include <string>

namespace rubato::worker {

struct WorkerEnvironment {
  int agent_fd = -1;
  std::string job_uid;
  WorkerName self;
  std::string host;        // where peers reach it
  std::string secret_dir;  // of the job's certificate
  std::string device;      // DeviceSpec::kind
};

// A variable of the environment; `fallback` where it is not set.
std::string environment_variable(const char* name, const char* fallback = "");
// RUBATO_DEVICE, for this worker's slot.
std::string device_of_environment();
// kInvalid names the variable that the agent sets and is not there.
Result<WorkerEnvironment> read_worker_environment();
// For people, as /proc/cpuinfo names it.
std::string cpu_model();

}  // namespace rubato::worker
