#include "worker/plan/step_plan.h"

#include <gtest/gtest.h>

namespace rubato::worker {
namespace {

StepRequest request(const char* preset, std::int64_t length, std::int64_t micro,
                    std::int64_t micro_batches) {
  ModelConfig model = model_preset(preset).value();
  model.sequence_length = length;
  return {.model = model, .micro_batch = micro, .micro_batches = micro_batches};
}

double flops(const StepPlan& plan, KernelKind kind) {
  double sum = 0;
  for (const auto& [calls, seconds] : plan.rows)
    if (calls.kind == kind) sum += static_cast<double>(calls.count) * calls.flops;
  return sum;
}

TEST(StepPlan, CountsTheOperationsOfTheModelsFormula) {
  for (const char* preset : {"gpt2-124m", "llama-3.2-1b"}) {
    const StepRequest wanted = request(preset, 1024, 8, 4);
    const StepPlan plan = plan_step(wanted).value();
    EXPECT_EQ(plan.tokens, 4.0 * 8 * 1024);
    // Of attention causality leaves a half, and the formula counts all of it, and twice the forward
    // pass for the backward one, where ours computes the probabilities anew: 2 and 5 products of
    // half the size for 6 of the whole.
    const double attention = 12.0 * static_cast<double>(wanted.model.layers) *
                             static_cast<double>(wanted.model.hidden) * 1024 * plan.tokens;
    EXPECT_NEAR(flops(plan, KernelKind::kAttentionForward), attention / 6, attention * 1e-9);
    EXPECT_NEAR(flops(plan, KernelKind::kAttentionBackward), attention * 5 / 12, attention * 1e-9);
    // The vocabulary is padded to 64 rows.
    const double products = plan.model_flops - attention;
    EXPECT_NEAR(flops(plan, KernelKind::kGemm), products, products * 1e-3) << preset;
  }
}

TEST(StepPlan, MemoryIsWhatTheWorkerTakes) {
  const StepPlan plan = plan_step(request("gpt2-124m", 1024, 8, 4)).value();
  constexpr double kParameters = 124.5e6;
  const auto near = [](std::uint64_t bytes, double each) {
    const double want = each * kParameters;
    EXPECT_NEAR(static_cast<double>(bytes), want, want * 0.01);
  };
  near(plan.memory.state, 12);
  near(plan.memory.gradient, 12);
  near(plan.memory.copy, 12);
  const StepPlan twice = plan_step(request("gpt2-124m", 1024, 16, 4)).value();
  EXPECT_EQ(twice.memory.state, plan.memory.state);
  const auto more = static_cast<double>(twice.memory.activations);
  EXPECT_NEAR(more, 2 * static_cast<double>(plan.memory.activations), 0.05 * more);
}

TEST(StepPlan, AStepTakesAsLongAsItsKernels) {
  StepPlan plan = plan_step(request("gpt2-124m", 1024, 8, 1)).value();
  const GpuType gpu = {"x", "x", 1e12, 10e12, 1e12, 1e9};
  predict(plan, gpu, Precision::kF32);
  const double in_f32 = plan.seconds();
  double least = 0;  // no kernel is faster than what it moves
  for (const auto& [calls, seconds] : plan.rows) {
    EXPECT_GT(seconds, 0) << calls.kernel;
    least += static_cast<double>(calls.count) * calls.bytes / (0.8 * gpu.bytes_per_second);
  }
  EXPECT_GT(in_f32, least);
  EXPECT_GT(in_f32, flops(plan, KernelKind::kGemm) / (0.65 * gpu.f32_flops));
  predict(plan, gpu, Precision::kBf16);
  EXPECT_LT(plan.seconds(), in_f32 * 0.4);
  // Four micro-batches are four times the work, but for the update.
  StepPlan four = plan_step(request("gpt2-124m", 1024, 8, 4)).value();
  predict(four, gpu, Precision::kBf16);
  EXPECT_LT(four.seconds(), 4 * plan.seconds());
  EXPECT_GT(four.seconds(), 3.8 * plan.seconds());
}

TEST(StepPlan, SaysWhatIsWrong) {
  EXPECT_EQ(plan_step(request("gpt2-124m", 1024, 0, 1)).error().code(), Code::kInvalid);
  EXPECT_EQ(plan_step(request("gpt2-124m", 1 << 20, 4096, 1)).error().code(), Code::kInvalid);
  StepRequest odd = request("gpt2-124m", 64, 1, 1);
  odd.model.heads = 5;
  EXPECT_EQ(plan_step(odd).error().code(), Code::kInvalid);
}

}  // namespace
}  // namespace rubato::worker
