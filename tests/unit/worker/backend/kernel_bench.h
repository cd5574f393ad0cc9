// A device with buffers made from host vectors, for tests of single kernels.
#pragma once

#include "common/rng.h"
#include "tests/unit/worker/backend/reference.h"
#include "worker/backend/device.h"
#include "worker/backend/kernels.h"
#include "worker/testing/deferred_device.h"

#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

namespace rubato::worker::testing {

class KernelBench : public ::testing::Test {
 protected:
  KernelBench() : device(std::move(open_test_device()).value()), stream(device->make_stream()) {}

  Kernels& kernels() { return device->kernels(); }

  Buffer blank(DType type, std::size_t count) {
    const auto n = static_cast<std::int64_t>(count);
    arenas_.push_back(
        std::move(device->allocate(Arena::bytes_for(type, n) + kDeviceAlignment)).value());
    return arenas_.back().take(type, n);
  }
  Buffer zeros(std::size_t count) { return blank(DType::kF32, count); }
  Buffer upload(const std::vector<float>& values) {
    const Buffer buffer = zeros(values.size());
    device->copy_to_device(*stream, buffer, values.data());
    EXPECT_TRUE(stream->synchronize().ok());
    return buffer;
  }
  Buffer upload(const std::vector<std::int32_t>& values) {
    const Buffer buffer = blank(DType::kI32, values.size());
    device->copy_to_device(*stream, buffer, values.data());
    EXPECT_TRUE(stream->synchronize().ok());
    return buffer;
  }
  std::vector<float> floats(ConstBuffer buffer) {
    std::vector<float> out(static_cast<std::size_t>(buffer.count()));
    device->copy_to_host(*stream, out.data(), buffer);
    EXPECT_TRUE(stream->synchronize().ok());
    return out;
  }
  std::vector<std::int32_t> ints(ConstBuffer buffer) {
    std::vector<std::int32_t> out(static_cast<std::size_t>(buffer.count()));
    device->copy_to_host(*stream, out.data(), buffer);
    EXPECT_TRUE(stream->synchronize().ok());
    return out;
  }

  static std::vector<float> noise(std::size_t count, std::uint64_t seed, double size = 1.0) {
    Rng rng(seed);
    std::vector<float> out(count);
    for (float& x : out) x = static_cast<float>(size * (2 * rng.unit() - 1));
    return out;
  }
  static std::vector<std::int32_t> tokens(std::size_t count, std::uint64_t below,
                                          std::uint64_t seed) {
    Rng rng(seed);
    std::vector<std::int32_t> out(count);
    for (auto& x : out) x = static_cast<std::int32_t>(rng.below(below));
    return out;
  }
  static reference::Vector wide(const std::vector<float>& x) { return {x.begin(), x.end()}; }

  // |got - want| <= tolerance * (1 + |want|), where `skip_zero_want` leaves out elements that the
  // numerical gradient did not visit.
  static void expect_near(const std::vector<float>& got, const reference::Vector& want,
                          double tolerance, std::size_t stride = 1) {
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < got.size(); i += stride)
      ASSERT_NEAR(static_cast<double>(got[i]), want[i], tolerance * (1 + std::abs(want[i])))
          << "element " << i;
  }

  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;

 private:
  std::deque<Arena> arenas_;
};

}  // namespace rubato::worker::testing
