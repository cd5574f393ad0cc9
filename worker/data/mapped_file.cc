#include "worker/data/mapped_file.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace rubato::worker {

Result<std::shared_ptr<const MappedFile>> MappedFile::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return Error(errno == ENOENT ? Code::kNotFound : Code::kUnavailable,
                 path + ": " + std::strerror(errno));
  struct stat about{};
  const bool known = fstat(fd, &about) == 0 && S_ISREG(about.st_mode);
  const auto size = known ? static_cast<std::uint64_t>(about.st_size) : 0;
  void* base = nullptr;
  if (known && size > 0) base = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  const int error = errno;
  close(fd);
  if (!known) return Error(Code::kInvalid, path + " is not a regular file");
  if (base == MAP_FAILED) return Error(Code::kUnavailable, path + ": " + std::strerror(error));
  return std::shared_ptr<const MappedFile>(
      new MappedFile(static_cast<const unsigned char*>(base), size));
}

MappedFile::~MappedFile() {
  if (bytes_ != nullptr) munmap(const_cast<unsigned char*>(bytes_), size_);  // NOLINT: its own map
}

}  // namespace rubato::worker
