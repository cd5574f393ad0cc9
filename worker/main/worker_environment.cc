#include "worker/main/worker_environment.h"

#include "worker/backend/device.h"
#include "worker/collective/tls_link_network.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <utility>

namespace rubato::worker {

namespace {

constexpr const char* kLinks = "links";
constexpr const char* kNccl = "nccl";

std::uint32_t own_slot() {
  return static_cast<std::uint32_t>(std::atoi(environment_variable("RUBATO_SLOT", "0").c_str()));
}

// As /proc/cpuinfo names it.
std::string cpu_model() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (!line.starts_with("model name")) continue;
    const std::size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown CPU";
}

}  // namespace

std::string environment_variable(const char* name, const char* fallback) {
  const char* value = std::getenv(name);
  return value == nullptr ? fallback : value;
}

std::string device_of_environment() {
  return device_of_slot(environment_variable("RUBATO_DEVICE", "cpu"), own_slot());
}

Result<WorkerEnvironment> read_worker_environment() {
  WorkerEnvironment environment;
  environment.agent_fd = std::atoi(environment_variable("RUBATO_AGENT_FD", "-1").c_str());
  environment.job_uid = environment_variable("RUBATO_JOB_UID");
  environment.self.pod_uid = environment_variable("RUBATO_POD_UID");
  environment.self.slot = own_slot();
  environment.self.incarnation =
      std::strtoull(environment_variable("RUBATO_INCARNATION", "1").c_str(), nullptr, 10);
  environment.host = environment_variable("RUBATO_POD_IP", "127.0.0.1");
  environment.secret_dir = environment_variable("RUBATO_SECRET_DIR");
  environment.device = device_of_environment();
  const std::string collective = environment_variable("RUBATO_COLLECTIVE", kLinks);
  environment.uses_device_collectives = collective == kNccl;
  if (!environment.uses_device_collectives && collective != kLinks)
    return Error(Code::kInvalid, "RUBATO_COLLECTIVE is '" + collective +
                                     "': links (encrypted; the default) or nccl");
  if (environment.agent_fd < 0) return Error(Code::kInvalid, "RUBATO_AGENT_FD is not set");
  if (environment.job_uid.empty()) return Error(Code::kInvalid, "RUBATO_JOB_UID is not set");
  if (environment.self.pod_uid.empty()) return Error(Code::kInvalid, "RUBATO_POD_UID is not set");
  if (environment.secret_dir.empty()) return Error(Code::kInvalid, "RUBATO_SECRET_DIR is not set");
  return environment;
}

Result<std::unique_ptr<LinkNetwork>> open_network(const WorkerEnvironment& environment) {
  TRY(std::unique_ptr<LinkNetwork> network,
      TlsLinkNetwork::open({.job_uid = environment.job_uid,
                            .bind_host = environment.host,
                            .secret_dir = environment.secret_dir}));
  return network;
}

WorkerParts parts_of(const WorkerEnvironment& environment, Executor& executor, FileSystem& files,
                     std::unique_ptr<LinkNetwork> network,
                     std::function<void(const std::string& event)> send) {
  return {
      .executor = executor,
      .files = files,
      .network = std::move(network),
      .job_uid = environment.job_uid,
      .self = environment.self,
      .host = environment.host,
      .cpu = cpu_model(),
      .device = environment.device,
      .send = std::move(send),
      .print =
          [](const std::string& line) {
            std::fprintf(stdout, "%s\n", line.c_str());
            std::fflush(stdout);
          },
      .make_factory = environment.uses_device_collectives ? make_device_factory : make_tcp_factory,
      .hooks = make_hooks(),
  };
}

}  // namespace rubato::worker
