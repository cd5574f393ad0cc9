// Which addresses of this machine are free. Real sockets.
#pragma once

#include "common/result.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace rubato::ctl {

bool can_listen(const std::string& ip, int port);
// A port of 127.0.0.1 that nobody listens on now.
Result<int> free_port();
// Of the node of this number.
std::string node_address(int network, int number);
// Whether nodes of these numbers find their addresses free.
bool can_serve(int network, const std::vector<int>& numbers);

// A network 127.x.0.0/16 that this process alone means to use: a port of it is bound until this is
// destroyed or the process ends, whatever user's it is. The claim is for the time in which nodes
// start; then their own ports tell.
class NetworkClaim {
 public:
  // Empty: another process has it. Never waits.
  static std::optional<NetworkClaim> of(int network);
  // The first from 77 on in which no node answers. kExhausted.
  static Result<NetworkClaim> free();
  ~NetworkClaim();
  NetworkClaim(NetworkClaim&& other) noexcept
      : network_(other.network_), bound_(std::exchange(other.bound_, -1)) {}
  NetworkClaim& operator=(NetworkClaim&& other) noexcept {
    std::swap(network_, other.network_);
    std::swap(bound_, other.bound_);
    return *this;
  }
  NetworkClaim(const NetworkClaim&) = delete;
  NetworkClaim& operator=(const NetworkClaim&) = delete;

  int network() const { return network_; }  // the x

 private:
  NetworkClaim(int network, int bound) : network_(network), bound_(bound) {}
  int network_;
  int bound_;
};

}  // namespace rubato::ctl
