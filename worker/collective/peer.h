// Who takes part in a generation, in plain values: the wire's words without the wire's headers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace rubato::worker {

// One worker process in its life: a restarted one has a higher incarnation.
struct WorkerName {
  std::string pod_uid;
  std::uint32_t slot = 0;
  std::uint64_t incarnation = 0;
  auto operator<=>(const WorkerName&) const = default;
};
std::string to_string(const WorkerName& name);  // "4f0c…/0#2": pod uid / slot # incarnation

struct Peer {
  WorkerName name;
  std::string host;  // an IP address
  std::uint16_t port = 0;
  bool operator==(const Peer&) const = default;
};

// An ordered list of workers; rank = index.
struct Membership {
  std::uint64_t generation = 0;
  std::vector<Peer> members;
  std::uint32_t rank = 0;       // of this process
  bool compare_states = false;  // before a checkpoint is begun
  std::string collective = {};  // DeviceCollectives::name() to add by; empty: links alone
  std::uint32_t size() const { return static_cast<std::uint32_t>(members.size()); }
};

}  // namespace rubato::worker
