// SimStream: bytes in order between two simulated processes, over the wires of a SimNetwork: seeded
// delay, cuts, resets; a crash ends the peer's side after one delay. Nonblocking, with one wait for
// several streams. What is in flight and unread together is bounded by kStreamWindow.
#pragma once

#include "common/testing/sim_network.h"

#include <memory>
#include <span>
#include <stop_token>
#include <string>

namespace rubato::testing {

constexpr std::size_t kStreamWindow = 256u << 10;

class SimStream;

struct StreamWait {
  SimStream* stream = nullptr;
  bool progress = true;  // that the last try_ that moved nothing may move something
  bool end = false;      // that the peer ended it
  bool ended = false;    // out, where `end` was asked for
};

class SimStream {
 public:
  struct Impl;  // opaque
  explicit SimStream(std::unique_ptr<Impl> impl);
  ~SimStream();
  SimStream(const SimStream&) = delete;
  SimStream& operator=(const SimStream&) = delete;

  // 0: nothing can be moved now. kUnavailable: the peer ended it and all was read; kCancelled: cut.
  Result<std::size_t> try_read(void* to, std::size_t bytes);
  Result<std::size_t> try_write(const void* from, std::size_t bytes);
  static void wait_among(std::span<StreamWait> waits, MonoTime deadline);
  void cut();
  bool is_cut() const;

 private:
  std::unique_ptr<Impl> impl_;
};

// One process's place on the network: one listening port, and dialling.
class SimStreams {
 public:
  SimStreams(std::shared_ptr<SimNetwork::Impl> network, SimProcess& process,
             const std::string& host);
  ~SimStreams();
  std::uint16_t port() const;
  // kTimeout at the deadline; kCancelled after close().
  Result<std::unique_ptr<SimStream>> accept(MonoTime deadline);
  void close();
  Result<std::unique_ptr<SimStream>> dial(const std::string& host, std::uint16_t port,
                                          MonoTime deadline, const std::stop_token& stop);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rubato::testing
