// Hooks: where tests reach into a worker: named places of a step, the ledger of samples, the
// device. The program that ships is linked with no_hooks.cc, which leaves both empty and reads no
// environment; the one of our tests (bin/testing/rubato-worker) with worker/testing/test_hooks.cc.
// All else in the two is the same object code.
#pragma once

#include "common/files.h"
#include "common/result.h"
#include "worker/backend/device.h"
#include "worker/step/sample_ledger.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace rubato::worker {

struct Hooks {
  // See EngineParts::reach. Any thread.
  std::function<void(std::string_view phase, std::uint64_t step)> reach = [](std::string_view,
                                                                             std::uint64_t) {};
  // The ledger of a job with checkpoints, beside which it lies. Empty: none is kept.
  std::function<Result<std::unique_ptr<SampleLedger>>(FileSystem& files, const std::string& path)>
      open_ledger;
  // Knows more kinds of devices than the program that ships.
  std::function<Result<std::unique_ptr<Device>>(const DeviceSpec&)> open_device =
      rubato::worker::open_device;
};

// Once a process.
Hooks make_hooks();

}  // namespace rubato::worker
