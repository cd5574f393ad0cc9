// LinkHub: the one listening port of a worker process, and the place where its links begin. Each
// link is announced by a LinkHello (job, generation, from, to, purpose) inside mutual TLS and is
// refused below the fence. Links of generation g' are made beside those of g.
//
// An inbound link may come before this worker has heard of its generation: it waits here until
// await() asks for it, is fenced off, or the bound pushes the oldest out. Links with a purpose that
// has a server (serve()) go to it instead.
//
// Threads: one acceptor; each handshake runs in a task of its own, at most kPendingLinkHandshakes
// of them and half as many for one host. With all places taken, the oldest handshake of the host
// that has most makes room for a host that has fewer, unless all have few: so a slow or hostile
// client, of a few hosts, never delays others. All methods are thread-safe.
#pragma once

#include "common/executor.h"
#include "common/result.h"
#include "worker/collective/link_network.h"
#include "worker/collective/peer.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace rubato::worker {

constexpr auto kLinkHandshakeLimit = 5s;
constexpr std::size_t kPendingLinkHandshakes = 128;
constexpr std::size_t kPendingPerHost = kPendingLinkHandshakes / 2;  // beyond: closed at once
constexpr std::size_t kFewOfHost = 16;  // who has no more makes no room: a host has some workers
constexpr auto kRefusalLine = 1s;       // between two lines of the log about those turned away
constexpr std::size_t kWaitingLinks = 256;

struct LinkHubConfig {
  std::string job_uid;
  WorkerName self;
};

class LinkHub {
 public:
  LinkHub(Executor& executor, std::unique_ptr<LinkNetwork> network, LinkHubConfig config);
  ~LinkHub();

  std::uint16_t port() const;
  Executor& executor();

  // A link to `to`. Retries while the peer cannot be reached, until `deadline`. kExpired: the
  // generation is fenced here or there; kDenied: refused for good; kCancelled: `cancel`.
  Result<std::unique_ptr<Link>> dial(const Peer& to, std::uint64_t generation,
                                     const std::string& purpose, MonoTime deadline,
                                     std::stop_token cancel);
  // Does its hub answer? One try until `deadline`; no link is kept, here or there.
  bool probe(const Peer& to, MonoTime deadline, std::stop_token cancel);
  // The link that `from` dialled for (generation, purpose).
  Result<std::unique_ptr<Link>> await(const WorkerName& from, std::uint64_t generation,
                                      const std::string& purpose, MonoTime deadline);
  // Inbound links of `purpose` go to `handler`, in the handshake's thread: it must hand the link on
  // quickly. Before the first peer knows our port.
  using Handler =
      std::function<void(std::unique_ptr<Link>, const WorkerName& from, std::uint64_t generation)>;
  void serve(const std::string& purpose, Handler handler);

  // Refuses generations below `below` from now on and drops links that wait for them. Never lowers.
  void fence(std::uint64_t below);
  std::uint64_t fenced_below() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rubato::worker
