#include "worker/collective/sockets.h"

#include "worker/collective/tls_link_network.h"
#include "worker/collective/tls_session.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace rubato::worker {

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = other.release();
  }
  return *this;
}
Socket::~Socket() {
  if (fd_ >= 0) ::close(fd_);
}
int Socket::release() { return std::exchange(fd_, -1); }

namespace {
void set_option(int fd, int level, int name, int value) {
  // Only tuning: a kernel that refuses one of them still carries the bytes.
  [[maybe_unused]] const int result = ::setsockopt(fd, level, name, &value, sizeof value);
}

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

Result<Addresses> resolve(const std::string& host, std::uint16_t port, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int failed = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (failed != 0) {
    return Error(Code::kInvalid, "address \"" + host + "\": " + ::gai_strerror(failed));
  }
  return Addresses(list);
}

Error system_error(const std::string& doing) {
  return Error(Code::kUnavailable, doing + ": " + std::strerror(errno));
}
std::string name_of_address(const std::string& host, std::uint16_t port) {
  return host + ":" + std::to_string(port);
}
}  // namespace

void tune_socket(int fd) {
  constexpr int kLimitS = static_cast<int>(std::chrono::seconds(kDeadPeerLimit).count());
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, kLimitS * 1000);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, kLimitS / 4);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, kLimitS / 4);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  set_option(fd, SOL_SOCKET, SO_SNDBUF, static_cast<int>(kSocketBufferBytes));
  set_option(fd, SOL_SOCKET, SO_RCVBUF, static_cast<int>(kSocketBufferBytes));
}

Result<Socket> listen_tcp(const std::string& host, std::uint16_t port) {
  TRY(const Addresses addresses, resolve(host, port, AI_PASSIVE));
  const addrinfo& at = *addresses;
  Socket socket(::socket(at.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket.fd() < 0) return system_error("socket");
  set_option(socket.fd(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (::bind(socket.fd(), at.ai_addr, at.ai_addrlen) != 0 ||
      ::listen(socket.fd(), SOMAXCONN) != 0) {
    return system_error("listening on " + name_of_address(host, port));
  }
  return socket;
}

Result<std::uint16_t> local_port(int fd) {
  sockaddr_storage at{};
  socklen_t size = sizeof at;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&at), &size) != 0) {
    return system_error("getsockname");
  }
  const std::uint16_t port = at.ss_family == AF_INET6
                                 ? reinterpret_cast<const sockaddr_in6&>(at).sin6_port
                                 : reinterpret_cast<const sockaddr_in&>(at).sin_port;
  return ntohs(port);
}

std::string peer_host(int fd) {
  sockaddr_storage at{};
  socklen_t size = sizeof at;
  std::array<char, NI_MAXHOST> host{};
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&at), &size) != 0 ||
      ::getnameinfo(reinterpret_cast<const sockaddr*>(&at), size, host.data(), host.size(), nullptr,
                    0, NI_NUMERICHOST) != 0) {
    return "";
  }
  return host.data();
}

Result<Socket> connect_tcp(const std::string& host, std::uint16_t port, MonoTime deadline,
                           const StopSignal& cancel) {
  const std::string name = "connecting to " + name_of_address(host, port);
  TRY(const Addresses addresses, resolve(host, port, 0));
  const addrinfo& to = *addresses;
  Socket socket(::socket(to.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket.fd() < 0) return system_error("socket");
  tune_socket(socket.fd());
  if (::connect(socket.fd(), to.ai_addr, to.ai_addrlen) == 0) return socket;
  if (errno != EINPROGRESS) return system_error(name);
  std::array<pollfd, 2> entries{pollfd{socket.fd(), POLLOUT, 0}, pollfd{cancel.fd(), POLLIN, 0}};
  const int ready = ::poll(entries.data(), entries.size(), poll_timeout_ms(deadline));
  if (cancel.is_stopped()) return Error(Code::kCancelled, name + ": cancelled");
  if (ready <= 0) return Error(Code::kTimeout, name + ": deadline");
  int failed = 0;
  socklen_t size = sizeof failed;
  ::getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &failed, &size);
  errno = failed;
  if (failed != 0) return system_error(name);
  return socket;
}

}  // namespace rubato::worker
