// What a worker's memory on a device will hold, before any of it is taken: the job's own code asks
// for it, of a device that has addresses alone. There is no second list of a model's layers.
#pragma once

#include "worker/backend/device.h"
#include "worker/model/model.h"
#include "worker/model/numerics.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace rubato::worker {

// A model keeps the tokens of a micro-batch on the host, in the plan, too.
constexpr std::int64_t kPlannedTokensMost = std::int64_t{1} << 24;

using MakeModel = std::function<Result<std::unique_ptr<Model>>(const ModelConfig&,
                                                               std::int64_t micro_batch, Device&)>;

struct MemoryRequest {
  ModelConfig model;
  std::int64_t micro_batch = 1;    // samples
  std::int64_t micro_batches = 1;  // that ExactSum adds
  int numerics = kNumericsVersion;
  bool has_checkpoints = true;  // any worker may have to write the next one, from a copy
};

// In bytes, as the device is asked for them. The host has one tensor of the model beside them while
// a job begins, before there is a copy of the state.
struct MemoryPlan {
  std::uint64_t state = 0;        // parameters, both moments, exponents
  std::uint64_t gradient = 0;     // its exact sum, that of all workers, and the norm's
  std::uint64_t activations = 0;  // and the model's workspaces
  std::uint64_t copy = 0;         // of the state, for checkpoints and for newcomers
  // What may never be used: of the activations, at most (Model::untouched_bytes), and the copy of a
  // job that writes no checkpoints and that nobody joins.
  std::uint64_t untouched = 0;

  std::uint64_t sum() const { return state + gradient + activations + copy; }
  // Without so much a step cannot be computed and written.
  std::uint64_t least() const { return sum() - untouched; }
  // "parameters and optimizer 1.4 GiB, gradient and exact sum 1.4 GiB, …"
  std::string text() const;
};

// Sizes that a backend chooses (workspaces, what attention keeps) are those of `device`, which
// nothing is taken from and nothing runs on. kInvalid: a bad configuration, as make_model() says,
// or more than kPlannedTokensMost.
Result<MemoryPlan> plan_memory(const MemoryRequest& request, Device& device,
                               const MakeModel& make_model = rubato::worker::make_model);

}  // namespace rubato::worker
