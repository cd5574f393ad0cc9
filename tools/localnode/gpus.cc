#include "tools/localnode/gpus.h"

#include "common/words.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace rubato::localnode {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kGpusMost = 64;  // of one machine
constexpr std::size_t kLabelMost = 63;
constexpr int kLowestLock = 100;  // number of a descriptor
constexpr std::string_view kControlDevices[] = {"nvidiactl", "nvidia-uvm"};

std::string trimmed(std::string_view text) {
  const auto is_space = [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return std::string(text);
}

std::optional<int> number(std::string_view text) {
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

// Lines "Model:  NVIDIA H100" of an information file.
std::map<std::string, std::string> fields_of(const fs::path& path) {
  std::map<std::string, std::string> fields;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    if (const std::size_t colon = line.find(':'); colon != std::string::npos)
      fields[trimmed(std::string_view(line).substr(0, colon))] =
          trimmed(std::string_view(line).substr(colon + 1));
  return fields;
}

// Before a GPU was first used the driver writes GPU-????????-….
bool is_uuid(const std::string& text) {
  return text.starts_with("GPU-") && text.find('?') == std::string::npos;
}

Error missing(const std::string& what, const std::string& way_out) {
  return Error(Code::kNotFound, what + "\n  What to do: " + way_out);
}

// O_CREAT on a file of another user's is refused in a folder like /tmp, so it comes second. The
// number is one that no program of a pod gives to a descriptor of its own.
int open_lock(const std::string& path) {
  int opened = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (opened < 0 && errno == ENOENT)
    opened = ::open(path.c_str(), O_RDONLY | O_CREAT | O_CLOEXEC, 0644);
  if (opened < 0) return opened;
  const int lock = ::fcntl(opened, F_DUPFD_CLOEXEC, kLowestLock);
  ::close(opened);
  return lock;
}

}  // namespace

Result<std::vector<Gpu>> find_gpus(const GpuPaths& paths) {
  std::error_code error;
  std::vector<fs::path> addresses;
  for (const auto& entry : fs::directory_iterator(paths.driver + "/gpus", error))
    addresses.push_back(entry.path());
  if (addresses.empty())
    return missing("this machine shows no NVIDIA GPU (" + paths.driver + "/gpus)",
                   "install NVIDIA's driver (" + std::to_string(kDriverLeast) +
                       " or newer) and see that nvidia-smi lists the GPU; without --gpus, workers "
                       "compute on the processors");
  std::ranges::sort(addresses);
  std::vector<Gpu> gpus;
  for (const fs::path& address : addresses) {
    auto fields = fields_of(address / "information");
    const auto minor = number(fields["Device Minor"]);
    if (!minor || fields["GPU Excluded"] == "Yes" || gpus.size() >= kGpusMost) continue;
    if (!fs::exists(paths.devices + "/nvidia" + std::to_string(*minor), error)) continue;
    gpus.push_back({.minor = *minor,
                    .product = fields["Model"],
                    .uuid = is_uuid(fields["GPU UUID"]) ? fields["GPU UUID"] : "",
                    .ordinal = static_cast<int>(gpus.size())});
  }
  if (gpus.empty())
    return missing("the driver knows of GPUs, and " + paths.devices + " has none of them",
                   "nvidia-smi, as root, makes the device nodes; a container is given them by its "
                   "runtime (--gpus all)");
  for (const std::string_view name : kControlDevices)
    if (const std::string path = paths.devices + "/" + std::string(name); !fs::exists(path, error))
      return missing("CUDA needs " + path + ", which is not there",
                     "nvidia-modprobe -u -c=0, as root, makes it");
  return gpus;
}

std::vector<std::string> gpu_device_names(const std::string& devices) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(devices, error))
    if (std::string name = entry.path().filename().string(); name.starts_with("nvidia"))
      names.push_back(std::move(name));
  std::ranges::sort(names);
  return names;
}

