// Private to worker/collective: TCP sockets by numeric address, nonblocking, tuned for links.
#pragma once

#include "common/clock.h"
#include "common/result.h"
#include "worker/collective/tls_link.h"

#include <cstdint>
#include <string>

namespace rubato::worker {

// A descriptor that closes itself.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(other.release()) {}
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();
  int fd() const { return fd_; }
  int release();

 private:
  int fd_ = -1;
};

// TCP_NODELAY, TCP_USER_TIMEOUT and keep-alive of kDeadPeerLimit, kSocketBufferBytes each way.
void tune_socket(int fd);
// Listens; `port` 0 asks for a free one. The backlog holds what cannot be accepted yet.
Result<Socket> listen_tcp(const std::string& host, std::uint16_t port);
Result<std::uint16_t> local_port(int fd);
// The other side's address, in digits; empty: it has gone.
std::string peer_host(int fd);
// kUnavailable: refused or unreachable; kTimeout; kCancelled.
Result<Socket> connect_tcp(const std::string& host, std::uint16_t port, MonoTime deadline,
                           const StopSignal& cancel);

}  // namespace rubato::worker
