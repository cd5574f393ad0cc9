// SimNetwork: channels in virtual time with seeded delay and faults. Hosts are names (the host part
// of an Endpoint); each SimProcess lives on one host. TLS is not modelled: a dial with an empty
// authority, or a listener without a certificate, is still refused, so that code cannot forget it;
// so is a dial without a certificate where the listener demands one.
// Frames in flight and unread together are bounded as in production; a dial to a cut host or a
// frozen process tries again each second until its deadline, and is refused where nobody listens.
#pragma once

#include "common/net/channel.h"
#include "common/testing/sim_executor.h"

#include <memory>
#include <string>

namespace rubato::testing {

class SimStreams;

struct SimLink {
  Duration delay_min = 100us;
  Duration delay_max = 1ms;
};

class SimNetwork {
 public:
  struct Impl;  // opaque
  SimNetwork(SimExecutor& executor, std::uint64_t seed);
  ~SimNetwork();
  // The Network that `process` on `host` uses. When the process crashes, its channels close as seen
  // by peers (a reset after one delay) unless the host is cut; then peers see silence.
  std::unique_ptr<net::Network> attach(SimProcess& process, const std::string& host);
  // Where `process` on `host` has streams of bytes (sim_stream.h): the same wires and faults.
  std::unique_ptr<SimStreams> attach_streams(SimProcess& process, const std::string& host);
  void set_link(const SimLink& link);
  // From now on what is written to a stream moves at most so many bytes at once, as congested
  // sockets do; 0: as many as there is room for.
  void set_pieces(std::size_t most);
  // Cuts a host from all others: frames in flight and later ones are held, not lost; heal()
  // delivers them. Connections stay open meanwhile (TCP without keep-alive).
  void cut(const std::string& host);
  void heal(const std::string& host);
  void cut_pair(const std::string& a, const std::string& b);
  void heal_pair(const std::string& a, const std::string& b);
  // Resets every connection of a host (both ends see kUnavailable).
  void reset_connections(const std::string& host);

 private:
  void end_with(SimProcess& process);
  std::shared_ptr<Impl> impl_;
};

}  // namespace rubato::testing
