#include "worker/plan/memory_plan.h"

#include "common/words.h"
#include "worker/model/exact_sum.h"
#include "worker/model/optimizer.h"
#include "worker/model/step_buffers.h"
#include "worker/model/training_state.h"
#include "worker/plan/address_device.h"

#include <utility>

#include <fmt/format.h>

namespace rubato::worker {

namespace {

// Has the sizes of another device and none of its memory.
class SizedDevice : public AddressDevice {
 public:
  explicit SizedDevice(Device& like) : like_(like) {}
  std::string name() const override { return like_.name(); }
  Kernels& kernels() override { return like_.kernels(); }

 private:
  Device& like_;
};

}  // namespace

std::string MemoryPlan::text() const {
  return fmt::format(
      "parameters and optimizer {}, gradient and its exact sum {}, activations {}, a copy for "
      "checkpoints and newcomers {}",
      human_bytes(state), human_bytes(gradient), human_bytes(activations), human_bytes(copy));
}

Result<MemoryPlan> plan_memory(const MemoryRequest& request, Device& device,
                               const MakeModel& make_model) {
  if (request.micro_batch < 1 || request.micro_batches < 1)
    return Error(Code::kInvalid, "a step has at least one micro-batch of at least one sample");
  TRY_OK(request.model.validate());
  if (request.micro_batch > kPlannedTokensMost / request.model.sequence_length)
    return Error(Code::kInvalid,
                 fmt::format("a micro-batch of {} of {} is beyond what is predicted, {}",
                             counted(request.micro_batch, "sample"),
                             counted(request.model.sequence_length, "token"),
                             counted(kPlannedTokensMost, "token")));
  SizedDevice counting(device);
  const auto stream = counting.make_stream();
  std::uint64_t before = 0;
  const auto grown = [&] {
    const std::uint64_t now = counting.allocated();
    return now - std::exchange(before, now);
  };
  MemoryPlan plan;
  TRY(const auto model, make_model(request.model, request.micro_batch, counting));
  plan.activations = grown();
  plan.untouched = model->untouched_bytes();
  const ParameterTable& table = model->table();
  TRY(const TrainingState state, TrainingState::create(counting, table));
  plan.state = grown();
  TRY(ExactSum sum, ExactSum::create(counting, table, request.micro_batches, request.numerics));
  TRY(const AdamW adamw, AdamW::create({}, counting, table));
  TRY(const StepBuffers buffers, StepBuffers::create(counting, *stream, sum, table.flat_count()));
  plan.gradient = grown();
  TRY(const TrainingState copy, TrainingState::create(counting, table));
  plan.copy = grown();
  if (!request.has_checkpoints) plan.untouched += plan.copy;
  return plan;
}

}  // namespace rubato::worker
