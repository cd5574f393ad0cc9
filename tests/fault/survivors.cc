#include "tests/fault/survivors.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>

#include <fmt/format.h>

namespace rubato::fault {
namespace {

// Clock ticks since boot at which the process began; zero: it is gone.
std::uint64_t start_time(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  const std::string stat{std::istreambuf_iterator<char>(file), {}};
  std::istringstream words(stat.substr(std::min(stat.size(), stat.rfind(')') + 1)));
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
