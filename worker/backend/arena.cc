#include "worker/backend/device.h"

namespace rubato::worker {

Arena& Arena::operator=(Arena&& other) noexcept {
  if (this == &other) return *this;
  if (base_ != nullptr) device_->release(base_, bytes_);
  device_ = other.device_;
  base_ = std::exchange(other.base_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  used_ = std::exchange(other.used_, 0);
  return *this;
}

Arena::~Arena() {
  if (base_ != nullptr) device_->release(base_, bytes_);
}

std::size_t Arena::bytes_for(DType type, std::int64_t count) {
  const std::size_t bytes = static_cast<std::size_t>(count) * size_of(type);
  return (bytes + kDeviceAlignment - 1) / kDeviceAlignment * kDeviceAlignment;
}

Buffer Arena::take(DType type, std::int64_t count) {
  const std::size_t bytes = bytes_for(type, count);
  CHECK_LE(used_ + bytes, bytes_);
  void* address = static_cast<std::byte*>(base_) + used_;
  used_ += bytes;
  return {address, count, type};
}

}  // namespace rubato::worker
