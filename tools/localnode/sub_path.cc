#include "tools/localnode/sub_path.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace rubato::localnode {

namespace fs = std::filesystem;

namespace {

constexpr int kTriesMost = 64;  // while something is renamed on the way

// Without openat2, which an old kernel has not and a sandbox may refuse: no link is followed.
OpenPath walk(const OpenPath& volume, const fs::path& sub_path) {
  OpenPath at(::openat(volume.descriptor(), ".", O_PATH | O_CLOEXEC));
  for (const fs::path& part : sub_path) {
    OpenPath next(::openat(at.descriptor(), part.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    struct stat about{};
    if (next.descriptor() < 0 || ::fstat(next.descriptor(), &about) != 0) return OpenPath();
    if (S_ISLNK(about.st_mode)) {
      errno = ELOOP;
      return OpenPath();
    }
    at = std::move(next);
  }
  return at;
}

// Without one: errno says why. EXDEV, ELOOP: a link.
OpenPath open_within(const OpenPath& volume, const fs::path& sub_path) {
  open_how how{};
  how.flags = O_PATH | O_CLOEXEC;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
  long descriptor = -1;
  for (int i = 0; i < kTriesMost; ++i) {
    descriptor = ::syscall(SYS_openat2, volume.descriptor(), sub_path.c_str(), &how, sizeof how);
    if (descriptor >= 0 || (errno != EAGAIN && errno != EINTR)) break;
  }
  if (descriptor < 0 && (errno == ENOSYS || errno == EPERM)) return walk(volume, sub_path);
  return OpenPath(static_cast<int>(descriptor));
}

Error not_opened(const std::string& sub_path) {
  if (errno == EXDEV || errno == ELOOP)
    return Error(Code::kInvalid, "subPath \"" + sub_path +
                                     "\" is a link that leads out of the volume; name a folder or "
                                     "file in it");
  return Error(Code::kUnavailable, "opening subPath " + sub_path + ": " + std::strerror(errno));
}

}  // namespace

OpenPath::~OpenPath() {
  if (descriptor_ < 0) return;
  const int kept = errno;
  ::close(descriptor_);
  errno = kept;
}

OpenPath::OpenPath(OpenPath&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

OpenPath& OpenPath::operator=(OpenPath&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

std::string OpenPath::path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

Result<OpenPath> open_sub_path(const std::string& volume, const std::string& sub_path) {
  const fs::path path = sub_path;
  if (path.empty() || path.is_absolute() || std::ranges::find(path, "..") != path.end())
    return Error(Code::kInvalid, "subPath \"" + sub_path + "\" may not contain .. or begin with /");
  const OpenPath root(::open(volume.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (root.descriptor() < 0) return not_opened(sub_path).in("volume " + volume);
  OpenPath at(::openat(root.descriptor(), ".", O_PATH | O_CLOEXEC));
  fs::path reached;
  for (const fs::path& part : path) {
    if (part.empty()) continue;  // behind a last slash
    reached /= part;
    OpenPath next = open_within(root, reached);
    if (next.descriptor() < 0 && errno == ENOENT) {
      const bool is_made = ::mkdirat(at.descriptor(), part.c_str(), 0777) == 0 || errno == EEXIST;
      if (is_made) next = open_within(root, reached);
    }
    if (next.descriptor() < 0) return not_opened(sub_path);
    at = std::move(next);
  }
  return at;
}

}  // namespace rubato::localnode
