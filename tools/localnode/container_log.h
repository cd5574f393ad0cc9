// ContainerLog: what a container prints, kept in a file, one line each with the time it came:
// "2026-11-21T08:00:00.123456Z text". One writer (the pod's runner), any number of readers (the log
// server). At most kLogBytesMax are kept; then the older half goes.
#pragma once

#include "common/executor.h"
#include "common/result.h"

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace rubato::localnode {

constexpr std::size_t kLogBytesMax = 64u << 20;
constexpr std::size_t kLogLineMax = 16u << 10;  // longer lines are cut into several

class ContainerLog {
 public:
  ContainerLog(Executor& executor, std::string path);
  ~ContainerLog();

  // Bytes as they come from the pipe.
  void append(std::string_view bytes);
  // No more will come: followers end.
  void finish();

  // Everything from `offset` on, whole lines, at most `limit` bytes; waits until there is some, the
  // log is finished (then nothing) or the deadline passes (then an empty string).
  std::optional<std::string> read(std::uint64_t& offset, std::size_t limit, MonoTime deadline);
  std::uint64_t size() const;
  // The offset at which the last `lines` lines begin.
  std::uint64_t tail(std::size_t lines) const;

 private:
  void write_line(std::string_view line);
  void trim();

  Executor& executor_;
  std::string path_;
  mutable std::mutex mutex_;
  std::unique_ptr<Condition> grown_;
  int fd_ = -1;
  std::uint64_t dropped_ = 0;  // bytes cut off at the front: offsets count from the very first
  std::uint64_t size_ = 0;     // bytes in the file
  std::string partial_;
  bool finished_ = false;
};

}  // namespace rubato::localnode
