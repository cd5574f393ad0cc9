#include "tests/integration/coordinator/fuse_folder.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

namespace rubato {
namespace {

using Answer = FuseFolder::Answer;

template <typename T>
T read_as(const char* body) {
  T value;
  std::memcpy(&value, body, sizeof value);
  return value;
}

template <typename T>
std::string bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};  // NOLINT(*-reinterpret-cast)
}

Answer failed(int error = errno) { return {.error = error, .bytes = {}}; }
Answer done(bool is_done) { return is_done ? Answer{} : failed(); }
int fd_in(std::uint64_t handle) { return static_cast<int>(handle); }

fuse_attr attributes_of(const struct stat& about, std::uint64_t node) {
  fuse_attr out{};
  out.ino = node;
  out.size = static_cast<std::uint64_t>(about.st_size);
  out.blocks = static_cast<std::uint64_t>(about.st_blocks);
  out.mtime = static_cast<std::uint64_t>(about.st_mtim.tv_sec);
  out.mtimensec = static_cast<std::uint32_t>(about.st_mtim.tv_nsec);
  out.atime = out.ctime = out.mtime;
  out.atimensec = out.ctimensec = out.mtimensec;
  out.mode = about.st_mode;
  out.nlink = static_cast<std::uint32_t>(about.st_nlink);
  out.uid = about.st_uid;
  out.gid = about.st_gid;
  out.blksize = 4096;
  return out;
}

Answer initial(const fuse_init_in& in) {
  fuse_init_out out{};
  out.major = FUSE_KERNEL_VERSION;
  out.minor = FUSE_KERNEL_MINOR_VERSION;
  out.max_readahead = in.max_readahead;
  out.flags = in.flags & (FUSE_ATOMIC_O_TRUNC | FUSE_BIG_WRITES | FUSE_MAX_PAGES);
  out.max_write = FuseFolder::kWriteBytes;
  out.max_pages = FuseFolder::kWriteBytes / 4096;
  out.time_gran = 1;
  return {.bytes = bytes_of(out)};
}

Answer opened(int fd) {
  if (fd < 0) return failed();
  fuse_open_out out{};
  out.fh = static_cast<std::uint64_t>(fd);
  return {.bytes = bytes_of(out)};
}

Answer room(int fd) {
  struct statvfs about{};
  if (::fstatvfs(fd, &about) != 0) return failed();
  fuse_statfs_out out{};
  out.st.blocks = about.f_blocks;
  out.st.bfree = about.f_bfree;
  out.st.bavail = about.f_bavail;
  out.st.files = about.f_files;
  out.st.ffree = about.f_ffree;
  out.st.bsize = static_cast<std::uint32_t>(about.f_bsize);
  out.st.frsize = static_cast<std::uint32_t>(about.f_frsize);
  out.st.namelen = static_cast<std::uint32_t>(about.f_namemax);
  return {.bytes = bytes_of(out)};
}

}  // namespace

Result<FuseFolder> FuseFolder::open(const std::filesystem::path& folder) {
  FuseFolder made;
  const int fd = ::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return Error(Code::kNotFound, folder.string() + ": " + std::strerror(errno));
  made.inodes_[FUSE_ROOT_ID] = {fd, 1};
  return made;
}

FuseFolder::FuseFolder(FuseFolder&& other) noexcept : inodes_(std::exchange(other.inodes_, {})) {}

FuseFolder::~FuseFolder() {
  for (const auto& [node, inode] : inodes_) ::close(inode.fd);
}

int FuseFolder::fd_of(std::uint64_t node) const {
  const auto found = inodes_.find(node);
  return found == inodes_.end() ? -1 : found->second.fd;
}

std::string FuseFolder::path_of(std::uint64_t node) const {
  return fmt::format("/proc/self/fd/{}", fd_of(node));
}

void FuseFolder::forget(std::uint64_t node, std::uint64_t lookups) {
  const auto found = inodes_.find(node);
  if (node == FUSE_ROOT_ID || found == inodes_.end()) return;
  if (found->second.lookups > lookups) {
    found->second.lookups -= lookups;
    return;
  }
  ::close(found->second.fd);
  inodes_.erase(found);
}

bool FuseFolder::needs_space(const fuse_in_header& head) {
  return head.opcode == FUSE_WRITE || head.opcode == FUSE_CREATE || head.opcode == FUSE_MKDIR;
}

