// rubato-script: one process for one GPU (or slot) of a job whose runtime is a person's program.
// Started by the agent in the place of rubato-worker (RUBATO_COMMAND is set). Exits 0 when retired,
// 1 when the agent is gone, 2 when the environment is wrong; the program ends with it.
#include "common/command.h"
#include "common/log.h"
#include "common/version.h"
#include "worker/main/agent_link.h"
#include "worker/script/progress_log.h"
#include "worker/script/script_process.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include <unistd.h>

namespace rubato::worker {
namespace {

constexpr auto kTick = 20ms;

std::string variable(const char* name, const char* fallback = "") {
  const char* value = std::getenv(name);
  return value == nullptr ? fallback : value;
}

std::uint64_t number(const char* name, const char* fallback) {
  return std::strtoull(variable(name, fallback).c_str(), nullptr, 10);
}

// Null: no pattern says what is to be found in the program's output.
Result<std::unique_ptr<ProgressLog>> log_for(const std::string& pattern, const std::string& file) {
  if (pattern.empty()) return std::unique_ptr<ProgressLog>();
  auto parsed = ProgressPattern::parse(pattern);
  if (!parsed.ok()) return parsed.error().in("RUBATO_PROGRESS_PATTERN");
  ::setenv("PYTHONUNBUFFERED", "1", 0);  // or lines would come late, many at a time
  return ProgressLog::open(std::move(parsed).value(), file, STDOUT_FILENO);
}

int run() {
  const int fd = std::atoi(variable("RUBATO_AGENT_FD", "-1").c_str());
  auto command = parse_command(variable("RUBATO_COMMAND"));
  if (fd < 0 || variable("RUBATO_COMMAND").empty() || variable("RUBATO_POD_UID").empty()) {
    std::fputs(
        "rubato-script: RUBATO_AGENT_FD, RUBATO_POD_UID and RUBATO_COMMAND must be set; the agent "
        "sets them\n",
        stderr);
    return 2;
  }
  if (!command.ok()) {
    std::fprintf(stderr,
                 "rubato-script: RUBATO_COMMAND: %s\nA $(NAME) in the command of the template "
                 "stands for a value with a quote, a backslash or a line break. Set the value in "
                 "env, and let the script read it from there.\n",
                 command.error().what().c_str());
    return 2;
  }
  const SystemClock clock;
  const auto slot = static_cast<std::uint32_t>(number("RUBATO_SLOT", "0"));
  const std::string id = variable("RUBATO_POD_UID") + "-" + std::to_string(slot);
  const std::string folder = variable("TMPDIR", "/tmp");
  const Duration grace = std::chrono::seconds(number("RUBATO_GRACE_SECONDS", "60"));
  const std::string progress_file = folder + "/rubato-progress-" + id;
  auto log = log_for(variable("RUBATO_PROGRESS_PATTERN"), progress_file);
  PosixProgram program(log.ok() ? log->get() : nullptr);
  AgentLink agent(fd);
  ScriptProcess process(
      {.pod_uid = variable("RUBATO_POD_UID"),
       .slot = slot,
       .incarnation = number("RUBATO_INCARNATION", "1"),
       .host = variable("RUBATO_POD_IP", "127.0.0.1"),
       .command = std::move(command).value(),
       .problem = log.ok() ? "" : log.error().what(),
       .job_uid = variable("RUBATO_JOB_UID"),
       .restarts_most = number("RUBATO_MAX_RESTARTS", "0"),
       .error_file = folder + "/rubato-error-" + id,
       .progress_file = progress_file,
       .sets_threads = std::getenv("OMP_NUM_THREADS") == nullptr,
       .sets_nccl_errors = std::getenv("TORCH_NCCL_ASYNC_ERROR_HANDLING") == nullptr,
       .has_spares =
           variable("RUBATO_RUNTIME") == "torchrun" && variable("RUBATO_SPARES", "on") != "off",
       .end_limit = std::min<Duration>(kEndLimit, grace),
       .stop_limit = stop_limit_of(grace),
       .program = program,
       .send = [&](const std::string& event) { agent.send(event); }},
      clock.now());
  agent.run([&](const std::string& body) { process.command(clock.now(), body); },
            [&] {
              process.tick(clock.now());
              if (process.is_over()) agent.stop();
            },
            kTick);
  return process.is_over() ? 0 : 1;
}

}  // namespace
}  // namespace rubato::worker

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "--version") {
    std::puts(rubato::version_of("rubato-script").c_str());
    return 0;
  }
  // Ends come from the agent.
  std::signal(SIGTERM, SIG_IGN);
  std::signal(SIGINT, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
  return rubato::worker::run();
}
