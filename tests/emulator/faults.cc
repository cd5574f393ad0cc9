#include "tests/emulator/faults.h"

#include "tests/emulator/program.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>

#include <unistd.h>

namespace rubato::emulator {

namespace {

struct Raw {
  FaultKind kind;
  std::string text;
  std::vector<const void*> places;
};

std::mutex mutex;

std::vector<Raw>& kept();

// Registered when the first fault comes.
void tell_at_exit() {
  const std::vector<Fault> faults = take_faults();
  for (const Fault& fault : faults)
    std::fprintf(stderr, "emulator: %s: %s\n", name_of(fault.kind), fault.text.c_str());
  std::fflush(nullptr);
  if (!faults.empty()) _exit(kFaultStatus);
}

std::vector<Raw>& kept() {
  static std::vector<Raw>& faults = [&]() -> std::vector<Raw>& {
    std::atexit(tell_at_exit);
    return *new std::vector<Raw>;
  }();
  return faults;
}

// "cuda::map<4>" of "void rubato::worker::cuda::(anonymous namespace)::map<4>(long)".
std::string bare_name(std::string name) {
  for (const std::string part : {"(anonymous namespace)::", "rubato::worker::", "void "})
    for (std::size_t at = name.find(part); at != std::string::npos; at = name.find(part))
      name.erase(at, part.size());
  return name.substr(0, name.find_first_of("(\n"));
}

// Of two lines of addr2line: "kernel<4>" and "file.cu:12".
struct Frame {
  std::string function, line;
};
std::vector<Frame> frames_of(const void* place) {
  // addr2line wants addresses of the file.
  const std::uintptr_t at = reinterpret_cast<std::uintptr_t>(place) - program_info().dlpi_addr - 1;
  char command[200];
  std::snprintf(command, sizeof command, "addr2line -e /proc/%d/exe -f -i -C -s 0x%zx 2>/dev/null",
                getpid(), static_cast<std::size_t>(at));
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command, "r"), pclose);
  std::vector<Frame> frames;
  char name[2000], line[2000];
  while (pipe != nullptr && std::fgets(name, sizeof name, pipe.get()) != nullptr &&
         std::fgets(line, sizeof line, pipe.get()) != nullptr) {
    const std::string where = line;
    frames.push_back({bare_name(name), where.substr(0, where.find_first_of(" \n"))});
  }
  return frames;
}

// "arithmetic.cuh:20, called by cuda::sort_rows (embedding.cu:52)".
std::string text_of_code(const void* place) {
  const std::vector<Frame> frames = frames_of(place);
  if (frames.empty()) return "?";
  const Frame& kernel = frames.back();
  const std::string inside = frames.size() > 1 ? frames.front().line + ", called by " : "";
  return inside + kernel.function + " (" + kernel.line + ")";
}

std::string with_places(const Raw& raw) {
  std::string out;
  std::size_t next = 0;
  for (const char c : raw.text) {
    if (c == '@' && next < raw.places.size())
      out += text_of_code(raw.places[next++]);
    else
      out += c;
  }
  return out;
}

}  // namespace

std::string name_of_kernel(const void* kernel) {
  const std::vector<Frame> frames = frames_of(static_cast<const char*>(kernel) + 1);
  return frames.empty() ? "?" : frames.back().function;
}

const char* name_of(FaultKind kind) {
  switch (kind) {
    case FaultKind::kOutside:
      return "outside";
    case FaultKind::kMisaligned:
      return "misaligned";
    case FaultKind::kRace:
      return "race";
    case FaultKind::kUninitialised:
      return "uninitialised";
    case FaultKind::kDivergent:
      return "divergent";
    case FaultKind::kMask:
      return "mask";
    case FaultKind::kStreamRace:
      return "stream race";
    case FaultKind::kBlocked:
      return "blocked";
  }
  return "?";
}

std::string text_of(const Site& site) {
  const std::string file = site.file_name();
  return file.substr(file.rfind('/') + 1) + ":" + std::to_string(site.line());
}

void report(FaultKind kind, std::string text, std::vector<const void*> places) {
  if (std::getenv("EMULATOR_FIRST") != nullptr) {
    std::fprintf(stderr, "emulator: %s: %s\n", name_of(kind), text.c_str());
    std::fflush(nullptr);
    _exit(kFaultStatus);
  }
  const std::lock_guard lock(mutex);
  std::vector<Raw>& faults = kept();
  const bool is_known = std::ranges::any_of(faults, [&](const Raw& raw) {
    return raw.kind == kind &&
           (places.empty() ? raw.text == text : std::ranges::is_permutation(raw.places, places));
  });
  if (!is_known && faults.size() < kFaultsKept)
    faults.push_back({kind, std::move(text), std::move(places)});
}

std::vector<Fault> take_faults() {
  std::vector<Raw> raw;
  {
    const std::lock_guard lock(mutex);
    raw.swap(kept());
  }
  std::vector<Fault> faults;
  faults.reserve(raw.size());
  for (const Raw& one : raw) faults.push_back({one.kind, with_places(one)});
  return faults;
}

}  // namespace rubato::emulator
