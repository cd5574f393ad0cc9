#include "tests/integration/coordinator/attackers.h"

#include "common/check.h"
#include "common/rng.h"

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>
#include <utility>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace rubato::attack {
namespace {

sockaddr_in address(const char* host, std::uint16_t port) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(port);
  ::inet_pton(AF_INET, host, &at.sin_addr);
  return at;
}

}  // namespace

RawClients::~RawClients() { close(); }

void RawClients::close() {
  for (const int socket : sockets_) ::close(socket);
  sockets_.clear();
}

void RawClients::open(int count, const std::string& bytes) {
  for (int i = 0; i < count; ++i) {
    const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(socket >= 0);
    const sockaddr_in from = address(kAddress, 0);
    CHECK_EQ(::bind(socket, reinterpret_cast<const sockaddr*>(&from), sizeof from), 0);
    const sockaddr_in to = address("127.0.0.1", port_);
    if (::connect(socket, reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0) {
      ::close(socket);
      continue;
    }
    if (!bytes.empty())
      (void)!::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    sockets_.push_back(socket);
  }
}

void RawClients::say(const std::string& bytes) {
  for (const int socket : sockets_)
    (void)!::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

int RawClients::alive() const {
  int count = 0;
  for (const int socket : sockets_) {
    char said[4096];  // a farewell, maybe
    ssize_t got = 0;
    do got = ::recv(socket, said, sizeof said, MSG_DONTWAIT);
    while (got > 0);
    count += got < 0 && errno == EAGAIN ? 1 : 0;
  }
  return count;
}

std::string recorded(std::uint16_t port, const std::function<void(std::uint16_t)>& client) {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in here = address("127.0.0.1", 0);
  CHECK_EQ(::bind(listener, reinterpret_cast<const sockaddr*>(&here), sizeof here), 0);
  CHECK_EQ(::listen(listener, 1), 0);
  socklen_t size = sizeof here;
  CHECK_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(&here), &size), 0);
  std::string said;
  std::thread relay([&] {
    const int from = ::accept(listener, nullptr, nullptr);
    const int to = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in there = address("127.0.0.1", port);
    CHECK_EQ(::connect(to, reinterpret_cast<const sockaddr*>(&there), sizeof there), 0);
    for (bool open = true; open;) {
      pollfd both[2] = {{from, POLLIN, 0}, {to, POLLIN, 0}};
      CHECK(::poll(both, 2, -1) > 0);
      for (const auto& [in, out] : {std::pair(0, to), std::pair(1, from)}) {
        if (both[in].revents == 0) continue;
        char bytes[4096];
        const ssize_t got = ::recv(both[in].fd, bytes, sizeof bytes, 0);
        open = open && got > 0;
        if (got <= 0) continue;
        if (in == 0) said.append(bytes, static_cast<std::size_t>(got));
        (void)!::send(out, bytes, static_cast<std::size_t>(got), MSG_NOSIGNAL);
      }
    }
    ::close(from);
    ::close(to);
  });
  client(ntohs(here.sin_port));
  relay.join();
  ::close(listener);
  return said;
}

std::string garbage(std::uint64_t seed, std::size_t size) {
  Rng rng(seed);
  std::string bytes;
  while (bytes.size() < size) bytes += static_cast<char>(rng.next() & 0xff);
  return bytes;
}

std::string half_hello() {
  const char record[] = {22, 3, 1, 2, 0, 1, 0, 1, static_cast<char>(252), 3, 3};
  return {record, sizeof record};
}

std::vector<std::uint16_t> listening_ports(pid_t pid) {
  const std::filesystem::path proc = "/proc/" + std::to_string(pid);
  std::set<std::string> inodes;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(proc / "fd", ignored)) {
    const std::string target = std::filesystem::read_symlink(entry.path(), ignored).string();
    if (target.starts_with("socket:[")) inodes.insert(target.substr(8, target.size() - 9));
  }
  std::vector<std::uint16_t> ports;
  std::ifstream table(proc / "net/tcp");
  std::string line;
  std::getline(table, line);
  while (std::getline(table, line)) {
    std::istringstream words(line);
    std::string number, local, remote, state, queues, timer, retransmits, user, timeout, inode;
    words >> number >> local >> remote >> state >> queues >> timer >> retransmits >> user >>
        timeout >> inode;
    if (state != "0A" || !inodes.contains(inode)) continue;
    ports.push_back(
        static_cast<std::uint16_t>(std::stoul(local.substr(local.find(':') + 1), nullptr, 16)));
  }
  return ports;
}

std::size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::size_t total = 0;
  std::size_t resident = 0;
  file >> total >> resident;
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace rubato::attack
