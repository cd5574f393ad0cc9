#include "worker/testing/deferred_device.h"

#include "worker/testing/deferred_kernels.h"
#include "worker/testing/deferred_stream.h"

#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

namespace rubato::worker {

namespace {

class DeferredDevice : public Device {
 public:
  DeferredDevice(std::unique_ptr<Device> cpu, std::uint64_t waits)
      : cpu_(std::move(cpu)),
        inner_stream_(cpu_->make_stream()),
        scheduler_(std::make_shared<deferred::Scheduler>(waits)),
        kernels_(cpu_->kernels(), *inner_stream_) {}

  std::string name() const override { return "deferred"; }
  std::string fingerprint() const override { return cpu_->fingerprint(); }
  Result<MemoryLimit> memory() const override { return cpu_->memory(); }
  Result<Arena> allocate(std::size_t bytes) override;
  std::unique_ptr<Stream> make_stream() override {
    return std::make_unique<deferred::DeferredStream>(scheduler_);
  }
  std::unique_ptr<Event> make_event() override {
    return std::make_unique<deferred::DeferredEvent>(scheduler_);
  }
  Kernels& kernels() override { return kernels_; }

  void copy_to_device(Stream& stream, Buffer to, const void* from) override {
    defer(stream, [=, this] { cpu_->copy_to_device(*inner_stream_, to, from); });
  }
  void copy_to_host(Stream& stream, void* to, ConstBuffer from) override {
    if (!from.is_empty()) std::memset(to, kPoison, from.bytes());
    defer(stream, [=, this] { cpu_->copy_to_host(*inner_stream_, to, from); });
  }
  void copy(Stream& stream, Buffer to, ConstBuffer from) override {
    defer(stream, [=, this] { cpu_->copy(*inner_stream_, to, from); });
  }
  void memset(Stream& stream, Buffer to, std::uint8_t byte) override {
    defer(stream, [=, this] { cpu_->memset(*inner_stream_, to, byte); });
  }
  void* host_view(Buffer) override { return nullptr; }
  const void* host_view(ConstBuffer) override { return nullptr; }

 protected:
  void release(void* base, std::size_t bytes) override;

 private:
  static void defer(Stream& stream, std::function<void()> work) {
    static_cast<deferred::DeferredStream&>(stream).enqueue(std::move(work));
  }
  std::unique_ptr<Device> cpu_;
  std::unique_ptr<Stream> inner_stream_;
  std::shared_ptr<deferred::Scheduler> scheduler_;
  deferred::DeferredKernels kernels_;
  std::mutex mutex_;
  std::map<void*, Arena> lent_;  // by where they begin
};

Result<Arena> DeferredDevice::allocate(std::size_t bytes) {
  if (bytes == 0) return Arena();
  scheduler_->finish_all();
  TRY(Arena lent, cpu_->allocate(bytes));
  void* base = lent.take(DType::kU8, 0).address();
  const std::lock_guard lock(mutex_);
  lent_.emplace(base, std::move(lent));
  scheduler_->add_memory(base, bytes);
  return Arena(*this, base, bytes);
}

void DeferredDevice::release(void* base, std::size_t) {
  scheduler_->remove_memory(base);
  const std::lock_guard lock(mutex_);
  lent_.erase(base);
}

}  // namespace

std::unique_ptr<Device> make_deferred_device(std::unique_ptr<Device> cpu, std::uint64_t waits) {
  return std::make_unique<DeferredDevice>(std::move(cpu), waits);
}

Result<std::unique_ptr<Device>> open_any_device(const DeviceSpec& spec) {
  constexpr std::string_view kKind = "deferred";
  if (!spec.kind.starts_with(kKind)) return open_device(spec);
  const std::string waits = spec.kind.substr(kKind.size());  // ":N"
  TRY(auto cpu, open_device({.kind = "cpu", .isa = spec.isa, .precision = spec.precision}));
  return make_deferred_device(std::move(cpu),
                              waits.empty() ? kNeverLost : std::stoull(waits.substr(1)));
}

Result<std::unique_ptr<Device>> open_test_device(DeviceSpec spec) {
  if (const char* kind = std::getenv("RUBATO_TEST_DEVICE"); kind != nullptr && *kind != '\0')
    spec.kind = kind;
  return open_any_device(spec);
}

}  // namespace rubato::worker
