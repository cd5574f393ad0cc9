// NodeDisks: one folder as each of some nodes sees it, so that a test can break the disk of one
// node or of all: full, slow, failing with EIO, and whole again. Each view is a FUSE mount that
// this process serves itself from /dev/fuse, so the programs under test need no part in it. What
// one node writes the others see at once; locks of files are each node's own.
//
// Needs root or a user namespace, and /dev/fuse. The mounts are in a mount namespace of this
// process, and go with its last process, however that ends. Thread-safe.
#pragma once

#include "common/result.h"

#include <chrono>
#include <filesystem>
#include <memory>
#include <vector>

namespace rubato {

enum class DiskState {
  kWhole,
  kFull,     // what needs space fails with ENOSPC, the rest goes on
  kSlow,     // every call takes kSlowDiskCall, one after the other
  kFailing,  // every call fails with EIO
};
constexpr std::chrono::milliseconds kSlowDiskCall{150};

class NodeDisks {
 public:
  // Moves the calling thread, and with it all threads it starts later, into a mount namespace:
  // before there are others. kDenied: this machine does not let us.
  static Status enter_mount_namespace();
  // kDenied: there is no /dev/fuse for us.
  static Status check_fuse();

  // `folder` is there; node n sees it at views[n], which is made. Symbolic links in it lead out of
  // the view: no fault reaches them, nor what is behind them.
  static Result<std::unique_ptr<NodeDisks>> open(const std::filesystem::path& folder,
                                                 const std::vector<std::filesystem::path>& views);
  // Whoever is still inside gets ENOTCONN.
  ~NodeDisks();
  NodeDisks(const NodeDisks&) = delete;
  NodeDisks& operator=(const NodeDisks&) = delete;

  void set(int node, DiskState state);
  void set_all(DiskState state);

 private:
  class View;
  NodeDisks() = default;
  std::vector<std::unique_ptr<View>> views_;
};

}  // namespace rubato
