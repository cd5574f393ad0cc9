// The GPUs of this machine that pods may have: found as NVIDIA's driver shows them, and given to
// one pod at a time.
//
// Who has a GPU is told by the kernel alone: by a lock on a file, which the processes of the pod
// inherit. It is free again when the last of them is gone, whatever became of localnode meanwhile;
// so neither a localnode that was started anew nor another one of this machine gives a GPU twice.
#pragma once

#include "common/result.h"

#include <cstddef>
#include <string>
#include <vector>

namespace rubato::localnode {

// Of NVIDIA's driver: the first for the CUDA that programs are built with (cmake/cuda.cmake).
constexpr int kDriverLeast = 580;

struct Gpu {
  int minor = 0;        // /dev/nvidia<minor>
  std::string product;  // "NVIDIA H100 80GB HBM3"
  std::string uuid;     // "GPU-…"; empty where the driver does not say it
  int ordinal = 0;      // among the usable ones by PCI address, as CUDA counts them in that order
};

// Where the driver shows GPUs.
struct GpuPaths {
  std::string devices = "/dev";                // nvidia0, nvidia1 … nvidiactl, nvidia-uvm
  std::string driver = "/proc/driver/nvidia";  // gpus/<PCI address>/information
};

// Those with a device node, by PCI address; some milliseconds. kNotFound: none, or CUDA could not
// use them; the error says what is missing and what to do.
Result<std::vector<Gpu>> find_gpus(const GpuPaths& paths);

// Names in `devices` of all that the driver has there: nvidia0, nvidiactl, nvidia-uvm …
std::vector<std::string> gpu_device_names(const std::string& devices);

// Of those found: "auto" is all, "0,2" these minors. kInvalid: another word, one that is not there,
// one twice, or GPUs of several products, which one node's label cannot name.
Result<std::vector<Gpu>> choose_gpus(const std::vector<Gpu>& found, const std::string& wanted);

// "0,2": what choose_gpus() takes.
std::string minors_of(const std::vector<Gpu>& gpus);

// Value of the label nvidia.com/gpu.product, as GPU Feature Discovery writes it: the product's name
// with hyphens for spaces.
std::string product_label(const std::string& product);

// The GPUs of one pod. Ours until it is destroyed and the processes that inherited descriptors()
// are gone.
class GpuLease {
 public:
  GpuLease() = default;
  ~GpuLease();
  GpuLease(GpuLease&& other) noexcept;
  GpuLease& operator=(GpuLease&& other) noexcept;
  GpuLease(const GpuLease&) = delete;
  GpuLease& operator=(const GpuLease&) = delete;

  const std::vector<Gpu>& gpus() const { return gpus_; }
  const std::vector<int>& descriptors() const { return descriptors_; }  // closed on exec

 private:
  friend class GpuPool;
  std::vector<Gpu> gpus_;
  std::vector<int> descriptors_;
};

class GpuPool {
 public:
  GpuPool() = default;
  // `locks`: a folder that all localnodes of this machine share, made when it is missing.
  GpuPool(std::vector<Gpu> gpus, std::string locks);

  bool is_empty() const { return gpus_.empty(); }
  // kExhausted: so many are not free now; kInvalid: there are not so many; kUnavailable: the lock
  // files cannot be opened. Never waits. Thread-safe.
  Result<GpuLease> take(std::size_t count) const;

 private:
  std::vector<Gpu> gpus_;
  std::string locks_;
};

// What CUDA_VISIBLE_DEVICES says of these, where CUDA_DEVICE_ORDER is PCI_BUS_ID.
std::string visible_devices(const std::vector<Gpu>& gpus);

}  // namespace rubato::localnode
