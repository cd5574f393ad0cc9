// LogServer: serves container logs as a kubelet does, so that `kubectl logs [-f]` works through any
// API server: GET /containerLogs/NAMESPACE/POD/CONTAINER?follow&tailLines&sinceSeconds&sinceTime&
// timestamps&limitBytes over TLS (with previous it is refused: no container is started again). With
// `client_authority`, only callers with a certificate signed by it are answered. One task per
// connection, at most kLogReadersMax; a caller that is silent or does not read for kLogCallerLimit
// is dropped, and so is a follower that has gone.
#pragma once

#include "common/executor.h"
#include "tools/localnode/node_agent.h"

#include <memory>
#include <string>

namespace rubato::localnode {

constexpr std::size_t kLogReadersMax = 64;
constexpr Duration kLogCallerLimit = 10s;  // for a handshake, a request, and to take what is sent

class LogServer {
 public:
  LogServer(Executor& executor, const NodeAgent& node, Duration limit = kLogCallerLimit);
  ~LogServer();  // drops all callers
  // Binds address:port (0: any). `client_authority`: PEM; empty: no client certificate is asked
  // for, allowed only on loopback addresses.
  Result<int> listen(const std::string& address, int port, const std::string& client_authority);
  void start();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rubato::localnode
