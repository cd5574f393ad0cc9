// What a training device is: memory, ordered streams of work, events, and the kernels that run on
// them. Model, step and collective code see only these types, so a CPU and a GPU differ in one
// place: the implementation behind Device (worker/backend/cpu, worker/backend/cuda).
//
// Work is enqueued on a Stream and runs in the order of enqueueing. An implementation may run it at
// once in the calling thread (the CPU does) or later. The host may touch the bytes of a buffer only
// through copy_to_host / copy_to_device, or through host_view() where the device offers it, and
// only when the stream that last wrote them has passed an Event.
//
// Thread: a Device may be shared; a Stream and everything enqueued on it belong to one thread at a
// time. Errors of enqueued work stick to their stream and are told by Event::wait and
// Stream::synchronize. With the reason() kDeviceLost nothing that this process asks of the device
// can succeed any more: a new process may.
#pragma once

#include "common/check.h"
#include "common/result.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

namespace rubato::worker {

class DeviceCollectives;
class Kernels;

constexpr const char* kDeviceLost = "DeviceLost";
// With which a process ends that can do no more with its device: it is to be started anew.
constexpr int kStuckStatus = 75;

enum class DType : std::uint8_t { kF32, kBf16, kF64, kI32, kI64, kU8 };
constexpr std::size_t size_of(DType type) {
  switch (type) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBf16:
      return 2;
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kU8:
      return 1;
  }
  return 0;
}

// Buffers that start an arena, and every buffer taken from one, are aligned to this.
constexpr std::size_t kDeviceAlignment = 256;

// A typed range of device memory: a value, cheap to copy, owning nothing. `address` is an address
// of the device; only the device and its kernels may read through it.
template <class Void>
class BasicBuffer {
 public:
  BasicBuffer() = default;
  BasicBuffer(Void* address, std::int64_t count, DType type)
      : address_(address), count_(count), type_(type) {}
  // A Buffer is readable wherever a ConstBuffer is wanted.
  template <class Other>
    requires(std::is_const_v<Void> && !std::is_const_v<Other>)
  BasicBuffer(const BasicBuffer<Other>& other)  // NOLINT: implicit by design
      : address_(other.address()), count_(other.count()), type_(other.type()) {}

  Void* address() const { return address_; }
  std::int64_t count() const { return count_; }
  DType type() const { return type_; }
  std::size_t bytes() const { return static_cast<std::size_t>(count_) * size_of(type_); }
  bool is_empty() const { return count_ == 0; }

  // Elements [first, first + count) of this buffer.
  BasicBuffer slice(std::int64_t first, std::int64_t count) const {
    CHECK(first >= 0 && count >= 0 && first + count <= count_);
    using Byte = std::conditional_t<std::is_const_v<Void>, const std::byte, std::byte>;
    auto* base = static_cast<Byte*>(address_);
    return {base + static_cast<std::size_t>(first) * size_of(type_), count, type_};
  }

 private:
  Void* address_ = nullptr;
  std::int64_t count_ = 0;
  DType type_ = DType::kF32;
};
using Buffer = BasicBuffer<void>;
using ConstBuffer = BasicBuffer<const void>;

// An ordered queue of work on the device.
class Stream {
 public:
  virtual ~Stream() = default;
  // Blocks until all enqueued work is done; the first error of that work. A thread that must stay
  // abortable polls an Event instead.
  virtual Status synchronize() = 0;
};

// A point in a stream.
class Event {
 public:
  virtual ~Event() = default;
  virtual void record(Stream& stream) = 0;
  // Later work of `stream` starts only after this event.
  virtual void hold(Stream& stream) = 0;
  // True once all work before the record() is done; true if never recorded. Never blocks.
  virtual bool is_done() const = 0;
  // Blocks until is_done(); the first error of the stream.
  virtual Status wait() = 0;
};

class Device;

// Owns one range of device memory and hands out aligned pieces of it. Movable; frees on
// destruction. All memory of a job is taken before its first step, so nothing allocates while a
// step runs.
class Arena {
 public:
  Arena() = default;
  Arena(Device& device, void* base, std::size_t bytes)
      : device_(&device), base_(base), bytes_(bytes) {}
  Arena(Arena&& other) noexcept { *this = std::move(other); }
  Arena& operator=(Arena&& other) noexcept;
  ~Arena();

