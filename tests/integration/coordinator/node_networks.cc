#include "tests/integration/coordinator/node_networks.h"

#include "common/check.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

namespace rubato {
namespace {

constexpr const char* kPrefix = "10.77.0.";
constexpr int kFirstNode = 11;

bool run(const std::string& command) {
  return std::system((command + " >/dev/null 2>&1").c_str()) == 0;
}

// Without being root: a user namespace in which we are.
bool enter_new_network() {
  if (::unshare(CLONE_NEWNET) == 0) return true;
  const auto uid = ::getuid();
  const auto gid = ::getgid();
  if (errno != EPERM || ::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return false;
  std::ofstream("/proc/self/setgroups") << "deny";
  std::ofstream("/proc/self/uid_map") << fmt::format("0 {} 1", uid);
  std::ofstream("/proc/self/gid_map") << fmt::format("0 {} 1", gid);
  return true;
}

}  // namespace

Result<std::unique_ptr<NodeNetworks>> NodeNetworks::open(int nodes) {
  auto networks = std::unique_ptr<NodeNetworks>(new NodeNetworks());
  if (!enter_new_network()) {
    return Error(Code::kDenied, std::string("a network namespace: ") + std::strerror(errno));
  }
  networks->hub_fd_ = ::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
  const bool made = run("ip link set lo up") && run("ip link add hub type bridge") &&
                    run(fmt::format("ip address add {}1/24 dev hub", kPrefix)) &&
                    run("ip link set hub up");
  if (!made) return Error(Code::kDenied, "`ip` cannot make a bridge here");
  for (int node = 0; node < nodes; ++node) {
    if (Status added = networks->add_node(node); !added.ok()) return added.error();
  }
  return networks;
}

// A child makes the node's network, holds it until it is wired, and goes.
Status NodeNetworks::add_node(int node) {
  int made[2];
  int wired[2];
  if (::pipe2(made, O_CLOEXEC) != 0 || ::pipe2(wired, O_CLOEXEC) != 0) {
    return Error(Code::kUnavailable, "pipe");
  }
  const pid_t child = ::fork();
  if (child == 0) {
    char byte = 0;
    const bool ok =
        ::unshare(CLONE_NEWNET) == 0 && ::write(made[1], "x", 1) == 1 &&
        ::read(wired[0], &byte, 1) == 1 && byte == 'y' && run("ip link set lo up") &&
        run(fmt::format("ip address add {}{}/24 dev eth0", kPrefix, kFirstNode + node)) &&
        run("ip link set eth0 up");
    ::_exit(ok ? 0 : 1);
  }
  ::close(made[1]);
  ::close(wired[0]);
  char byte = 0;
  bool ok = child > 0 && ::read(made[0], &byte, 1) == 1;
  if (ok) {
    nodes_.push_back(::open(fmt::format("/proc/{}/ns/net", child).c_str(), O_RDONLY | O_CLOEXEC));
    ok = run(fmt::format("ip link add n{} type veth peer name eth0 netns {}", node, child)) &&
         run(fmt::format("ip link set n{} master hub up", node));
  }
  [[maybe_unused]] const auto told = ::write(wired[1], ok ? "y" : "n", 1);
  ::close(made[0]);
  ::close(wired[1]);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (!ok || status != 0) return Error(Code::kDenied, "`ip` cannot make the network of a node");
  return rubato::ok();
}

NodeNetworks::~NodeNetworks() {
  for (const int fd : nodes_) ::close(fd);
  ::close(hub_fd_);
}

std::string NodeNetworks::hub() const { return std::string(kPrefix) + "1"; }

std::string NodeNetworks::address(int node) const {
  return kPrefix + std::to_string(kFirstNode + node);
}

void NodeNetworks::enter(int node) const {
  CHECK_EQ(::setns(nodes_.at(static_cast<std::size_t>(node)), CLONE_NEWNET), 0);
}

void NodeNetworks::enter_hub() const { CHECK_EQ(::setns(hub_fd_, CLONE_NEWNET), 0); }

void NodeNetworks::cut(int node) const { CHECK(run(fmt::format("ip link set n{} down", node))); }

// What the node sends there goes to an address that nobody has.
void NodeNetworks::lead_astray(int node, const std::vector<std::string>& addresses) const {
  enter(node);
  for (const std::string& to : addresses) {
    CHECK(run(fmt::format("ip neighbour replace {} lladdr 02:00:00:00:00:99 nud permanent dev eth0",
                          to)));
  }
  enter_hub();
}

void NodeNetworks::cut_from_hub(int node) const { lead_astray(node, {hub()}); }

void NodeNetworks::cut_from_nodes(int node) const {
  std::vector<std::string> others;
  for (int other = 0; other < size(); ++other)
    if (other != node) others.push_back(address(other));
  lead_astray(node, others);
}

void NodeNetworks::split(int at, int of) const {
  std::vector<std::string> sides[2];
  for (int node = 0; node < of; ++node) sides[node < at ? 0 : 1].push_back(address(node));
  for (int node = 0; node < of; ++node) lead_astray(node, sides[node < at ? 1 : 0]);
}

void NodeNetworks::heal(int node) const {
  CHECK(run(fmt::format("ip link set n{} up", node)));
  enter(node);
  CHECK(run("ip neighbour flush nud permanent dev eth0"));
  enter_hub();
}

}  // namespace rubato