bool FuseFolder::is_touched_by_faults(const fuse_in_header& head, const char* body) const {
  switch (head.opcode) {
    case FUSE_INIT:
    case FUSE_DESTROY:
    case FUSE_INTERRUPT:
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_RELEASE:
    case FUSE_RELEASEDIR:
    case FUSE_READLINK:
      return false;
    case FUSE_LOOKUP: {
      struct stat about{};
      return ::fstatat(fd_of(head.nodeid), body, &about, AT_SYMLINK_NOFOLLOW) != 0 ||
             !S_ISLNK(about.st_mode);
    }
    default:
      return true;
  }
}

// The kernel knows the name from now on, until it forgets it.
Answer FuseFolder::entry(std::uint64_t parent, const char* name) {
  const int fd = ::openat(fd_of(parent), name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return failed();
  struct stat about{};
  if (::fstat(fd, &about) != 0) {
    const int error = errno;
    ::close(fd);
    return failed(error);
  }
  Inode& inode = inodes_[about.st_ino];  // held open, so that nobody else gets its number
  if (inode.fd >= 0)
    ::close(fd);
  else
    inode.fd = fd;
  ++inode.lookups;
  fuse_entry_out out{};
  out.nodeid = about.st_ino;
  out.attr = attributes_of(about, about.st_ino);
  return {.bytes = bytes_of(out)};
}

Answer FuseFolder::attributes(std::uint64_t node) const {
  struct stat about{};
  if (::fstat(fd_of(node), &about) != 0) return failed();
  fuse_attr_out out{};
  out.attr = attributes_of(about, node);
  return {.bytes = bytes_of(out)};
}

Answer FuseFolder::set_attributes(std::uint64_t node, const fuse_setattr_in& in) const {
  const std::string path = path_of(node);
  if ((in.valid & FATTR_SIZE) != 0 && ::truncate(path.c_str(), static_cast<off_t>(in.size)) != 0)
    return failed();
  if ((in.valid & FATTR_MODE) != 0 && ::chmod(path.c_str(), in.mode & 07777) != 0) return failed();
  return attributes(node);
}

Answer FuseFolder::create(std::uint64_t parent, const char* body) {
  const auto in = read_as<fuse_create_in>(body);
  const char* const name = body + sizeof in;
  const int flags = static_cast<int>(in.flags) | O_CREAT | O_CLOEXEC | O_NOFOLLOW;
  const int fd = ::openat(fd_of(parent), name, flags, in.mode);
  if (fd < 0) return failed();
  Answer known = entry(parent, name);
  if (known.error != 0) {
    ::close(fd);
    return known;
  }
  known.bytes += opened(fd).bytes;
  return known;
}

Answer FuseFolder::rename(std::uint64_t parent, std::uint64_t other, unsigned flags,
                          const char* names) const {
  const char* const to = names + std::strlen(names) + 1;
  return done(::renameat2(fd_of(parent), names, fd_of(other), to, flags) == 0);
}

// The entry after the one that the offset names.
Answer FuseFolder::list(const fuse_read_in& in) const {
  Answer answer;
  const int fd = ::openat(fd_in(in.fh), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const folder = fd >= 0 ? ::fdopendir(fd) : nullptr;
  if (folder == nullptr) return failed();
  if (in.offset != 0) ::seekdir(folder, static_cast<long>(in.offset));
  while (const dirent* const each = ::readdir(folder)) {
    const std::string_view name = each->d_name;
    fuse_dirent out{};
    out.ino = each->d_ino;
    out.off = static_cast<std::uint64_t>(::telldir(folder));
    out.namelen = static_cast<std::uint32_t>(name.size());
    out.type = each->d_type;
    std::string bytes = bytes_of(out).substr(0, FUSE_NAME_OFFSET) + std::string(name);
    bytes.resize(FUSE_DIRENT_ALIGN(bytes.size()));
    if (answer.bytes.size() + bytes.size() > in.size) break;
    answer.bytes += bytes;
  }
  ::closedir(folder);
  return answer;
}

// What is asked of an open file.
Answer FuseFolder::of_files(const fuse_in_header& head, const char* body) {
  switch (head.opcode) {
    case FUSE_READ: {
      const auto in = read_as<fuse_read_in>(body);
      Answer answer{.bytes = std::string(in.size, '\0')};
      const auto got =
          ::pread(fd_in(in.fh), answer.bytes.data(), in.size, static_cast<off_t>(in.offset));
      if (got < 0) return failed();
      answer.bytes.resize(static_cast<std::size_t>(got));
      return answer;
    }
    case FUSE_WRITE: {
      const auto in = read_as<fuse_write_in>(body);
      const auto put =
          ::pwrite(fd_in(in.fh), body + sizeof in, in.size, static_cast<off_t>(in.offset));
      if (put < 0) return failed();
      fuse_write_out out{};
      out.size = static_cast<std::uint32_t>(put);
      return {.bytes = bytes_of(out)};
    }
    case FUSE_FSYNC:
    case FUSE_FSYNCDIR:
      return done(::fsync(fd_in(read_as<fuse_fsync_in>(body).fh)) == 0);
    case FUSE_RELEASE:
    case FUSE_RELEASEDIR:
      return done(::close(fd_in(read_as<fuse_release_in>(body).fh)) == 0);
    case FUSE_FLUSH:
      return {};
    default:
      return failed(ENOSYS);
  }
}

// What is asked of names and inodes.
Answer FuseFolder::of_names(const fuse_in_header& head, const char* body) {
  const int fd = fd_of(head.nodeid);
  switch (head.opcode) {
    case FUSE_LOOKUP:
      return entry(head.nodeid, body);
    case FUSE_GETATTR:
      return attributes(head.nodeid);
    case FUSE_SETATTR:
      return set_attributes(head.nodeid, read_as<fuse_setattr_in>(body));
    case FUSE_READLINK: {
      char target[4096];
      const auto size = ::readlinkat(fd, "", target, sizeof target);
      return size < 0 ? failed() : Answer{.bytes = {target, static_cast<std::size_t>(size)}};
    }
    case FUSE_MKDIR: {
      const auto in = read_as<fuse_mkdir_in>(body);
      const char* const name = body + sizeof in;
      return ::mkdirat(fd, name, in.mode) == 0 ? entry(head.nodeid, name) : failed();
    }
    case FUSE_UNLINK:
      return done(::unlinkat(fd, body, 0) == 0);
    case FUSE_RMDIR:
      return done(::unlinkat(fd, body, AT_REMOVEDIR) == 0);
    case FUSE_RENAME: {
      const auto in = read_as<fuse_rename_in>(body);
      return rename(head.nodeid, in.newdir, 0, body + sizeof in);
    }
    case FUSE_RENAME2: {
      const auto in = read_as<fuse_rename2_in>(body);
      return rename(head.nodeid, in.newdir, in.flags, body + sizeof in);
    }
    case FUSE_OPEN: {
      const auto in = read_as<fuse_open_in>(body);
      const int flags = static_cast<int>(in.flags) & ~(O_CREAT | O_EXCL | O_NOFOLLOW);
      return opened(::open(path_of(head.nodeid).c_str(), flags | O_CLOEXEC));
    }
    case FUSE_OPENDIR:
      return opened(::open(path_of(head.nodeid).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    case FUSE_CREATE:
      return create(head.nodeid, body);
    case FUSE_STATFS:
      return room(fd);
    default:
      return of_files(head, body);
  }
}

Answer FuseFolder::answer(const fuse_in_header& head, const char* body) {
  switch (head.opcode) {
    case FUSE_INIT:
      return initial(read_as<fuse_init_in>(body));
    case FUSE_FORGET:
      forget(head.nodeid, read_as<fuse_forget_in>(body).nlookup);
      return {.is_none = true};
    case FUSE_BATCH_FORGET: {
      const auto count = read_as<fuse_batch_forget_in>(body).count;
      const char* one = body + sizeof(fuse_batch_forget_in);
      for (std::uint32_t i = 0; i < count; ++i, one += sizeof(fuse_forget_one)) {
        const auto each = read_as<fuse_forget_one>(one);
        forget(each.nodeid, each.nlookup);
      }
      return {.is_none = true};
    }
    case FUSE_INTERRUPT:
      return {.is_none = true};
    case FUSE_READDIR:
      return list(read_as<fuse_read_in>(body));
    default:
      return of_names(head, body);
  }
}

}  // namespace rubato
