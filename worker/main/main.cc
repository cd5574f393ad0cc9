// rubato-worker: one process for one GPU (or slot). Started by the agent, which gives it a socket
// (RUBATO_AGENT_FD) and who it is; everything else comes as commands. RUBATO_DEVICE names what it
// computes on: cpu (the default), cuda (of the pod's GPUs the one with the number of its slot) or
// cuda:N. Exits 0 when retired, 1 when the agent is gone, 2 when the environment is wrong, 75
// (kStuckStatus) when its device is lost.
//
// `rubato-worker --device`, for people: opens that device, says which it is and exits 0, or says
// what is missing and exits 2.
#include "common/log.h"
#include "common/version.h"
#include "worker/main/agent_link.h"
#include "worker/main/hooks.h"
#include "worker/main/worker_environment.h"
#include "worker/main/worker_process.h"

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace rubato::worker {
namespace {

int tell_device() {
  const auto device = make_hooks().open_device({.kind = device_of_environment()});
  if (!device.ok()) {
    std::fprintf(stderr, "rubato-worker: %s\n", device.error().what().c_str());
    return 2;
  }
  std::printf("%s: %s\n", (*device)->name().c_str(), (*device)->fingerprint().c_str());
  return 0;
}

int run(const WorkerEnvironment& environment) {
  auto network = open_network(environment);
  if (!network.ok()) {
    LOG_ERROR("worker", "{}", network.error().to_string());
    return 2;
  }
  ThreadExecutor executor;
  PosixFileSystem files;
  AgentLink agent(environment.agent_fd);
  WorkerProcess process(parts_of(environment, executor, files, std::move(network).value(),
                                 [&](const std::string& event) { agent.send(event); }));
  std::atomic<bool> agent_gone{false};
  auto control = executor.try_spawn("control", [&](std::stop_token) {
    agent.run([&](const std::string& body) { process.command(body); }, [&] { process.beat(); },
              kBeat);
    agent_gone.store(true);
    process.leave("the agent is gone");
  });
  if (!control.ok()) {  // the agent starts another worker
    LOG_ERROR("worker", "{}", control.error().to_string());
    return 1;
  }
  const int lost = process.run();
  const int status = agent_gone.load() ? 1 : 0;
  agent.stop();
  control->join();
  if (lost != 0) std::_Exit(lost);  // giving memory back to such a device may never end
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
  const auto environment = rubato::worker::read_worker_environment();
  if (!environment.ok()) {
    std::fprintf(stderr, "rubato-worker: %s\n", environment.error().what().c_str());
    return 2;
  }
  return rubato::worker::run(environment.value());
}
