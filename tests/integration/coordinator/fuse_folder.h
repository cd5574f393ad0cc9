// FuseFolder: answers the kernel's FUSE requests from a folder: what a folder seen through a mount
// needs for files to be made, written, synced, mapped, renamed, listed and removed; no more (no
// links, no locks, no attributes beyond size and mode). Nothing is cached: several views of one
// folder agree. One thread at a time.
#pragma once

#include "common/result.h"

#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include <linux/fuse.h>

namespace rubato {

class FuseFolder {
 public:
  static constexpr std::size_t kWriteBytes = 128u << 10;  // the most in one request
  static constexpr std::size_t kRequestBytes = kWriteBytes + 4096;

  struct Answer {
    int error = 0;  // errno, positive
    std::string bytes;
    bool is_none = false;  // the kernel waits for none
  };

  static Result<FuseFolder> open(const std::filesystem::path& folder);
  FuseFolder(FuseFolder&& other) noexcept;
  ~FuseFolder();

  Answer answer(const fuse_in_header& head, const char* body);
  // Not what the kernel forgets or closes, nor a symbolic link.
  bool is_touched_by_faults(const fuse_in_header& head, const char* body) const;
  static bool needs_space(const fuse_in_header& head);

 private:
  struct Inode {
    int fd = -1;  // O_PATH
    std::uint64_t lookups = 0;
  };
  FuseFolder() = default;
  int fd_of(std::uint64_t node) const;
  std::string path_of(std::uint64_t node) const;  // through which its file is opened
  void forget(std::uint64_t node, std::uint64_t lookups);
  Answer entry(std::uint64_t parent, const char* name);
  Answer attributes(std::uint64_t node) const;
  Answer set_attributes(std::uint64_t node, const fuse_setattr_in& in) const;
  Answer create(std::uint64_t parent, const char* body);
  Answer rename(std::uint64_t parent, std::uint64_t other, unsigned flags, const char* names) const;
  Answer list(const fuse_read_in& in) const;
  Answer of_names(const fuse_in_header& head, const char* body);
  static Answer of_files(const fuse_in_header& head, const char* body);

  std::map<std::uint64_t, Inode> inodes_;  // by the kernel's number: the inode's, 1 for the root
};

}  // namespace rubato
