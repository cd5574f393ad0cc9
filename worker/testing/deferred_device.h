// DeferredDevice: a device that is as inconvenient as a GPU may be, over the CPU backend and with
// its bits. For tests: what works on it does not rely on what only the CPU gives.
//
//   * Its memory is apart: host_view() is null, and the bytes cannot be touched by the host at all
//     (the pages are protected) but while enqueued work runs.
//   * Work runs at the last allowed moment: when somebody waits for its stream or for an event
//     behind it. What was handed in by pointer is read only then.
//   * Host memory that a copy will fill is filled with kPoison when the copy is enqueued, so that
//     who reads it before waiting reads nonsense.
//   * allocate() and the end of a stream or of an arena wait, as they do on a GPU.
//   * It can be one that is lost in the middle of its work: after so many waits for its streams
//     and events each says kDeviceLost.
//
// The fingerprint is the CPU's: both compute the same. Threads: as Device says; work of two streams
// never runs at once.
#pragma once

#include "worker/backend/device.h"

#include <cstdint>
#include <memory>

namespace rubato::worker {

constexpr std::uint8_t kPoison = 0xA5;

constexpr std::uint64_t kNeverLost = ~std::uint64_t{0};

// `cpu`: what computes and lends the memory. Lost after so many waits.
std::unique_ptr<Device> make_deferred_device(std::unique_ptr<Device> cpu,
                                             std::uint64_t waits = kNeverLost);

// open_device(), and two kinds more: "deferred", and "deferred:N", which is lost after N waits.
Result<std::unique_ptr<Device>> open_any_device(const DeviceSpec& spec);

// What unit tests of the worker compute on: the CPU, or the kind that RUBATO_TEST_DEVICE names.
Result<std::unique_ptr<Device>> open_test_device(DeviceSpec spec = {});

}  // namespace rubato::worker
