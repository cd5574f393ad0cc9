// rubato-agent: PID 1 of a worker pod.
#include "common/command.h"
#include "common/executor.h"
#include "common/log.h"
#include "common/net/http_listener.h"
#include "common/net/tls_network.h"
#include "common/rng.h"
#include "common/stop_signals.h"
#include "common/version.h"
#include "worker/agent/agent.h"
#include "worker/agent/process_host.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <unistd.h>

namespace rubato::worker {
namespace {

constexpr const char* kHelp =
    R"(rubato-agent: PID 1 of a worker pod. Starts one rubato-worker per GPU and keeps them in touch with
the job's coordinator. It is configured by its environment, which the operator sets:

  RUBATO_JOB, RUBATO_JOB_UID            the job: namespace/name and uid
  RUBATO_POD_NAME, RUBATO_POD_UID       the pod
  RUBATO_POD_IP, RUBATO_NODE            where it runs
  RUBATO_SLOTS                          GPUs of this pod
  RUBATO_COORDINATORS                   host:port[,host:port…]: where the operator answers
  RUBATO_SECRET_DIR                     token, ca.crt, tls.crt, tls.key (/var/run/rubato/job)
  RUBATO_WORKER                         the worker program (default: beside this one)
  RUBATO_COMMAND, RUBATO_MAX_RESTARTS   a person's program in its place, as a JSON list; then the
                                        worker program is rubato-script, which starts it
  RUBATO_RUNTIME                        spec.runtime of such a job. With pytorch the program is the
                                        worker: it is started itself
  RUBATO_GRACE_SECONDS                  the pod's terminationGracePeriodSeconds (60)
  RUBATO_METRICS_PORT                   where /metrics is served at the pod's address (nowhere)

It ends with 0 when its workers were retired, with 143 when SIGTERM's grace ran out.
)";

constexpr const char* kQuoted =
    "\nA $(NAME) in the command of the template stands for a value with a quote, a backslash or a "
    "line break. Set the value in env, and let the script read it from there.";

Result<std::string> required(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') {
    return Error(Code::kInvalid,
                 std::string(name) + " is not set; the operator sets it in worker pods");
  }
  return std::string(value);
}

std::string optional(const char* name, const std::string& fallback) {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? fallback : value;
}

// Whether the person's program is the worker.
bool is_worker_itself() { return optional("RUBATO_RUNTIME", "") == "pytorch"; }

// What each worker is started as.
Result<std::vector<std::string>> worker_command(bool runs_program) {
  if (is_worker_itself()) {
    TRY(const std::string text, required("RUBATO_COMMAND"));
    const auto command = parse_command(text);
    if (command.ok()) return command;
    return Error(Code::kInvalid, "RUBATO_COMMAND: " + command.error().what() + kQuoted);
  }
  const std::string beside =
      std::filesystem::read_symlink("/proc/self/exe").parent_path().string() +
      (runs_program ? "/rubato-script" : "/rubato-worker");
  return std::vector{optional("RUBATO_WORKER", beside)};
}

Result<std::string> read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return Error(Code::kNotFound, "cannot read " + path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

Result<AgentCredentials> read_credentials(const std::string& folder) {
  AgentCredentials credentials;
  TRY(credentials.token, read_file(folder + "/token"));
  TRY(credentials.tls.authority, read_file(folder + "/ca.crt"));
  TRY(credentials.tls.certificate, read_file(folder + "/tls.crt"));
  TRY(credentials.tls.private_key, read_file(folder + "/tls.key"));
  credentials.tls.peer_name = "rubato-operator";
  return credentials;
}

Result<AgentConfig> config_from_environment() {
  AgentConfig config;
  TRY(config.job, required("RUBATO_JOB"));
  TRY(config.job_uid, required("RUBATO_JOB_UID"));
  TRY(config.pod_name, required("RUBATO_POD_NAME"));
  TRY(config.pod_uid, required("RUBATO_POD_UID"));
  config.node = optional("RUBATO_NODE", "");
  config.slots =
      static_cast<std::uint32_t>(std::max(1, std::atoi(optional("RUBATO_SLOTS", "1").c_str())));
  config.grace = grace_of(
      std::chrono::seconds(std::max(0, std::atoi(optional("RUBATO_GRACE_SECONDS", "60").c_str()))));
  config.is_script = is_worker_itself();
  config.runs_program = !optional("RUBATO_COMMAND", "").empty() && !config.is_script;
  config.seed = random_seed();
  TRY(const std::string list, required("RUBATO_COORDINATORS"));
  std::stringstream parts(list);
  for (std::string part; std::getline(parts, part, ',');) {
    TRY(net::Endpoint endpoint, net::parse_endpoint(part));
    config.coordinators.push_back(std::move(endpoint));
  }
  if (config.coordinators.empty()) return Error(Code::kInvalid, "RUBATO_COORDINATORS names nobody");
  config.credentials = [folder = optional("RUBATO_SECRET_DIR", "/var/run/rubato/job")] {
    return read_credentials(folder);
  };
  TRY_OK(config.credentials());
  return config;
}

// A pod trains on without them.
std::unique_ptr<net::HttpListener> serve_metrics(Executor& executor, const Agent& agent) {
  const int port = std::atoi(optional("RUBATO_METRICS_PORT", "0").c_str());
  if (port <= 0 || port > UINT16_MAX) return nullptr;
  auto listener = net::HttpListener::start(
      executor, {optional("RUBATO_POD_IP", "0.0.0.0"), static_cast<std::uint16_t>(port)},
      {{"/metrics", [&agent] {
          return net::HttpResponse{.body = agent.metrics_text(),
                                   .content_type = "text/plain; version=0.0.4; charset=utf-8"};
        }}});
  if (listener.ok()) return std::move(listener).value();
  LOG_WARNING("agent", "no metrics: {}", listener.error().to_string());
  return nullptr;
}

Result<int> run() {
  const StopSignals signals;
  ::signal(SIGPIPE, SIG_IGN);
  TRY(AgentConfig config, config_from_environment());
  TRY(std::vector<std::string> command, worker_command(config.runs_program));
  ThreadExecutor executor;
  net::TlsNetwork network(executor);
  ProcessHost host(executor, std::move(command));
  Agent agent(executor, network, host, std::move(config));
  const auto metrics = serve_metrics(executor, agent);
  int status = 0;
  Task task = executor.spawn("agent", [&](std::stop_token) {
    status = agent.run();
    ::kill(::getpid(), SIGINT);  // ends the wait below
  });
  while (signals.wait() == SIGTERM) agent.terminate();
  task.join();
  return status;
}

}  // namespace
}  // namespace rubato::worker

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "--version") {
    std::puts(rubato::version_of("rubato-agent").c_str());
    return 0;
  }
  if (argc > 1) {
    std::fputs(rubato::worker::kHelp, stdout);
    return 0;
  }
  const auto status = rubato::worker::run();
  if (status.ok()) return *status;
  std::fprintf(stderr, "rubato-agent: %s\n", status.error().what().c_str());
  return 2;
}
