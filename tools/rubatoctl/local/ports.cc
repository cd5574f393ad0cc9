#include "tools/rubatoctl/local/ports.h"

#include <algorithm>
#include <numeric>

#include <arpa/inet.h>
#include <fmt/core.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace rubato::ctl {
namespace {

constexpr int kNetworkFirst = 77;
constexpr int kNetworkLast = 250;
constexpr int kNodesLooked = 16;
constexpr int kKubeletPort = 10250;
constexpr int kClaimPort = 9999;  // of 127.x.255.254, as the integration tests claim theirs

// A socket bound to the address, or -1.
int bound(const std::string& ip, int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  if (::inet_pton(AF_INET, ip.c_str(), &address.sin_addr) != 1) return -1;
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  const int yes = 1;  // as servers do: a port in TIME_WAIT is free
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&  // NOLINT
      ::listen(fd, 1) == 0)
    return fd;
  ::close(fd);
  return -1;
}

}  // namespace

bool can_listen(const std::string& ip, int port) {
  const int fd = bound(ip, port);
  if (fd >= 0) ::close(fd);
  return fd >= 0;
}

Result<int> free_port() {
  const int fd = bound("127.0.0.1", 0);
  sockaddr_in address{};
  socklen_t size = sizeof address;
  const bool known =
      fd >= 0 && ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0;  // NOLINT
  if (fd >= 0) ::close(fd);
  if (!known) return Error(Code::kUnavailable, "no free port on 127.0.0.1");
  return static_cast<int>(ntohs(address.sin_port));
}

std::string node_address(int network, int number) {
  return fmt::format("127.{}.{}.1", network, number);
}

bool can_serve(int network, const std::vector<int>& numbers) {
  return std::ranges::all_of(
      numbers, [&](int number) { return can_listen(node_address(network, number), kKubeletPort); });
}

std::optional<NetworkClaim> NetworkClaim::of(int network) {
  const int fd = bound(fmt::format("127.{}.255.254", network), kClaimPort);
  if (fd < 0) return std::nullopt;
  return NetworkClaim(network, fd);
}

Result<NetworkClaim> NetworkClaim::free() {
  std::vector<int> numbers(kNodesLooked);
  std::iota(numbers.begin(), numbers.end(), 1);
  for (int network = kNetworkFirst; network <= kNetworkLast; ++network)
    if (auto claim = of(network); claim && can_serve(network, numbers)) return std::move(*claim);
  return Error(Code::kExhausted, "every network from 127.77 to 127.250 has a node");
}

NetworkClaim::~NetworkClaim() {
  if (bound_ >= 0) ::close(bound_);
}

}  // namespace rubato::ctl
