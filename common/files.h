// FileSystem: the only way to files whose loss, damage or delay must be survived: checkpoints, step
// records, token files. PosixFileSystem is the real one; in simulation SimDisk (common/testing)
// stands behind the same words, with power cuts, full and slow disks and flipped bits.
//
// Durability is what POSIX promises and no more: bytes survive a power cut after File::sync(), a
// name (created, renamed, removed) after sync_directory() of its directory.
//
// Errors: kNotFound: no such file or directory; kAlreadyExists; kExhausted: no space or quota is
// left; kDenied: this user may not, until somebody changes the permissions; kInvalid: no file can
// have this path, or what has it is no regular file (a folder, a pipe); kUnavailable: the device
// failed (EIO) or the system refused, in its words. Each names the path. Every call may block for
// as long as the disk takes.
//
// Thread: a FileSystem is thread-safe; a File belongs to one thread at a time.
#pragma once

#include "common/result.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace rubato {

enum class OpenMode {
  kRead,
  kCreate,  // write; empty if it was there
  kUpdate,  // read and write; made if it was not there, its bytes stay
};

// An open file. The destructor closes it; what the disk refuses then is told by nobody: sync()
// first.
class File {
 public:
  virtual ~File() = default;
  // How many bytes were read: fewer than asked for only at the end of the file.
  virtual Result<std::size_t> read_at(std::uint64_t offset, std::span<std::byte> to) = 0;
  // All of `bytes`, or an error after which any part of them may be written.
  virtual Status write_at(std::uint64_t offset, std::span<const std::byte> bytes) = 0;
  virtual Result<std::uint64_t> size() const = 0;
  virtual Status sync() = 0;
};

// The bytes of a whole file as memory, read-only. Any thread.
class FileView {
 public:
  virtual ~FileView() = default;
  virtual std::span<const std::byte> bytes() const = 0;
};

// Held until destroyed, or until the process that holds it ends.
class FileLock {
 public:
  virtual ~FileLock() = default;
};

struct FileStat {
  bool is_directory = false;
  std::uint64_t size = 0;  // bytes
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual Result<std::unique_ptr<File>> open(const std::string& path, OpenMode mode) = 0;
  virtual Result<std::shared_ptr<const FileView>> map(const std::string& path) = 0;
  virtual Result<FileStat> stat(const std::string& path) = 0;
  // Names in a directory but . and .., sorted.
  virtual Result<std::vector<std::string>> list(const std::string& path) = 0;
  // With its parents. Fine when it is there.
  virtual Status make_directories(const std::string& path) = 0;
  // A new directory `prefix` + six characters that no other has; its path.
  virtual Result<std::string> make_unique_directory(const std::string& prefix) = 0;
  virtual Status sync_directory(const std::string& path) = 0;
  // Takes the place of a file, or of an empty directory.
  virtual Status rename(const std::string& from, const std::string& to) = 0;
  // Of a file, or a directory with all in it. Fine when it is not there.
  virtual Status remove_all(const std::string& path) = 0;
  // Makes the file. kConflict: another process holds it.
  virtual Result<std::unique_ptr<FileLock>> lock(const std::string& path) = 0;
};

class PosixFileSystem : public FileSystem {
 public:
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
};

// For programs that write a real file beside (path + ".tmp") and rename: whether that replaces
// nothing but a file, and none of those that are read. kInvalid says what it would replace.
Status check_written(const std::string& path, std::span<const std::string> read);

// Of the directory that holds the name: "a/b" gives "a", "b" gives ".".
std::string parent_of(const std::string& path);
// Like FileSystem::make_directories, and so that all names that it makes last. Whoever else made
// the directory itself may not have synced its name: that is done here too, where the system allows
// it.
Status make_lasting_directories(FileSystem& files, const std::string& path);
// The whole file. kInvalid beyond `most` bytes.
Result<std::string> read_text(FileSystem& files, const std::string& path, std::size_t most);
// All that somebody gives by a path: of a file, of a pipe, or, for "-", of standard input. kInvalid
// beyond `most` bytes. A folder is an error, too.
Result<std::string> read_input(const std::string& path, std::size_t most);
// Writes beside (path + ".tmp"), syncs, renames: the path holds the old or the new text, never
// half. The name itself is durable after sync_directory().
Status replace_file(FileSystem& files, const std::string& path, std::string_view text);

}  // namespace rubato
