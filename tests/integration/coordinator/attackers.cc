#include "tests/integration/coordinator/attackers.h"

#include "common/check.h"
#include "common/rng.h"

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
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

int RawClients::alive() const {
  int count = 0;
  for (const int socket : sockets_) {
    char byte = 0;
    const ssize_t got = ::recv(socket, &byte, 1, MSG_DONTWAIT | MSG_PEEK);
    count += got > 0 || (got < 0 && errno == EAGAIN) ? 1 : 0;
  }
  return count;
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
