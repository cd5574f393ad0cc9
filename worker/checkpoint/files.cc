#include "worker/checkpoint/files.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <fcntl.h>
#include <unistd.h>

namespace rubato::worker {

namespace {
Error system_error(const std::string& what) {
  return Error(Code::kUnavailable, what + ": " + std::strerror(errno));
}
}  // namespace

Status replace_file(const std::string& path, std::string_view text) {
  const std::string beside = path + ".tmp";
  const int fd = ::open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return system_error("creating " + beside);
  const bool written = write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const bool synced = written && fsync(fd) == 0;
  const Status done = synced ? ok() : Status(system_error("writing " + beside));
  close(fd);
  if (!done.ok()) return done;
  return rename_path(beside, path);
}

Status sync_directory(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return system_error("opening " + path);
  const Status done = fsync(fd) == 0 ? ok() : Status(system_error("syncing " + path));
  close(fd);
  return done;
}

Status rename_path(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) == 0) return ok();
  return system_error("renaming " + from + " to " + to);
}

Result<std::string> read_text(const std::string& path, std::size_t most) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  if (error) return Error(Code::kNotFound, path + ": " + error.message());
  if (size > most)
    return Error(Code::kInvalid, path + " has " + std::to_string(size) + " bytes, more than " +
                                     std::to_string(most));
  std::ifstream in(path, std::ios::binary);
  std::string text(size, '\0');
  in.read(text.data(), static_cast<std::streamsize>(size));
  if (!in) return Error(Code::kUnavailable, "reading " + path + " failed");
  return text;
}

}  // namespace rubato::worker
