#include "worker/script/process_table.h"

#include <array>
#include <cerrno>
#include <cstdlib>
#include <sstream>
#include <string>

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

namespace rubato::worker {

std::optional<ProcessEntry> entry_of(int stat_file) {
  std::array<char, 1024> bytes{};  // more than what is looked at ever takes
  ssize_t size = -1;
  while ((size = ::read(stat_file, bytes.data(), bytes.size())) < 0 && errno == EINTR) {
  }
  if (size <= 0) return std::nullopt;
  const std::string text(bytes.data(), static_cast<std::size_t>(size));
  const std::size_t name_end = text.rfind(')');  // a name may have spaces and brackets
  if (name_end == std::string::npos) return std::nullopt;
  ProcessEntry entry{.pid = std::atoi(text.c_str())};
  std::istringstream rest(text.substr(name_end + 1));
  char state = 0;
  if (!(rest >> state >> entry.parent >> entry.group)) return std::nullopt;
  entry.is_zombie = state == 'Z' || state == 'X';
  return entry;
}

std::vector<ProcessEntry> process_table() {
  std::vector<ProcessEntry> all;
  DIR* const folder = ::opendir("/proc");
  if (folder == nullptr) return all;
  while (const dirent* file = ::readdir(folder)) {
    if (std::atoi(file->d_name) <= 0) continue;
    const std::string path = "/proc/" + std::string(file->d_name) + "/stat";
    const int stat_file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (stat_file < 0) continue;
    if (const auto entry = entry_of(stat_file)) all.push_back(*entry);
    ::close(stat_file);
  }
  ::closedir(folder);
  return all;
}

}  // namespace rubato::worker
