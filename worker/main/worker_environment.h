// What the agent tells a worker by its environment, and the parts of a WorkerProcess that follow
// from it: for rubato-worker and for a script that trains by itself (worker/pytorch).
#pragma once

#include "common/executor.h"
#include "common/files.h"
#include "common/result.h"
#include "worker/collective/link_network.h"
#include "worker/collective/peer.h"
#include "worker/main/worker_process.h"

#include <functional>
#include <memory>
#include <string>

namespace rubato::worker {

struct WorkerEnvironment {
  int agent_fd = -1;
  std::string job_uid;
  WorkerName self;
  std::string host;        // where peers reach it
  std::string secret_dir;  // of the job's certificate
  std::string device;      // DeviceSpec::kind
  bool uses_device_collectives = false;
};

// A variable of the environment; `fallback` where it is not set.
std::string environment_variable(const char* name, const char* fallback = "");
// RUBATO_DEVICE, for this worker's slot.
std::string device_of_environment();
// kInvalid names the variable that the agent sets and is not there, or that has no such value.
Result<WorkerEnvironment> read_worker_environment();
// Opens its port: links with the job's certificate.
Result<std::unique_ptr<LinkNetwork>> open_network(const WorkerEnvironment& environment);
// Of a worker that has an operating system's process: the hooks that it is linked with (hooks.h),
// and lines on stdout.
WorkerParts parts_of(const WorkerEnvironment& environment, Executor& executor, FileSystem& files,
                     std::unique_ptr<LinkNetwork> network,
                     std::function<void(const std::string& event)> send);

}  // namespace rubato::worker
