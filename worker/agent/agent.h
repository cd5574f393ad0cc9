// Agent: PID 1 of a worker pod. Starts one worker per slot, relays between them and the
// coordinator, sends heartbeats, starts crashed workers anew, obeys the fence of leader epochs, and
// leaves in order when told to. Without a coordinator it does nothing but look for one: training
// goes on and the agent never exits because of that. docs/protocol.md.
//
// Waits only through the Executor; runs unchanged in simulation.
#pragma once

#include "common/executor.h"
#include "common/net/channel.h"
#include "worker/agent/worker_host.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace rubato::worker {

// What the agent shows to the coordinator, and whom it trusts.
struct AgentCredentials {
  std::string token;
  net::TlsConfig tls;  // authority and peer_name "rubato-operator"
};

struct AgentConfig {
  std::string job;  // namespace/name, for logs
  std::string job_uid;
  std::string pod_name;
  std::string pod_uid;
  std::string node;
  std::uint32_t slots = 1;
  // A person's, in each slot, whose standing shows no state: told to leave, it is given time to
  // end.
  bool runs_program = false;
  // A person's script is the worker, which says nothing before it has made its Job.
  bool is_script = false;
  std::vector<net::Endpoint> coordinators;
  // Asked before each connection, for they are renewed while we run; when it fails, those before
  // are used.
  std::function<Result<AgentCredentials>()> credentials;
  Duration grace = 55s;  // after SIGTERM; then workers are killed
  std::uint64_t seed = 1;
};

// What of a pod's grace period is used to leave in order: the rest is for its end to be seen.
constexpr Duration grace_of(std::chrono::seconds grace_period) {
  return std::max<Duration>(grace_period - 5s, grace_period * 3 / 4);
}

constexpr auto kDialLimit = 2s;
constexpr auto kDialBackoffFirst = 50ms;
constexpr auto kDialBackoffMost = 1s;
constexpr auto kRestartBackoffFirst = 100ms;  // the first restart is at once
constexpr auto kRestartBackoffMost = 10s;
constexpr int kRestartsMax = 1000;  // of one slot; a policy above us gives up long before
constexpr auto kEndLimit = 5s;      // workers told to end are killed after this
constexpr auto kTellLimit = 10s;  // a pod whose workers failed for good waits for who may hear why

class Agent {
 public:
  Agent(Executor& executor, net::Network& network, WorkerHost& host, AgentConfig config);
  ~Agent();

  // Blocks until the pod's work is over. Returns the exit status: 0 after all workers were retired
  // or a Shutdown, 143 when terminate() ran out of grace, 1 when a worker cannot be kept alive.
  int run();
  // SIGTERM: announces a planned leave. From any task; returns at once.
  void terminate();
  // Its own and its workers' metrics, as agent_series.h has them. From any task; returns at once.
  std::string metrics_text() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rubato::worker
