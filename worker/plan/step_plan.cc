#include "worker/plan/step_plan.h"

#include "worker/model/exact_sum.h"
#include "worker/model/optimizer.h"
#include "worker/model/training_state.h"

#include <algorithm>

namespace rubato::worker {

namespace {
// The model keeps the tokens of a micro-batch on the host.
constexpr std::int64_t kMicroBatchTokensMost = std::int64_t{1} << 24;
}  // namespace

double peak_flops(const GpuType& gpu, Precision precision) {
  return precision == Precision::kBf16 ? gpu.bf16_flops : gpu.f32_flops;
}

double StepPlan::seconds() const {
  double sum = 0;
  for (const Row& row : rows) sum += row.seconds;
  return sum;
}

Result<StepPlan> plan_step(const StepRequest& request) {
  if (request.micro_batch < 1 || request.micro_batches < 1)
    return Error(Code::kInvalid, "a step has at least one micro-batch of at least one sample");
  TRY_OK(request.model.validate());
  if (request.micro_batch > kMicroBatchTokensMost / request.model.sequence_length)
    return Error(Code::kInvalid, "a micro-batch of " + std::to_string(request.micro_batch) +
                                     " samples of " +
                                     std::to_string(request.model.sequence_length) +
                                     " tokens is beyond what is predicted, " +
                                     std::to_string(kMicroBatchTokensMost) + " tokens");
  RecordingDevice device(request.precision);
  const auto stream = device.make_stream();
  StepPlan plan;
  std::size_t before = 0;
  const auto grown = [&] {
    const std::size_t now = device.allocated();
    return static_cast<double>(now - std::exchange(before, now));
  };
  TRY(const auto model, make_model(request.model, request.micro_batch, device));
  plan.activation_bytes = grown();
  const ParameterTable& table = model->table();
  TRY(TrainingState state, TrainingState::create(device, table));
  plan.state_bytes = grown();
  TRY(ExactSum sum, ExactSum::create(device, table, request.micro_batches));
  TRY(AdamW adamw, AdamW::create({}, device, table));
  TRY(Arena arena, device.allocate(Arena::bytes_for(DType::kF32, table.flat_count())));
  const Buffer gradient = arena.take(DType::kF32, table.flat_count());
  plan.gradient_bytes = grown();

  const std::vector<std::int32_t> tokens(
      static_cast<std::size_t>(request.micro_batch * (request.model.sequence_length + 1)));
  device.kernels().clear();
  TRY_OK(model->forward_backward(*stream, tokens, state.parameters(), gradient));
  sum.add(*stream, 0, 0, gradient, state.exponents());
  for (const KernelCalls& calls : device.kernels().calls()) {
    plan.rows.push_back({calls});
    plan.rows.back().calls.count *= request.micro_batches;
  }
  device.kernels().clear();
  sum.clear(*stream);
  TRY_OK(sum.overflows(*stream, sum.accumulators()));
  sum.mean(*stream, sum.accumulators(), state.exponents(), gradient);
  TRY(const double norm, adamw.norm(*stream, gradient));
  TRY_OK(sum.advance(*stream, sum.accumulators(), gradient, state.exponents()));
  adamw.apply(*stream, gradient, norm, state);
  for (const KernelCalls& calls : device.kernels().calls()) plan.rows.push_back({calls});

  plan.tokens = static_cast<double>(request.micro_batch * request.micro_batches *
                                    request.model.sequence_length);
  plan.model_flops = plan.tokens * model->flops_per_token();
  return plan;
}

void predict(StepPlan& plan, const GpuType& gpu, Precision precision,
             const Efficiencies& efficiencies) {
  const double peak = peak_flops(gpu, precision);
  const auto rate = [&](KernelKind kind) {
    switch (kind) {
      case KernelKind::kGemm:
        return efficiencies.gemm * peak;
      case KernelKind::kAttentionForward:
        return efficiencies.attention_forward * peak;
      case KernelKind::kAttentionBackward:
        return efficiencies.attention_backward * peak;
      case KernelKind::kMemory:
        break;
    }
    return gpu.f32_flops;  // none are counted
  };
  for (StepPlan::Row& row : plan.rows) {
    const double moving = row.calls.bytes / (efficiencies.memory * gpu.bytes_per_second);
    const double computing = row.calls.flops / rate(row.calls.kind);
    row.seconds = static_cast<double>(row.calls.count) * std::max(moving, computing);
  }
}

}  // namespace rubato::worker
