// The CPU as a device: memory is host memory, streams run their work at once in the calling thread,
// so every event is done as soon as it is recorded.
#pragma once

#include "worker/backend/cpu/cpu_kernels.h"
#include "worker/backend/device.h"

namespace rubato::worker::cpu {

class CpuDevice : public Device {
 public:
  // The instruction set must be pinned already (pin_isa).
  explicit CpuDevice(Isa isa) : isa_(isa), kernels_(isa) {}

  std::string name() const override { return "cpu"; }
  std::string fingerprint() const override;
  Result<MemoryLimit> memory() const override;
  Result<Arena> allocate(std::size_t bytes) override;
  std::unique_ptr<Stream> make_stream() override;
  std::unique_ptr<Event> make_event() override;
  Kernels& kernels() override { return kernels_; }
  void copy_to_device(Stream& stream, Buffer to, const void* from) override;
  void copy_to_host(Stream& stream, void* to, ConstBuffer from) override;
  void copy(Stream& stream, Buffer to, ConstBuffer from) override;
  void memset(Stream& stream, Buffer to, std::uint8_t byte) override;
  void* host_view(Buffer buffer) override { return buffer.address(); }
  const void* host_view(ConstBuffer buffer) override { return buffer.address(); }

 protected:
  void release(void* base, std::size_t bytes) override;

 private:
  Isa isa_;
  CpuKernels kernels_;
};

Result<std::unique_ptr<Device>> open_cpu_device(const DeviceSpec& spec);

}  // namespace rubato::worker::cpu
