// Operator: everything one replica runs, put together and started in the right order. The process
// (operator/main) gives it a real client, network and executor; the simulation gives it others.
//
// Start: coordinator's port (answers NOT_LEADER) → caches → election: who cannot see does not lead.
// Leading: coordinator, scheduler loop, job controller. Losing the Lease ends the replica: run()
// returns kExpired and the process exits, so that no half-leader is ever left. So does a leader
// that learns that its epoch is not above all others (its Lease was deleted, or restored from a
// backup, and records or agents name what came after), or that the API server's store went back in
// time under it: it gives the Lease back in order, and whoever leads next does so above all that is
// named, with nothing in memory that is not so any more.
#pragma once

#include "common/executor.h"
#include "common/metrics.h"
#include "common/net/channel.h"
#include "kube/client.h"
#include "kube/leader_election.h"
#include "operator/control/config.h"
#include "operator/control/installation.h"
#include "operator/control/scheduler_loop.h"
#include "operator/control/trust.h"
#include "operator/coordinator/coordinator.h"

#include <memory>
#include <string>

namespace rubato::control {

struct OperatorSettings {
  Config config;
  std::string ns = "rubato-system";  // of the Lease and the trust root
  // A Secret in `ns` with the authority that certificates are to be signed by; empty: our own.
  std::string authority_secret;
  CertificateTiming certificates;
  Installation installation;
  std::string identity;                // unique for this life of the process
  net::Endpoint coordinator_listen;    // where agents are answered
  std::string coordinator_advertised;  // "host:port" by which agents reach this replica
  kube::LeaseTiming lease;
  // How long a write of `client` may take (kube::RequestLimits::write_timeout); none is begun when
  // the Lease may end sooner. 0: a third of the Lease.
  Duration write_limit = 0s;
  coordinator::Timing timing;
  std::uint64_t seed = 1;  // of jitter
  RoundRecorder record;    // none: rounds are not recorded
};

constexpr auto kMetricsAge = 1s;

class Operator {
 public:
  // `lease_client`: for the Lease alone, so that renewals never queue behind slow requests; its
  // timeout should be at most half of LeaseTiming::renew.
  Operator(kube::Client& client, kube::Client& lease_client, Executor& executor,
           net::Network& network, Metrics& metrics, OperatorSettings settings);
  ~Operator();

  // Blocks until `stop` (ok, everything drained, the Lease given back) or until leadership is lost.
  Status run(const std::stop_token& stop);

  bool is_ready() const;    // caches synced
  bool is_healthy() const;  // the Lease is not overdue
  bool is_leader() const;
  std::int64_t epoch() const;  // the fencing token, see LeaderElector; 0 before it led
  // The text of /metrics: the registry, the process, and, of who leads, its jobs and queues. Made
  // anew at most once in kMetricsAge, however many ask; the text is shared by all of them.
  std::shared_ptr<const std::string> metrics_text();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rubato::control
