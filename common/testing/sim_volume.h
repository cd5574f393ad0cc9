// Private to common/testing: what a SimVolume holds. Files have two contents, live (what a read
// gives) and durable, and know which blocks differ and who wrote them; names are a journal of
// operations, each durable or pending.
#pragma once

#include "common/testing/sim_disk.h"

#include <map>
#include <set>
#include <vector>

namespace rubato::testing {

struct SimNode;
using SimNodePtr = std::shared_ptr<SimNode>;

// A change of one name, as nodes come to see it.
struct SimNameChange {
  MonoTime at;
  std::string by;
  SimNodePtr node;  // null: the name is gone
};

struct SimName {
  std::vector<SimNameChange> changes;  // in order; the last is the present
  SimNodePtr durable;
  std::uint64_t durable_since = 0;  // the journal's number of the operation that made it so
};

struct SimNode {
  bool is_directory = false;
  std::map<std::string, SimName> names;  // of a directory
  std::vector<std::byte> live;           // of a file
  std::vector<std::byte> durable;
  std::map<std::uint64_t, std::string> dirty;  // block → the node that wrote it last
  std::string truncated_by;                    // emptied since the last sync; by nobody: ""

  void write(std::uint64_t offset, std::span<const std::byte> bytes, const std::string& by);
  void truncate(const std::string& by);
  void sync();
  // What `by` ("": anybody) did not sync is kept or lost.
  void lose_power(const std::string& by, Rng& rng);
};

// Create, rename or remove: parts happen together.
struct SimNameOperation {
  struct Part {
    SimNodePtr directory;
    std::string name;
    SimNodePtr node;  // null: removed
  };
  std::uint64_t number = 0;
  std::string by;
  std::vector<Part> parts;
};

constexpr std::size_t kNameHistory = 8;  // changes of a name that late nodes may still not see

struct SimVolume::Impl {
  Impl(SimExecutor& sim, std::uint64_t seed) : executor(sim), rng(seed) {
    root->is_directory = true;
  }

  // The node under a name as `by` sees it now; null: none.
  SimNodePtr look(const SimNode& directory, const std::string& name, const std::string& by) const;
  SimNodePtr find(const std::string& path, const std::string& by) const;
  void change(const std::string& by, std::vector<SimNameOperation::Part> parts);
  void sync_directory(const SimNodePtr& directory);
  void lose_power(const std::string& by);
  SimNodePtr make(bool is_directory);
  std::uint64_t used() const;

  SimExecutor& executor;
  Rng rng;
  SimDiskFaults faults;
  std::function<void(const std::string&)> watch;
  SimNodePtr root = std::make_shared<SimNode>();
  std::vector<std::weak_ptr<SimNode>> nodes;  // all that were ever made and may still matter
  std::vector<SimNameOperation> pending;      // in order
  std::uint64_t next_operation = 1;
  std::map<std::string, const void*> locks;  // path → the disk that holds it

 private:
  void make_durable(const SimNameOperation& operation);
};

std::vector<std::string> sim_path_parts(const std::string& path);

}  // namespace rubato::testing
