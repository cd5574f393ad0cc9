// ProcessHost: workers as child processes. Each gets one end of a socket pair (fd number in
// RUBATO_AGENT_FD) on which frames of 4 bytes big-endian length and a protobuf message go both
// ways. Output of workers goes to our own stdout and stderr unchanged, the latter through us. Each
// has a process group of its own, which is killed with it, and at the latest when it has ended: the
// news of that comes behind the last of its frames. As PID 1 it also reaps orphans.
#pragma once

#include "common/executor.h"
#include "worker/agent/worker_host.h"

#include <memory>
#include <string>
#include <vector>

namespace rubato::worker {

constexpr std::size_t kFrameMax = 16u << 20;
constexpr int kSendLimitMs = 2000;

class ProcessHost : public WorkerHost {
 public:
  // `command`: the program, looked for in PATH where it has no '/', and its arguments.
  ProcessHost(Executor& executor, std::vector<std::string> command);
  ~ProcessHost() override;  // kills what still runs
  Status spawn(std::uint32_t slot, std::uint64_t incarnation) override;
  Status send(std::uint32_t slot, const std::string& command) override;
  void kill(std::uint32_t slot) override;
  Result<HostEvent> next(MonoTime deadline) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rubato::worker
