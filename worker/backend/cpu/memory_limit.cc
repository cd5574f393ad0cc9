#include "worker/backend/cpu/memory_limit.h"

#include "common/words.h"

#include <charconv>
#include <optional>
#include <span>
#include <string_view>

namespace rubato::worker::cpu {

namespace {

constexpr std::size_t kBytesRead = 16 << 10;  // of one file
constexpr int kLevelsMost = 64;
constexpr std::string_view kCgroups = "/sys/fs/cgroup";

// The kernel's files do not say how long they are. Empty: it cannot be read.
std::string beginning_of(FileSystem& files, const std::string& path) {
  const auto file = files.open(path, OpenMode::kRead);
  if (!file.ok()) return {};
  std::string text(kBytesRead, '\0');
  const auto got = (*file)->read_at(0, std::as_writable_bytes(std::span(text)));
  text.resize(got.value_or(0));
  return text;
}

// Nothing runs under a limit of 0, so that is none.
std::optional<std::uint64_t> number_of(std::string_view text) {
  text = trimmed(text, " \t\n");
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number == 0) return std::nullopt;
  return number;
}

template <class Visit>
void for_each_line(std::string_view text, const Visit& visit) {
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    visit(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
}

void lower(MemoryLimit& limit, std::uint64_t bytes, std::string source) {
  if (bytes < limit.bytes) limit = {bytes, std::move(source)};
}

// Of "MemTotal: 16 kB".
std::optional<std::uint64_t> bytes_in(std::string_view meminfo, std::string_view name) {
  constexpr std::string_view kUnit = "kB";
  constexpr std::uint64_t kMost = std::uint64_t{1} << 60;  // a sum of two is a number, too
  std::optional<std::uint64_t> bytes;
  for_each_line(meminfo, [&](std::string_view line) {
    if (!line.starts_with(name) || !line.ends_with(kUnit)) return;
    line.remove_prefix(name.size());
    line.remove_suffix(kUnit.size());
    const auto kib = number_of(line);
    if (kib && *kib <= kMost / 1024) bytes = *kib * 1024;
  });
  return bytes;
}

// At the cgroup `path` below the mount, and at all above it.
void lower_by_cgroups(MemoryLimit& limit, FileSystem& files, const std::string& mount,
                      std::string path, const std::string& name) {
  if (!path.starts_with('/') || path.find("..") != std::string::npos) path = "/";
  for (int level = 0; level < kLevelsMost; ++level) {
    while (path.ends_with('/')) path.pop_back();
    const std::string file = mount + path + "/" + name;
    if (const auto bytes = number_of(beginning_of(files, file))) lower(limit, *bytes, file);
    if (path.empty()) return;
    path.erase(path.rfind('/'));
  }
}

// Of "memory" in "cpu,memory".
bool names_memory(std::string_view controllers) {
  return ("," + std::string(controllers) + ",").find(",memory,") != std::string::npos;
}

}  // namespace

MemoryLimit memory_limit(FileSystem& files, const std::string& root) {
  MemoryLimit limit;
  const std::string meminfo = beginning_of(files, root + "/proc/meminfo");
  if (const auto bytes = bytes_in(meminfo, "MemTotal:"))
    lower(limit, *bytes, "the machine's memory");
  const std::string mount = root + std::string(kCgroups);
  // Lines are "number:controllers:path": of v2 without controllers.
  for_each_line(beginning_of(files, root + "/proc/self/cgroup"), [&](std::string_view line) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == line.npos ? line.npos : line.find(':', first + 1);
    if (second == line.npos) return;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    const std::string path(line.substr(second + 1));
    if (controllers.empty()) lower_by_cgroups(limit, files, mount, path, "memory.max");
    if (names_memory(controllers))
      lower_by_cgroups(limit, files, mount + "/memory", path, "memory.limit_in_bytes");
  });
  const auto swap = bytes_in(meminfo, "SwapTotal:");
  if (!swap || limit.bytes >= MemoryLimit::kNone - *swap) return limit;
  return {limit.bytes + *swap, limit.source + ", and swap"};
}

}  // namespace rubato::worker::cpu