  // The next `count` elements; CHECKs that they fit.
  Buffer take(DType type, std::int64_t count);
  // What take() will use of an arena for so many elements.
  static std::size_t bytes_for(DType type, std::int64_t count);
  std::size_t bytes() const { return bytes_; }

 private:
  Device* device_ = nullptr;
  void* base_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t used_ = 0;
};

// How many bytes of a device's memory a process may have at most, and who says so.
struct MemoryLimit {
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};
  std::uint64_t bytes = kNone;
  std::string source = {};  // for people: a file of the kernel's, "free on cuda:0"
};

class Device {
 public:
  virtual ~Device() = default;

  // "cpu", "cuda:0": for people.
  virtual std::string name() const = 0;
  // Everything that can change a result's bits and is known without running: kind of device,
  // instruction set, versions of the libraries and of our kernels. Two workers of one exact job
  // must agree on it (and on worker/model/fingerprint.h, which also runs the kernels).
  virtual std::string fingerprint() const = 0;

  // On the CPU of the whole process, by the machine and by each cgroup above it
  // (worker/backend/cpu/memory_limit.h): who takes more is killed, for allocate() gives memory that
  // is not there yet. On a GPU what nobody has taken so far. Other processes may share either, so
  // what is within the limit may still not fit.
  virtual Result<MemoryLimit> memory() const = 0;
  // Zeroed memory. kExhausted when there is not enough.
  virtual Result<Arena> allocate(std::size_t bytes) = 0;
  virtual std::unique_ptr<Stream> make_stream() = 0;
  virtual std::unique_ptr<Event> make_event() = 0;
  virtual Kernels& kernels() = 0;
  // What it has of its own to add between members. kNotFound: nothing, or it is not on this
  // machine; kInvalid: one that is too old.
  virtual Result<DeviceCollectives*> collectives() {
    return Error(Code::kNotFound, name() + " has no collectives of its own");
  }

  // Asynchronous; the host memory must live, and stay untouched, until the stream has passed.
  // Sizes are those of the buffer.
  virtual void copy_to_device(Stream& stream, Buffer to, const void* from) = 0;
  virtual void copy_to_host(Stream& stream, void* to, ConstBuffer from) = 0;
  virtual void copy(Stream& stream, Buffer to, ConstBuffer from) = 0;
  virtual void memset(Stream& stream, Buffer to, std::uint8_t byte) = 0;

  // The same bytes as host memory, when the device shares its memory with the host; else nullptr.
  // Lets a transport send without a staging copy.
  virtual void* host_view(Buffer buffer) = 0;
  virtual const void* host_view(ConstBuffer buffer) = 0;

 protected:
  friend class Arena;
  virtual void release(void* base, std::size_t bytes) = 0;
};

// Of the factors of matrix products. kBf16 rounds both of them to bf16, to nearest even, and sums
// the products in f32; everything else, and all that is stored, is f32 in both.
enum class Precision : std::uint8_t { kF32, kBf16 };

// How to open a device. `kind`: "cpu", or "cuda" or "cuda:N" (worker/backend/cuda/cuda_device.h
// says what can go wrong there). `isa` is the CPU's: "auto" (the best that this machine has) or one
// of "sse41", "avx2", "avx512_core" in f32, of "avx512_core_bf16", "avx512_core_amx" in bf16:
// matrix products give other bits on each, so a job pins the one its first generation used.
// kInvalid: unknown words, or the machine lacks the instruction set; kConflict: this process has
// already opened a CPU device with another isa.
struct DeviceSpec {
  std::string kind = "cpu";
  std::string isa = "auto";
  Precision precision = Precision::kF32;
};
Result<std::unique_ptr<Device>> open_device(const DeviceSpec& spec);

// The kind of device that worker `slot` of a pod opens, where its environment names `kind` for all
// of them: of "cuda" each worker has its own, counted as CUDA counts those that the pod sees. Every
// other kind is taken as it stands.
std::string device_of_slot(const std::string& kind, std::uint32_t slot);

}  // namespace rubato::worker
