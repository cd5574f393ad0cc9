// A device that has addresses and no memory behind them: what the job's own code asks it for can
// be counted. Nothing is copied; whatever is read back is zero. Thread: one at a time.
#pragma once

#include "worker/backend/device.h"

#include <cstddef>
#include <cstdint>
#include <memory>

namespace rubato::worker {

class AddressDevice : public Device {
 public:
  std::string fingerprint() const override { return name(); }
  Result<MemoryLimit> memory() const override { return MemoryLimit{}; }
  Result<Arena> allocate(std::size_t bytes) override;
  std::unique_ptr<Stream> make_stream() override;
  std::unique_ptr<Event> make_event() override;
  void copy_to_device(Stream&, Buffer, const void*) override {}
  void copy_to_host(Stream& stream, void* to, ConstBuffer from) override;
  void copy(Stream&, Buffer, ConstBuffer) override {}
  void memset(Stream&, Buffer, std::uint8_t) override {}
  void* host_view(Buffer) override { return nullptr; }
  const void* host_view(ConstBuffer) override { return nullptr; }

  // Of all arenas that live.
  std::size_t allocated() const { return allocated_; }

 protected:
  void release(void* base, std::size_t bytes) override;

 private:
  std::size_t allocated_ = 0;
};

}  // namespace rubato::worker
