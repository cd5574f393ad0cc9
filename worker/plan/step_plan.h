// What a step of a worker takes on a GPU, predicted: each kernel's bytes and floating-point
// operations, which follow from the shapes (recording_device.h), over what the GPU could do at most
// times a fixed efficiency. Nothing was measured, so whatever shows such a figure says *predicted*.
// Left out: starting kernels, looking at exponents on the host, reading samples, and the exchange
// with other workers.
#pragma once

#include "common/gpu_types.h"
#include "worker/model/model.h"
#include "worker/plan/memory_plan.h"
#include "worker/plan/recording_device.h"

#include <cstdint>
#include <vector>

namespace rubato::worker {

// Of the peak; chosen before any of our kernels ran on a GPU, and not fitted since.
struct Efficiencies {
  double gemm = 0.65;
  double memory = 0.80;
  double attention_forward = 0.20;  // in f32 without tensor cores, in bf16 with them
  double attention_backward = 0.15;
};

struct StepRequest {
  ModelConfig model;
  std::int64_t micro_batch = 8;    // samples
  std::int64_t micro_batches = 1;  // of this worker in a step
  Precision precision = Precision::kF32;
};

struct StepPlan {
  struct Row {
    KernelCalls calls;   // in the whole step
    double seconds = 0;  // of all of them; 0 until predict()
  };
  std::vector<Row> rows;   // in the order of their first call
  MemoryPlan memory;       // of a worker that writes checkpoints
  double tokens = 0;       // of a step
  double model_flops = 0;  // of a step, as model FLOP utilisation counts them
  double seconds() const;
};

// Runs the model's own code once on a device that computes nothing. kInvalid: a bad configuration,
// or heads that the GPU's attention does not take.
Result<StepPlan> plan_step(const StepRequest& request);
// Of matrix products, and of attention's.
double peak_flops(const GpuType& gpu, Precision precision);
// Fills in the seconds of each row, for the precision that was asked for. A product takes as long
// as its operations or its bytes do, whichever is more.
void predict(StepPlan& plan, const GpuType& gpu, Precision precision,
             const Efficiencies& efficiencies = {});

}  // namespace rubato::worker
