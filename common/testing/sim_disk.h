// SimDisk: a FileSystem in memory, for simulation. A SimVolume is what lasts: a disk of one node,
// or a volume that several nodes share. A SimDisk is how one process sees volumes, each mounted at
// a path; all else is kNotFound. Two nodes whose volumes differ are two SimVolumes.
//
// Durability is what FileSystem promises and no more. After lose_power() of a node, of what it
// wrote and did not sync the seed decides, for each file: nothing, all, a prefix of its blocks, or
// any subset of them; for names: nothing, all, the first few operations, or any of them. A rename
// is whole or not at all. SIGKILL of a process (SimProcess::crash) loses nothing.
//
// Everything runs on the executor's one thread. An operation waits (faults.delay) on its process's
// executor, so no mutex may be held across one. Equal seeds and equal operations give equal
// results.
#pragma once

#include "common/files.h"
#include "common/testing/sim_executor.h"

#include <functional>
#include <memory>
#include <string>

namespace rubato::testing {

constexpr std::size_t kSimBlockBytes = 4096;

// A plan changes these at any time (SimExecutor::at); operations that wait already go on waiting.
struct SimDiskFaults {
  Duration delay{0};    // each operation takes this long
  Duration jitter{0};   // and up to this much longer
  bool broken = false;  // every operation fails as EIO does: kUnavailable
  // Bytes of files that fit; a write beyond is kExhausted.
  std::uint64_t capacity = ~std::uint64_t{0};
  // A name that another node created, renamed or removed is seen this much later.
  Duration lag{0};
};

class SimVolume {
 public:
  struct Impl;  // opaque
  SimVolume(SimExecutor& executor, std::uint64_t seed);
  ~SimVolume();

  SimDiskFaults& faults();
  // What `node` wrote and did not sync is lost, as above; "": of all nodes. Its processes must have
  // crashed, or do nothing more.
  void lose_power(const std::string& node = "");
  // Bit `bit` of byte `byte` of a file, on the disk and in every cache. kNotFound; kInvalid: the
  // file is shorter.
  Status flip_bit(const std::string& path, std::uint64_t byte, int bit);
  // Called before each operation that changes something ("write /a/b", "sync /a/b", "rename …") of
  // any process, before faults are looked at: it may set them, or crash the process.
  void watch(std::function<void(const std::string& operation)> fn);
  std::uint64_t used() const;  // bytes of files

 private:
  friend class SimDisk;
  std::shared_ptr<Impl> impl_;
};

class SimDisk : public FileSystem {
 public:
  struct Impl;  // opaque
  // `node`: whose page cache the process writes into. Locks end with the process.
  SimDisk(SimProcess& process, std::string node);
  ~SimDisk() override;
  // `path` is a new root, "/" or "/data". The longest that fits a file's path is its volume.
  void mount(const std::string& path, SimVolume& volume);

  Result<std::unique_ptr<File>> open(const std::string& path, OpenMode mode) override;
  Result<std::shared_ptr<const FileView>> map(const std::string& path) override;
  Result<FileStat> stat(const std::string& path) override;
  Result<std::vector<std::string>> list(const std::string& path) override;
  Status make_directories(const std::string& path) override;
  Result<std::string> make_unique_directory(const std::string& prefix) override;
  Status sync_directory(const std::string& path) override;
  Status rename(const std::string& from, const std::string& to) override;
  Status remove_all(const std::string& path) override;
  Result<std::unique_ptr<FileLock>> lock(const std::string& path) override;

 private:
  std::shared_ptr<Impl> impl_;
};

}  // namespace rubato::testing
