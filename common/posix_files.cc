#include "common/files.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace rubato {
namespace {

namespace fs = std::filesystem;

Code code_of(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return Code::kNotFound;
    case EEXIST:
    case ENOTEMPTY:
      return Code::kAlreadyExists;
    case ENOSPC:
    case EDQUOT:
      return Code::kExhausted;
    case EACCES:
    case EPERM:
      return Code::kDenied;
    case ENAMETOOLONG:
    case ELOOP:
      return Code::kInvalid;
    default:
      return Code::kUnavailable;
  }
}

Error failed(const std::string& doing, const std::string& path, int error = errno) {
  return {code_of(error), doing + " " + path + ": " + std::strerror(error)};
}

class PosixFile : public File {
 public:
  PosixFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  ~PosixFile() override { ::close(fd_); }

  Result<std::size_t> read_at(std::uint64_t offset, std::span<std::byte> to) override {
    std::size_t done = 0;
    while (done < to.size()) {
      const auto got =
          ::pread(fd_, to.data() + done, to.size() - done, static_cast<off_t>(offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return failed("reading", path_);
      if (got == 0) break;
      done += static_cast<std::size_t>(got);
    }
    return done;
  }

  Status write_at(std::uint64_t offset, std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const auto put = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) return failed("writing", path_);
      bytes = bytes.subspan(static_cast<std::size_t>(put));
      offset += static_cast<std::uint64_t>(put);
    }
    return ok();
  }

  Result<std::uint64_t> size() const override {
    struct stat about{};
    if (::fstat(fd_, &about) != 0) return failed("looking at", path_);
    return static_cast<std::uint64_t>(about.st_size);
  }

  Status sync() override {
    if (::fsync(fd_) != 0) return failed("syncing", path_);
    return ok();
  }

 private:
  const int fd_;
  const std::string path_;
};

class PosixView : public FileView {
 public:
  explicit PosixView(std::span<const std::byte> bytes) : bytes_(bytes) {}
  ~PosixView() override {
    if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());  // NOLINT
  }
  std::span<const std::byte> bytes() const override { return bytes_; }

 private:
  const std::span<const std::byte> bytes_;
};

class PosixLock : public FileLock {
 public:
  explicit PosixLock(int fd) : fd_(fd) {}
  ~PosixLock() override { ::close(fd_); }

 private:
  const int fd_;
};

int flags_of(OpenMode mode) {
  switch (mode) {
    case OpenMode::kRead:
      return O_RDONLY;
    case OpenMode::kCreate:
      return O_RDWR | O_CREAT | O_TRUNC;
    case OpenMode::kUpdate:
      return O_RDWR | O_CREAT;
  }
  return O_RDONLY;
}

// Nothing but a regular file has bytes at places. Opening never waits for the other end of a pipe.
Result<int> open_regular(const std::string& path, int flags) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK, 0644);
  if (fd < 0) return failed("opening", path);
  struct stat about{};
  if (::fstat(fd, &about) == 0 && S_ISREG(about.st_mode)) return fd;
  ::close(fd);
  return Error(Code::kInvalid, path + " is not a regular file");
}

}  // namespace

Result<std::unique_ptr<File>> PosixFileSystem::open(const std::string& path, OpenMode mode) {
  TRY(const int fd, open_regular(path, flags_of(mode)));
  return std::unique_ptr<File>(std::make_unique<PosixFile>(fd, path));
}

Result<std::shared_ptr<const FileView>> PosixFileSystem::map(const std::string& path) {
  TRY(const int fd, open_regular(path, O_RDONLY));
  struct stat about{};
  const bool known = ::fstat(fd, &about) == 0;
  const auto size = known ? static_cast<std::size_t>(about.st_size) : 0;
  void* base = size > 0 ? ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0) : nullptr;
  const int error = errno;
  ::close(fd);
  if (!known || base == MAP_FAILED) return failed("mapping", path, error);
  const std::span bytes(static_cast<const std::byte*>(base), size);
  return std::shared_ptr<const FileView>(std::make_shared<PosixView>(bytes));
}

Result<FileStat> PosixFileSystem::stat(const std::string& path) {
  struct stat about{};
  if (::stat(path.c_str(), &about) != 0) return failed("looking at", path);
  return FileStat{S_ISDIR(about.st_mode), static_cast<std::uint64_t>(about.st_size)};
}

