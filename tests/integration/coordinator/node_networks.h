// NodeNetworks: a network of its own for each of some nodes, joined by a bridge in one for this
// process, so that a test can pull a node's cable. Nothing leaves this machine, and the kernel
// takes all of it away with the last process inside, however that ends. Needs root or user
// namespaces, and `ip`. Not thread-safe.
#pragma once

#include "common/result.h"

#include <memory>
#include <string>
#include <vector>

namespace rubato {

class NodeNetworks {
 public:
  // Moves the calling thread, and with it all threads it starts later, into the hub's network:
  // before there are others. kDenied: this machine does not let us.
  static Result<std::unique_ptr<NodeNetworks>> open(int nodes);
  ~NodeNetworks();
  NodeNetworks(const NodeNetworks&) = delete;
  NodeNetworks& operator=(const NodeNetworks&) = delete;

  int size() const { return static_cast<int>(nodes_.size()); }
  std::string hub() const;              // address of this process
  std::string address(int node) const;  // of a node
  // What the calling thread starts from now on lives on the node, until enter_hub().
  void enter(int node) const;
  void enter_hub() const;
  // Nothing passes, and nobody is told, …
  void cut(int node) const;             // … either way
  void cut_from_hub(int node) const;    // … from the node to the hub
  void cut_from_nodes(int node) const;  // … from the node to the other nodes
  void split(int at, int of) const;     // … between nodes 0 … at-1 and at … of-1
  void heal(int node) const;            // of all of these

 private:
  NodeNetworks() = default;
  Status add_node(int node);
  void lead_astray(int node, const std::vector<std::string>& addresses) const;
  int hub_fd_ = -1;
  std::vector<int> nodes_;  // descriptors of their networks
};

}  // namespace rubato
