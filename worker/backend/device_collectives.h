// DeviceCollectives: what a kind of device has of its own to add integers between the members of a
// generation: NCCL for NVIDIA's GPUs (worker/backend/cuda/nccl.h). worker/collective uses it beside
// its links where all members offer the same; sums of integers have the same bits on either way.
//
// What it sends is not encrypted: it is used only where somebody asked for it (RUBATO_COLLECTIVE).
#pragma once

#include "common/executor.h"
#include "common/result.h"
#include "worker/backend/device.h"

#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>

namespace rubato::worker {

// Of one member of one generation.
//
// Thread: all_reduce_int32 belongs to one thread; abort() may be called from any.
class DeviceReducer {
 public:
  virtual ~DeviceReducer() = default;
  // As Communicator::all_reduce_int32 (worker/collective/communicator.h). kCancelled after abort();
  // kUnavailable: it failed, and says nothing of who is to blame.
  virtual Status all_reduce_int32(Stream& stream, ConstBuffer in, Buffer out) = 0;
  // Frees that thread. Never blocks and calls no library: another thread does, and where that does
  // not come back within kAbortLimit the process ends with kStuckStatus, for what a device does
  // then is unknown.
  virtual void abort() = 0;
};
constexpr auto kAbortLimit = 2s;

// A member's place in a generation.
struct ReducerPlace {
  std::string id;  // of make_id(), the same for all members
  std::uint32_t rank = 0;
  std::uint32_t size = 0;
};

// Thread-safe. Belongs to its device.
class DeviceCollectives {
 public:
  virtual ~DeviceCollectives() = default;
  // With its version: only members that say the same may go together. "nccl-2.28.9".
  virtual std::string name() const = 0;
  // By one member, for all, once a generation. It must live until all are connected.
  virtual Result<std::string> make_id() = 0;
  // Blocks until all members are connected, beside any reducer in use. kTimeout at `deadline`;
  // kCancelled by `stop`; kUnavailable: the library says why not.
  virtual Result<std::unique_ptr<DeviceReducer>> connect(Executor& executor,
                                                         const ReducerPlace& place,
                                                         MonoTime deadline,
                                                         std::stop_token stop) = 0;
};

}  // namespace rubato::worker
