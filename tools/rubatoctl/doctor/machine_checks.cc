#include "tools/rubatoctl/doctor/machine_checks.h"

#include "common/words.h"
#include "tools/localnode/gpus.h"
#include "tools/rubatoctl/local/commands.h"
#include "tools/rubatoctl/session.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

#include <fmt/core.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/timex.h>

namespace rubato::ctl {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kGiB = 1ULL << 30U;
// More than the demo takes.
constexpr std::uint64_t kMemoryWanted = 2 * kGiB;
constexpr std::uint64_t kRoomWanted = kGiB;
constexpr unsigned kCoresWanted = 2;
constexpr std::uint64_t kOpenFilesWanted = 1024;
constexpr std::string_view kNvidiaVendor = "0x10de";
constexpr std::string_view kDisplayClass = "0x03";  // VGA and 3D controllers
constexpr std::string_view kWhatToDo = "\n  What to do: ";
constexpr const char* kPrograms[] = {"rubato-apiserver", "rubato-operator", "rubato-localnode",
                                     "rubato-agent",     "rubato-worker",   "rubato-script",
                                     "rubato-tokenize"};

std::string instructions() {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    return "AVX-512";
  if (__builtin_cpu_supports("avx2")) return "AVX2";
  return __builtin_cpu_supports("sse4.1") ? "SSE4.1" : "";
}

unsigned usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return 0;
  return static_cast<unsigned>(CPU_COUNT(&set));
}

std::uint64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  std::string word;
  std::uint64_t kib = 0;
  while (file >> word)
    if (word == "MemAvailable:" && file >> kib) return kib * 1024;
  return 0;
}

std::uint64_t room_in(fs::path folder) {
  std::error_code ignored;
  while (!fs::exists(folder, ignored) && folder.has_relative_path()) folder = folder.parent_path();
  struct statvfs found{};
  if (::statvfs(folder.c_str(), &found) != 0) return 0;
  return static_cast<std::uint64_t>(found.f_bavail) * found.f_frsize;
}

std::vector<std::string> programs_missing() {
  std::error_code ignored;
  const fs::path folder = program_folder();
  std::vector<std::string> missing;
  for (const char* program : kPrograms)
    if (!fs::exists(folder / program, ignored)) missing.emplace_back(program);
  return missing;
}

std::string first_word(const fs::path& path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return word;
}

// None: there is no such file, or it says that there is no limit.
std::optional<std::uint64_t> whole_number(const std::string& word) {
  std::uint64_t number = 0;
  const auto [end, wrong] = std::from_chars(word.data(), word.data() + word.size(), number);
  const bool is_whole = !word.empty() && wrong == std::errc() && end == word.data() + word.size();
  return is_whole ? std::optional(number) : std::nullopt;
}

std::string driver_version() { return first_word("/sys/module/nvidia/version"); }

// A machine without GPUs, or with some that are not used, trains on its processors.
Finding check_gpus(const MachineFacts& facts) {
  const std::string subject = "GPU";
  const std::string driver = "NVIDIA driver " + facts.nvidia_driver;
  const std::string wanted =
      fmt::format("install NVIDIA's driver, {} or newer (docs/gpu.md); ", localnode::kDriverLeast);
  const std::string without = "without it workers compute on the processors";
  if (facts.nvidia_driver.empty() && facts.nvidia_cards == 0)
    return {Verdict::kOk, subject, "no NVIDIA GPU; workers compute on the processors", ""};
  if (facts.nvidia_driver.empty())
    return {Verdict::kWarning, subject,
            counted(facts.nvidia_cards, "NVIDIA GPU") + ", and NVIDIA's driver is not loaded",
            wanted + without};
  if (std::atoi(facts.nvidia_driver.c_str()) < localnode::kDriverLeast)
    return {Verdict::kWarning, subject, driver + " is too old", wanted + without};
  if (facts.nvidia_gpus == 0) {
    const std::size_t cut = facts.gpu_problem.find(kWhatToDo);
    return {Verdict::kWarning, subject, driver + ": " + facts.gpu_problem.substr(0, cut),
            cut == std::string::npos ? "nvidia-smi says why"
                                     : facts.gpu_problem.substr(cut + kWhatToDo.size())};
  }
  return {Verdict::kOk, subject,
          fmt::format("{}, {}; workers of `rubatoctl local up --gpus auto` compute on {}", driver,
                      counted(facts.nvidia_gpus, "GPU"), agreeing(facts.nvidia_gpus, "it", "them")),
          ""};
}

