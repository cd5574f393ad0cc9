// Attackers: clients that mean harm, for the attack suite. They dial loopback from an address of
// their own, so that they are another host than the workers. All they open is closed with them.
#pragma once

#include "common/net/tls_network.h"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <sys/types.h>

namespace rubato::attack {

constexpr const char* kAddress = "127.0.0.2";

// TCP connections that say what they are told, and stay open.
class RawClients {
 public:
  explicit RawClients(std::uint16_t port) : port_(port) {}
  ~RawClients();
  RawClients(const RawClients&) = delete;
  RawClients& operator=(const RawClients&) = delete;
  // Opens `count` more, each of which sends `bytes` as far as they are taken.
  void open(int count, const std::string& bytes);
  // Each that is open sends them.
  void say(const std::string& bytes);
  void close();
  // How many the other side has not closed.
  int alive() const;

 private:
  const std::uint16_t port_;
  std::vector<int> sockets_;
};

// Bytes that are no TLS, the same for the same seed.
std::string garbage(std::uint64_t seed, std::size_t size);
// The beginning of a ClientHello that never ends.
std::string half_hello();

// All that `client` says to whom it dials: it is given a port that leads to `port`.
std::string recorded(std::uint16_t port, const std::function<void(std::uint16_t)>& client);

// Ports of 127.0.0.1 on which the process listens.
std::vector<std::uint16_t> listening_ports(pid_t pid);
std::size_t resident_bytes();  // of this process

}  // namespace rubato::attack
