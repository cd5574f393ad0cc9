#include "tests/fault/survivors.h"

#include <fstream>
#include <sstream>

#include <fmt/format.h>

namespace rubato::fault {
namespace {

// Clock ticks since boot at which the process began; zero: it is gone.
std::uint64_t start_time(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string stat;
  std::getline(file,
               stat);  // that ends while it is read is told by an empty line, not by an exception
  std::istringstream words(stat.substr(stat.rfind(')') + 1));
  std::string word;
  for (int field = 3; field < 22 && words >> word; ++field) continue;
  std::uint64_t ticks = 0;
  words >> ticks;
  return ticks;
}

}  // namespace

std::string Survivors::look_at(const coordinator::JobProcesses::Pod& pod) {
  for (const pid_t pid : job_.workers(pod)) {
    const Life now{pid, start_time(pid)};
    if (now.second == 0) continue;
    const auto [known, is_new] = seen_.try_emplace(pod.number, now);
    if (known->second != now)
      return fmt::format("nothing had hit {}, and its worker is process {} instead of {}", pod.name,
                         pid, known->second.first);
  }
  return "";
}

}  // namespace rubato::fault
