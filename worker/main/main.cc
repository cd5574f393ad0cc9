// rubato-worker: one process for one GPU (or slot). Started by the agent, which gives it a socket
// (RUBATO_AGENT_FD) and who it is; everything else comes as commands. RUBATO_DEVICE names what it
// computes on: cpu (the default), cuda (of the pod's GPUs the one with the number of its slot) or
// cuda:N. Exits 0 when retired, 1 when the agent is gone, 2 when the environment is wrong.
//
// `rubato-worker --device`, for people: opens that device, says which it is and exits 0, or says
// what is missing and exits 2.
#include "common/log.h"
#include "common/version.h"
#include "worker/collective/tls_link_network.h"
#include "worker/main/agent_link.h"
#include "worker/main/hooks.h"
#include "worker/main/worker_process.h"

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>

namespace rubato::worker {
namespace {

struct Environment {
  int agent_fd = -1;
  std::string job_uid;
  WorkerName self;
  std::string host;
  std::string secret_dir;
  std::string device;
};

std::string variable(const char* name, const char* fallback = "") {
  const char* value = std::getenv(name);
  return value == nullptr ? fallback : value;
}

std::uint32_t own_slot() {
  return static_cast<std::uint32_t>(std::atoi(variable("RUBATO_SLOT", "0").c_str()));
}

std::string own_device() { return device_of_slot(variable("RUBATO_DEVICE", "cpu"), own_slot()); }

Result<Environment> read_environment() {
  Environment environment;
  environment.agent_fd = std::atoi(variable("RUBATO_AGENT_FD", "-1").c_str());
  environment.job_uid = variable("RUBATO_JOB_UID");
  environment.self.pod_uid = variable("RUBATO_POD_UID");
  environment.self.slot = own_slot();
  environment.self.incarnation =
      std::strtoull(variable("RUBATO_INCARNATION", "1").c_str(), nullptr, 10);
  environment.host = variable("RUBATO_POD_IP", "127.0.0.1");
  environment.secret_dir = variable("RUBATO_SECRET_DIR");
  environment.device = own_device();
  if (environment.agent_fd < 0) return Error(Code::kInvalid, "RUBATO_AGENT_FD is not set");
  if (environment.job_uid.empty()) return Error(Code::kInvalid, "RUBATO_JOB_UID is not set");
  if (environment.self.pod_uid.empty()) return Error(Code::kInvalid, "RUBATO_POD_UID is not set");
  if (environment.secret_dir.empty()) return Error(Code::kInvalid, "RUBATO_SECRET_DIR is not set");
  return environment;
}

std::string cpu_model() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (!line.starts_with("model name")) continue;
    const std::size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown CPU";
}

int tell_device() {
  const auto device = make_hooks().open_device({.kind = own_device()});
  if (!device.ok()) {
    std::fprintf(stderr, "rubato-worker: %s\n", device.error().what().c_str());
    return 2;
  }
  std::printf("%s: %s\n", (*device)->name().c_str(), (*device)->fingerprint().c_str());
  return 0;
}

int run(const Environment& environment) {
  auto network = TlsLinkNetwork::open({.job_uid = environment.job_uid,
                                       .bind_host = environment.host,
                                       .secret_dir = environment.secret_dir});
  if (!network.ok()) {
    LOG_ERROR("worker", "{}", network.error().to_string());
    return 2;
  }
  ThreadExecutor executor;
  PosixFileSystem files;
  AgentLink agent(environment.agent_fd);
  std::mutex output;
  WorkerProcess process({
      .executor = executor,
      .files = files,
      .network = std::move(network).value(),
      .job_uid = environment.job_uid,
      .self = environment.self,
      .host = environment.host,
      .cpu = cpu_model(),
      .device = environment.device,
      .send = [&](const std::string& event) { agent.send(event); },
      .print =
          [&](const std::string& line) {
            const std::lock_guard lock(output);
            std::fprintf(stdout, "%s\n", line.c_str());
            std::fflush(stdout);
          },
      .hooks = make_hooks(),
  });
  std::atomic<bool> agent_gone{false};
  std::thread control([&] {
    agent.run([&](const std::string& body) { process.command(body); }, [&] { process.beat(); },
              kBeat);
    agent_gone.store(true);
    process.leave("the agent is gone");
  });
  process.run();
  const int status = agent_gone.load() ? 1 : 0;
  agent.stop();
  control.join();
  return status;
}

}  // namespace
}  // namespace rubato::worker

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "--version") {
    std::puts(rubato::version_of("rubato-worker").c_str());
    return 0;
  }
  if (argc == 2 && std::string_view(argv[1]) == "--device") return rubato::worker::tell_device();
  // Ends come from the agent: a signal to the group must not take a member out of its round.
  std::signal(SIGTERM, SIG_IGN);
  std::signal(SIGINT, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
  const auto environment = rubato::worker::read_environment();
  if (!environment.ok()) {
    std::fprintf(stderr, "rubato-worker: %s\n", environment.error().what().c_str());
    return 2;
  }
  return rubato::worker::run(environment.value());
}