Result<std::vector<Gpu>> choose_gpus(const std::vector<Gpu>& found, const std::string& wanted) {
  std::vector<Gpu> chosen;
  if (wanted == "auto") {
    chosen = found;
  } else {
    std::set<int> minors;
    for (std::size_t at = 0; at <= wanted.size();) {
      const std::size_t end = std::min(wanted.find(',', at), wanted.size());
      const auto minor = number(std::string_view(wanted).substr(at, end - at));
      const auto gpu = std::ranges::find(found, minor.value_or(-1), &Gpu::minor);
      if (!minor || gpu == found.end())
        return Error(Code::kInvalid, "--gpus " + wanted + ": auto, or some of " + minors_of(found));
      if (!minors.insert(*minor).second)
        return Error(Code::kInvalid, "--gpus " + wanted + " names a GPU twice");
      chosen.push_back(*gpu);
      at = end + 1;
    }
  }
  for (const Gpu& gpu : chosen)
    if (gpu.product != chosen.front().product)
      return Error(Code::kInvalid, "this machine has GPUs of several types (" +
                                       chosen.front().product + ", " + gpu.product +
                                       "); name those of one with --gpus " +
                                       std::to_string(chosen.front().minor) + ",…");
  return chosen;
}

std::string minors_of(const std::vector<Gpu>& gpus) {
  std::string text;
  for (const Gpu& gpu : gpus) text += (text.empty() ? "" : ",") + std::to_string(gpu.minor);
  return text;
}

std::string product_label(const std::string& product) {
  std::string label;
  for (const char c : product.substr(0, kLabelMost)) {
    const bool is_allowed = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' ||
                            c == '_' || c == '-' || c == ' ';
    if (is_allowed) label += c == ' ' ? '-' : c;
  }
  while (!label.empty() && std::isalnum(static_cast<unsigned char>(label.back())) == 0)
    label.pop_back();
  return label;
}

GpuLease::~GpuLease() {
  for (const int descriptor : descriptors_) ::close(descriptor);
}
GpuLease::GpuLease(GpuLease&& other) noexcept
    : gpus_(std::exchange(other.gpus_, {})), descriptors_(std::exchange(other.descriptors_, {})) {}
GpuLease& GpuLease::operator=(GpuLease&& other) noexcept {
  std::swap(gpus_, other.gpus_);
  std::swap(descriptors_, other.descriptors_);
  return *this;
}

GpuPool::GpuPool(std::vector<Gpu> gpus, std::string locks)
    : gpus_(std::move(gpus)), locks_(std::move(locks)) {}

Result<GpuLease> GpuPool::take(std::size_t count) const {
  GpuLease lease;
  if (count == 0) return lease;
  if (count > gpus_.size())
    return Error(Code::kInvalid, "the pod asks for " + std::to_string(count) +
                                     " GPUs, the node has " + std::to_string(gpus_.size()));
  // For every user of the machine, as /tmp is.
  if (::mkdir(locks_.c_str(), 0755) == 0) (void)::chmod(locks_.c_str(), 01777);
  for (const Gpu& gpu : gpus_) {
    if (lease.gpus_.size() == count) break;
    const std::string path = locks_ + "/nvidia" + std::to_string(gpu.minor) + ".lock";
    const int descriptor = open_lock(path);
    if (descriptor < 0)
      return Error(Code::kUnavailable, "opening " + path + ": " + std::strerror(errno));
    if (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
      ::close(descriptor);
      continue;
    }
    lease.gpus_.push_back(gpu);
    lease.descriptors_.push_back(descriptor);
  }
  if (lease.gpus_.size() < count)
    return Error(Code::kExhausted, "waits for " + counted(count, "GPU") + ": " +
                                       std::to_string(lease.gpus_.size()) + " of " +
                                       std::to_string(gpus_.size()) +
                                       " free, processes of other pods use the rest");
  return lease;
}

std::string visible_devices(const std::vector<Gpu>& gpus) {
  const bool has_uuids =
      std::ranges::none_of(gpus, [](const Gpu& gpu) { return gpu.uuid.empty(); });
  std::string text;
  for (const Gpu& gpu : gpus)
    text += (text.empty() ? "" : ",") + (has_uuids ? gpu.uuid : std::to_string(gpu.ordinal));
  return text;
}

}  // namespace rubato::localnode
