#include "common/process_metrics.h"

#include "common/version.h"

#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

#include <sys/resource.h>
#include <unistd.h>

namespace rubato {
namespace {

enum Row { kBuild, kCpu, kResident, kVirtual, kOpen, kMost, kThreads, kStarted };

// Fields of /proc/self/stat as proc(5) numbers them; the second one may contain spaces.
struct Stat {
  double virtual_bytes = 0;
  double resident_pages = 0;
  double threads = 0;
  double start_ticks = 0;
};

std::optional<Stat> read_stat() {
  std::ifstream file("/proc/self/stat");
  std::string text;
  if (!std::getline(file, text)) return std::nullopt;
  const auto after_name = text.rfind(')');
  if (after_name == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(after_name + 1));
  Stat stat;
  std::string field;
  for (int number = 3; number <= 24 && fields >> field; ++number) {
    const double value = number == 3 ? 0 : std::stod(field);
    if (number == 20) stat.threads = value;
    if (number == 22) stat.start_ticks = value;
    if (number == 23) stat.virtual_bytes = value;
    if (number == 24) stat.resident_pages = value;
  }
  return stat;
}

// When the machine was started, in seconds since the epoch.
std::optional<double> boot_time() {
  std::ifstream file("/proc/stat");
  std::string line;
  while (std::getline(file, line))
    if (line.starts_with("btime ")) return std::stod(line.substr(6));
  return std::nullopt;
}

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

std::optional<double> open_files() {
  std::error_code error;
  double count = -1;  // the folder itself is open while it is read
  for (std::filesystem::directory_iterator at("/proc/self/fd", error), end; !error && at != end;
       at.increment(error))
    ++count;
  if (error) return std::nullopt;
  return count;
}

}  // namespace

const std::vector<MetricInfo>& process_metrics() {
  using enum MetricType;
  static const std::vector<MetricInfo> metrics = {
      {"rubato_build_info",
       kGauge,
       {"program", "version"},
       "",
       "1; which release of which program this is."},
      {"process_cpu_seconds_total",
       kCounter,
       {},
       "seconds",
       "User and system time that the process has used."},
      {"process_resident_memory_bytes",
       kGauge,
       {},
       "bytes",
       "Memory of the process that is in RAM."},
      {"process_virtual_memory_bytes", kGauge, {}, "bytes", "Address space of the process."},
      {"process_open_fds", kGauge, {}, "file descriptors", "Open file descriptors."},
      {"process_max_fds",
       kGauge,
       {},
       "file descriptors",
       "Most file descriptors that it may open."},
      {"process_threads", kGauge, {}, "threads", "Threads of the process."},
      {"process_start_time_seconds",
       kGauge,
       {},
       "seconds",
       "When the process was started, in seconds since the epoch."},
  };
  return metrics;
}

void expose_process(std::string_view program, Exposition& out) {
  const auto& rows = process_metrics();
  const auto put = [&](Row row, double value) {
    out.family(rows[row]);
    out.sample({}, value);
  };
  out.family(rows[kBuild]);
  out.sample({program, version()}, 1);
  put(kCpu, cpu_seconds());
  if (const auto stat = read_stat()) {
    put(kResident, stat->resident_pages * static_cast<double>(::sysconf(_SC_PAGESIZE)));
    put(kVirtual, stat->virtual_bytes);
    put(kThreads, stat->threads);
    if (const auto booted = boot_time())
      put(kStarted, *booted + stat->start_ticks / static_cast<double>(::sysconf(_SC_CLK_TCK)));
  }
  if (const auto open = open_files()) put(kOpen, *open);
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) put(kMost, static_cast<double>(limit.rlim_cur));
}

}  // namespace rubato
