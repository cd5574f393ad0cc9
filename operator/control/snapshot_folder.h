// SnapshotFolder: what the scheduler decided on lately, one file a round, so that a decision can be
// made again with `rubatoctl plan`, and a bug report is one file. A round that sees what the round
// before it saw, but for the time, is not written. Files are named by their number,
// "round-000000042.json", which goes on where an earlier process stopped; beyond kSnapshotsKept the
// oldest goes.
//
// A snapshot is the scheduler's ClusterState: names of jobs, nodes and queues, sizes, and reasons.
// No Secret, no pod template, no token is in it.
//
// Thread: the scheduler's task, which waits for the disk: a tool to look closer, not to leave on. A
// disk that refuses is told in the log, once until it works again; nothing else suffers.
#pragma once

#include "common/files.h"
#include "scheduler/snapshot/snapshot.h"

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

namespace rubato::control {

constexpr std::size_t kSnapshotsKept = 100;

class SnapshotFolder {
 public:
  SnapshotFolder(FileSystem& files, std::string folder, std::size_t kept = kSnapshotsKept)
      : files_(files), folder_(std::move(folder)), kept_(kept) {}

  void add(const sched::Snapshot& snapshot);

 private:
  Status write(const std::string& text);
  Status look();  // what earlier processes left there

  FileSystem& files_;
  const std::string folder_;
  const std::size_t kept_;
  bool looked_ = false;
  bool told_ = false;  // of the failure that lasts
  std::uint64_t next_ = 1;
  std::deque<std::string> there_;        // names, oldest first
  std::optional<sched::Snapshot> last_;  // that was written, without time
};

}  // namespace rubato::control
