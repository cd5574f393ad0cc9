#include "worker/plan/step_plan.h"

#include "worker/model/exact_sum.h"
#include "worker/model/optimizer.h"
#include "worker/model/step_buffers.h"
#include "worker/model/training_state.h"

#include <algorithm>

namespace rubato::worker {

double peak_flops(const GpuType& gpu, Precision precision) {
  return precision == Precision::kBf16 ? gpu.bf16_flops : gpu.f32_flops;
}

double StepPlan::seconds() const {
  double sum = 0;
  for (const Row& row : rows) sum += row.seconds;
  return sum;
}

Result<StepPlan> plan_step(const StepRequest& request) {
  RecordingDevice device(request.precision);
  StepPlan plan;
  TRY(plan.memory, plan_memory({.model = request.model,
                                .micro_batch = request.micro_batch,
                                .micro_batches = request.micro_batches},
                               device));
  const auto stream = device.make_stream();
  TRY(const auto model, make_model(request.model, request.micro_batch, device));
  const ParameterTable& table = model->table();
  TRY(TrainingState state, TrainingState::create(device, table));
  TRY(ExactSum sum, ExactSum::create(device, table, request.micro_batches));
  TRY(AdamW adamw, AdamW::create({}, device, table));
  TRY(const StepBuffers buffers, StepBuffers::create(device, *stream, sum, table.flat_count()));
  const Buffer gradient = buffers.gradient;

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
  sum.weigh_given(*stream);
  sum.weigh_reduced(*stream, sum.accumulators());
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
