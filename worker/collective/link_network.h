// LinkNetwork: a worker process's place on the network: one listening port, and dialling. What it
// hands out are links whose peer has proved to be a worker of the same job. TlsLinkNetwork
// (tls_link_network.h) is the real one.
//
// Thread-safe; one thread accepts.
#pragma once

#include "worker/collective/link.h"

#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>

namespace rubato::worker {

// A connection that came in, before its peer has proved who it is.
class Arrival {
 public:
  virtual ~Arrival() = default;
  // kDenied: not a worker of this job; kTimeout; kCancelled: `stop`; kUnavailable.
  virtual Result<std::unique_ptr<Link>> secure(MonoTime deadline, std::stop_token stop) = 0;
  // The host that it comes from; empty: not known.
  virtual std::string source() const = 0;
};

class LinkNetwork {
 public:
  virtual ~LinkNetwork() = default;
  virtual std::uint16_t port() const = 0;
  // kTimeout at the deadline; kCancelled after close(); kExhausted: no descriptors are left.
  virtual Result<std::unique_ptr<Arrival>> accept(MonoTime deadline) = 0;
  // Ends accept(), for good.
  virtual void close() = 0;
  // `host`: an IP address. Errors as of Arrival::secure.
  virtual Result<std::unique_ptr<Link>> dial(const std::string& host, std::uint16_t port,
                                             MonoTime deadline, std::stop_token stop) = 0;
};

}  // namespace rubato::worker