std::string gib(std::uint64_t bytes) {
  return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / static_cast<double>(kGiB));
}

}  // namespace

MachineFacts look_at_machine() {
  MachineFacts facts;
  facts.instructions = instructions();
  const ContainerLimits limits = container_limits();
  facts.cores = static_cast<unsigned>(std::min<std::uint64_t>(usable_cores(), limits.cores));
  facts.memory = std::min(available_memory(), limits.memory);
  facts.folder = default_local_state();
  facts.room = room_in(facts.folder);
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) facts.open_files = files.rlim_cur;
  facts.missing_programs = programs_missing();
  timex state{};
  facts.is_clock_synchronised = ::adjtimex(&state) != TIME_ERROR;
  facts.nvidia_cards = nvidia_cards();
  facts.nvidia_driver = driver_version();
  const auto gpus = localnode::find_gpus({});
  if (gpus.ok())
    facts.nvidia_gpus = gpus->size();
  else
    facts.gpu_problem = gpus.error().what();
  return facts;
}

ContainerLimits container_limits(const std::string& cgroup) {
  ContainerLimits limits;
  for (const char* file : {"/memory.max", "/memory/memory.limit_in_bytes"})
    if (const auto bytes = whole_number(first_word(cgroup + file)))
      limits.memory = std::min(limits.memory, *bytes);
  std::string quota, period;  // microseconds
  if (!(std::ifstream(cgroup + "/cpu.max") >> quota >> period)) {
    quota = first_word(cgroup + "/cpu/cpu.cfs_quota_us");
    period = first_word(cgroup + "/cpu/cpu.cfs_period_us");
  }
  const auto part = whole_number(quota), of = whole_number(period);
  if (part && of && *of > 0) limits.cores = std::max<std::uint64_t>(*part / *of, 1);
  return limits;
}

std::size_t nvidia_cards(const std::string& devices) {
  std::error_code ignored;
  std::size_t cards = 0;
  for (const auto& entry : fs::directory_iterator(devices, ignored)) {
    const std::string kind = first_word(entry.path() / "class");
    if (first_word(entry.path() / "vendor") == kNvidiaVendor && kind.starts_with(kDisplayClass))
      ++cards;
  }
  return cards;
}

std::vector<Finding> check_machine(const MachineFacts& facts) {
  std::vector<Finding> findings;
  const auto say = [&](bool good, Verdict bad, const char* subject, const std::string& text,
                       const std::string& mend) {
    findings.push_back({good ? Verdict::kOk : bad, subject, text, good ? "" : mend});
  };
  const bool can_compute = !facts.instructions.empty();
  say(can_compute, Verdict::kWrong, "processor",
      can_compute ? "workers use " + facts.instructions : "has less than SSE4.1",
      "workers need SSE4.1 at least: use another machine, or let the virtual one pass its "
      "processor's features through");
  say(facts.cores >= kCoresWanted, Verdict::kWarning, "cores", counted(facts.cores, "core"),
      "the demo has up to four workers at once: on one core it takes long");
  say(facts.memory >= kMemoryWanted, Verdict::kWarning, "memory", gib(facts.memory) + " available",
      "the demo wants " + gib(kMemoryWanted) + ": end something");
  say(facts.room >= kRoomWanted, Verdict::kWrong, "disk",
      fmt::format("{} free for {}", gib(facts.room), facts.folder),
      "a local cluster wants " + gib(kRoomWanted) +
          ": make room, or set XDG_STATE_HOME to a "
          "folder on another disk");
  say(facts.open_files >= kOpenFilesWanted, Verdict::kWarning, "open files",
      fmt::format("{} a process", facts.open_files),
      fmt::format("an operator with many agents needs more: ulimit -n {}", 16 * kOpenFilesWanted));
  say(facts.missing_programs.empty(), Verdict::kWrong, "programs",
      facts.missing_programs.empty()
          ? "all are beside rubatoctl"
          : fmt::format("{} not beside rubatoctl", fmt::join(facts.missing_programs, ", ")),
      "`make release`, and start rubatoctl from build/release/bin; or `cmake --install`");
  say(facts.is_clock_synchronised, Verdict::kWarning, "clock",
      facts.is_clock_synchronised ? "is synchronised" : "is not known to be synchronised",
      "start chrony or systemd-timesyncd on machines of a cluster; one machine alone does "
      "without");
  findings.push_back(check_gpus(facts));
  return findings;
}

Status doctor_of_machine() { return tell(check_machine(look_at_machine())); }

}  // namespace rubato::ctl
