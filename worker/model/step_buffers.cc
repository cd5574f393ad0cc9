#include "worker/model/step_buffers.h"

namespace rubato::worker {

Result<StepBuffers> StepBuffers::create(Device& device, Stream& stream, ExactSum& sum,
                                        std::int64_t flat_count) {
  StepBuffers out;
  const std::int64_t sums = sum.accumulator_count();
  TRY(out.arena, device.allocate(Arena::bytes_for(DType::kF32, flat_count) +
                                 Arena::bytes_for(DType::kI32, sums)));
  out.gradient = out.arena.take(DType::kF32, flat_count);
  out.reduced = out.arena.take(DType::kI32, sums);
  // Touched now: a newcomer would otherwise take its first pages in the step of its switch.
  device.memset(stream, out.gradient, 0);
  device.memset(stream, out.reduced, 0);
  sum.clear(stream);
  TRY_OK(stream.synchronize());
  return out;
}

}  // namespace rubato::worker