Result<std::vector<std::string>> PosixFileSystem::list(const std::string& path) {
  std::error_code error;
  std::vector<std::string> names;
  for (auto entry = fs::directory_iterator(path, error); !error && entry != fs::end(entry);
       entry.increment(error))
    names.push_back(entry->path().filename().string());
  if (error) return failed("listing", path, error.value());
  std::ranges::sort(names);
  return names;
}

Status PosixFileSystem::make_directories(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) return failed("creating", path, error.value());
  return ok();
}

Result<std::string> PosixFileSystem::make_unique_directory(const std::string& prefix) {
  std::string path = prefix + "XXXXXX";
  if (::mkdtemp(path.data()) == nullptr) return failed("creating", path);
  return path;
}

Status PosixFileSystem::sync_directory(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return failed("opening", path);
  const int error = ::fsync(fd) == 0 ? 0 : errno;
  ::close(fd);
  if (error != 0) return failed("syncing", path, error);
  return ok();
}

Status PosixFileSystem::rename(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) return failed("renaming " + from + " to", to);
  return ok();
}

Status PosixFileSystem::remove_all(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) return failed("removing", path, error.value());
  return ok();
}

Result<std::unique_ptr<FileLock>> PosixFileSystem::lock(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return failed("opening", path);
  auto held = std::make_unique<PosixLock>(fd);
  if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return std::unique_ptr<FileLock>(std::move(held));
  if (errno == EWOULDBLOCK) return Error(Code::kConflict, path + " is locked by another process");
  return failed("locking", path);
}

Status check_written(const std::string& path, std::span<const std::string> read) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::file_status about = fs::status(path, error);
  if (fs::exists(about) && !fs::is_regular_file(about))
    return Error(Code::kInvalid, path + " is no regular file: name another one to write");
  for (const std::string& input : read)
    for (const std::string& written : {path, path + ".tmp"})
      if (fs::equivalent(input, written, error))
        return Error(Code::kInvalid, "writing " + path + " would replace " + input +
                                         ", which is read: name another one to write");
  return ok();
}

std::string parent_of(const std::string& path) {
  const std::size_t slash = path.find_last_of('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

Status make_lasting_directories(FileSystem& files, const std::string& path) {
  std::vector<std::string> made;
  for (std::string at = path; !files.stat(at).ok() && at != parent_of(at); at = parent_of(at))
    made.push_back(at);
  TRY_OK(files.make_directories(path));
  for (const std::string& directory : made) TRY_OK(files.sync_directory(parent_of(directory)));
  // A parent that was there, and that may be another's to read, is no reason to fail.
  if (made.empty()) (void)files.sync_directory(parent_of(path));
  return ok();
}

Result<std::string> read_text(FileSystem& files, const std::string& path, std::size_t most) {
  TRY(const auto file, files.open(path, OpenMode::kRead));
  TRY(const std::uint64_t size, file->size());
  if (size > most)
    return Error(Code::kInvalid, path + " has " + std::to_string(size) + " bytes, more than " +
                                     std::to_string(most));
  std::string text(size, '\0');
  TRY(const std::size_t got, file->read_at(0, std::as_writable_bytes(std::span(text))));
  text.resize(got);
  return text;
}

Result<std::string> read_input(const std::string& path, std::size_t most) {
  constexpr std::size_t kPart = 64u << 10;
  const bool is_standard = path == "-";
  const std::string name = is_standard ? "standard input" : path;
  const int fd = is_standard ? ::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0)
                             : ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return failed("opening", name);
  const PosixFile file(fd, name);  // closes it
  std::string text;
  for (;;) {
    const std::size_t size = text.size();
    text.resize(size + kPart);
    const auto got = ::read(fd, text.data() + size, kPart);
    if (got < 0 && errno != EINTR) return failed("reading", name);
    text.resize(size + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    if (got == 0) return text;
    if (text.size() > most)
      return Error(Code::kInvalid, name + " has more than " + std::to_string(most) + " bytes");
  }
}

Status replace_file(FileSystem& files, const std::string& path, std::string_view text) {
  const std::string beside = path + ".tmp";
  {
    TRY(const auto file, files.open(beside, OpenMode::kCreate));
    TRY_OK(file->write_at(0, std::as_bytes(std::span(text))));
    TRY_OK(file->sync());
  }
  return files.rename(beside, path);
}

}  // namespace rubato
