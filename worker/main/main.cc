// rubato-worker: one process for one GPU (or slot). Started by the agent, which gives it a socket
// (RUBATO_AGENT_FD) and who it is; everything else comes as commands. Exits 0 when retired, 1 when
// the agent is gone, 2 when the environment is wrong.
#include "common/log.h"
#include "worker/collective/tcp_communicator.h"
#include "worker/main/agent_link.h"
#include "worker/protocol/wire.pb.h"
#include "worker/step/model_replica.h"
#include "worker/step/step_engine.h"
#include "worker/step/training_config.h"

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

constexpr auto kBeat = 250ms;

struct Environment {
  int agent_fd = -1;
  std::string job_uid;
  WorkerName self;
  std::string host;
  std::string secret_dir;
  bool ledger = false;
};

std::string variable(const char* name, const char* fallback = "") {
  const char* value = std::getenv(name);
  return value == nullptr ? fallback : value;
}

Result<Environment> read_environment() {
  Environment environment;
  environment.agent_fd = std::atoi(variable("RUBATO_AGENT_FD", "-1").c_str());
  environment.job_uid = variable("RUBATO_JOB_UID");
  environment.self.pod_uid = variable("RUBATO_POD_UID");
  environment.self.slot =
      static_cast<std::uint32_t>(std::atoi(variable("RUBATO_SLOT", "0").c_str()));
  environment.self.incarnation =
      std::strtoull(variable("RUBATO_INCARNATION", "1").c_str(), nullptr, 10);
  environment.host = variable("RUBATO_POD_IP", "127.0.0.1");
  environment.secret_dir = variable("RUBATO_SECRET_DIR");
  environment.ledger = !variable("RUBATO_LEDGER").empty();
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

// "1-cpu/avx512_core/…" pins the instruction set: a better machine steps down to the job's.
std::string isa_of(const std::string& fingerprint) {
  const std::size_t at = fingerprint.find("cpu/");
  if (at == std::string::npos) return "auto";
  const std::size_t begin = at + 4;
  return fingerprint.substr(begin, fingerprint.find('/', begin) - begin);
}

Result<ConfiguredJob> configure(const Environment& environment, const std::string& training,
                                const std::string& pinned) {
  TRY(const TrainingConfig config, parse_training(training));
  ConfiguredJob job;
  if (!config.checkpoint_path.empty() && (environment.ledger || config.ledger)) {
    TRY(job.ledger,
        SampleLedger::open(fmt::format("{}/ledger/{}-{}-{}.jsonl", config.checkpoint_path,
                                       environment.self.pod_uid, environment.self.slot,
                                       environment.self.incarnation)));
  }
  ReplicaOptions options;
  options.isa = isa_of(pinned);
  options.ledger = job.ledger.get();
  TRY(job.replica, make_model_replica(config, options));
  job.plan.stop_steps = config.stop_steps;
  job.plan.evaluate_every = config.evaluate_every;
  job.plan.checkpoint_every = config.checkpoint_every;
  job.plan.has_checkpoints = !config.checkpoint_path.empty();
  if (job.plan.has_checkpoints) job.plan.export_path = config.checkpoint_path + "/steps.bin";
  return job;
}

int run(const Environment& environment) {
  LinkHubConfig hub_config;
  hub_config.job_uid = environment.job_uid;
  hub_config.self = environment.self;
  hub_config.bind_host = environment.host;
  hub_config.secret_dir = environment.secret_dir;
  auto hub = LinkHub::open(hub_config);
  if (!hub.ok()) {
    LOG_ERROR("worker", "{}", hub.error().to_string());
    return 2;
  }
  AgentLink agent(environment.agent_fd);
  std::mutex output;
  EngineParts parts{
      .self = environment.self,
      .host = environment.host,
      .hub = *hub.value(),
      .configure =
          [&](const std::string& training, const std::string& pinned) {
            return configure(environment, training, pinned);
          },
      .make_factory =
          [&](Device& device) {
            return std::make_unique<TcpCommunicatorFactory>(*hub.value(), device);
          },
      .emit = [&](const wire::WorkerEvent& event) { agent.send(event.SerializeAsString()); },
      .print =
          [&](const std::string& line) {
            const std::lock_guard lock(output);
            std::fprintf(stdout, "%s\n", line.c_str());
            std::fflush(stdout);
          },
      .cpu = cpu_model(),
      .faults = FaultPoints::from_environment(),
  };
  std::atomic<bool> agent_gone{false};
  StepEngine engine(std::move(parts));
  std::thread control([&] {
    agent.run(
        [&](const std::string& body) {
          wire::WorkerCommand command;
          if (command.ParseFromString(body)) engine.command(command);
        },
        [&] { engine.beat(); }, kBeat);
    agent_gone.store(true);
    engine.leave("the agent is gone");
  });
  engine.run();
  const int status = agent_gone.load() ? 1 : 0;
  agent.stop();
  control.join();
  return status;
}

}  // namespace
}  // namespace rubato::worker

int main() {
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
