#include "worker/step/memory_check.h"

#include "common/log.h"
#include "common/words.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace rubato::worker {

namespace {

MemoryRequest request_of(const TrainingConfig& config, std::int64_t micro, int numerics) {
  return {.model = config.model,
          .micro_batch = micro,
          .micro_batches = config.sampler.global_batch / micro,
          .numerics = numerics,
          .has_checkpoints = !config.checkpoint_path.empty()};
}

// The largest micro-batch below the job's that fits; or what the smallest one takes. Both divide
// batch.global.
std::string way_out(const TrainingConfig& config, const MemoryPlan& planned,
                    const MemoryLimit& limit, const auto& plan) {
  MemoryPlan smallest = planned;
  for (std::int64_t fewer = config.sampler.micro_batch - 1; fewer >= 1; --fewer) {
    if (config.sampler.global_batch % fewer != 0) continue;
    const Result<MemoryPlan> other = plan(fewer);
    if (!other.ok()) continue;  // too many tokens, or more micro-batches than a step has
    if (other->least() <= limit.bytes)
      return fmt::format("batch.micro {} would fit ({})", fewer, human_bytes(other->sum()));
    smallest = *other;
  }
  return fmt::format(
      "no micro-batch fits: a smaller model or batch.sequenceLength, or a node and a pod with more "
      "than {} for each worker",
      human_bytes(smallest.sum()));
}

}  // namespace

Status check_memory(const TrainingConfig& config, int numerics, Device& device,
                    const MakeModel& make_model) {
  const auto plan = [&](std::int64_t micro) {
    return plan_memory(request_of(config, micro, numerics), device, make_model);
  };
  // Of a micro-batch that is too large to be planned a smaller one says what it takes at least.
  const std::int64_t micro = std::min(
      config.sampler.micro_batch,
      std::max<std::int64_t>(
          1, kPlannedTokensMost / std::max<std::int64_t>(1, config.model.sequence_length)));
  Result<MemoryPlan> planned = plan(micro);
  if (!planned.ok())
    return Error(planned.error())
        .set_reason(planned.error().code() == Code::kExhausted ? kOutOfMemory : "BadTraining");
  const Result<MemoryLimit> limit = device.memory();
  if (!limit.ok()) return Error(limit.error()).set_reason("DeviceUnavailable");
  if (limit->bytes == MemoryLimit::kNone) return ok();
  const std::string sum = fmt::format("{} of {} ({})", human_bytes(planned->sum()),
                                      human_bytes(limit->bytes), limit->source);
  if (planned->least() > limit->bytes)
    return Error(Code::kExhausted,
                 fmt::format("the model does not fit into the memory of {}: {}; {}: {}",
                             device.name(), sum, way_out(config, *planned, *limit, plan),
                             planned->text()))
        .set_reason(kOutOfMemory);
  LOG_INFO("memory", "on {}: {}; {}", device.name(), planned->text(), sum);
  return ok();
}

}  // namespace rubato::worker
