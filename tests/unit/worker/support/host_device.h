// HostDevice: a device whose memory is host memory and whose streams run at once; no kernels. For
// tests of code that only moves bytes.
#pragma once

#include "worker/backend/device.h"
#include "worker/backend/immediate.h"

#include <cstring>
#include <memory>
#include <string>

namespace rubato::worker {

class HostDevice : public Device {
 public:
  // With `hides` the device behaves as one whose memory the host cannot see.
  explicit HostDevice(bool hides = false) : hides_(hides) {}
  std::string name() const override { return "host"; }
  std::string fingerprint() const override { return "host"; }
  Result<MemoryLimit> memory() const override { return MemoryLimit{}; }
  Result<Arena> allocate(std::size_t) override {
    return Error(Code::kExhausted, "HostDevice lends no memory");
  }
  std::unique_ptr<Stream> make_stream() override { return std::make_unique<ImmediateStream>(); }
  std::unique_ptr<Event> make_event() override { return std::make_unique<ImmediateEvent>(); }
  Kernels& kernels() override { check_failed(__FILE__, __LINE__, "HostDevice has no kernels"); }
  void copy_to_device(Stream&, Buffer to, const void* from) override {
    if (!to.is_empty()) std::memcpy(to.address(), from, to.bytes());
  }
  void copy_to_host(Stream&, void* to, ConstBuffer from) override {
    if (!from.is_empty()) std::memcpy(to, from.address(), from.bytes());
  }
  void copy(Stream&, Buffer to, ConstBuffer from) override {
    if (!to.is_empty()) std::memcpy(to.address(), from.address(), to.bytes());
  }
  void memset(Stream&, Buffer to, std::uint8_t byte) override {
    if (!to.is_empty()) std::memset(to.address(), byte, to.bytes());
  }
  void* host_view(Buffer buffer) override { return hides_ ? nullptr : buffer.address(); }
  const void* host_view(ConstBuffer buffer) override { return hides_ ? nullptr : buffer.address(); }

 protected:
  void release(void*, std::size_t) override {}

 private:
  bool hides_;
};

}  // namespace rubato::worker
