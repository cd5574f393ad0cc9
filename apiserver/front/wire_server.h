// WireServer: HTTPS/1.1 in front of a Router. One I/O thread with coroutines; a connection serves
// one request after another, a watch or a log stream until either side ends it. Wraps Boost.Beast.
//
// Bounds: kConnectionsMax connections (more are closed at once), kHeaderBytes, kBodyBytes (413;
// of a larger body kDiscardBytes are read and dropped, until none came for kDiscardPause),
// kRequestLimit to send a request once it has begun, kIdleLimit between requests, kWriteLimit for a
// slow reader (then it is cut off). Requests are handled one at a time.
#pragma once

#include "apiserver/front/router.h"
#include "common/clock.h"
#include "common/net/channel.h"

#include <functional>
#include <memory>

namespace rubato::apiserver {

constexpr std::size_t kConnectionsMax = 1024;
constexpr std::uint32_t kHeaderBytes = 64 * 1024;
constexpr std::uint64_t kBodyBytes = 3 * 1024 * 1024;  // as the real server
constexpr std::size_t kDiscardBytes = 64 * 1024 * 1024;
constexpr auto kDiscardPause = 2s;
constexpr auto kHandshakeLimit = 10s;
constexpr auto kRequestLimit = 60s;
constexpr auto kIdleLimit = 180s;
constexpr auto kWriteLimit = 30s;
constexpr std::size_t kWatchBatchBytes = 64 * 1024;

struct WireConfig {
  net::Endpoint listen{"127.0.0.1", 0};
  std::string certificate;  // PEM
  std::string private_key;
  // For the agents of nodes (logs): what we present, and whose certificates we accept; without an
  // authority any is accepted, as the real API server does by default.
  std::string agent_certificate;
  std::string agent_private_key;
  std::string agent_authority;
};

class WireServer {
 public:
  static Result<std::unique_ptr<WireServer>> start(const WireConfig& config, Router& router);
  ~WireServer();  // closes everything and joins the thread
  net::Endpoint local() const;

 private:
  struct Impl;
  explicit WireServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace rubato::apiserver
