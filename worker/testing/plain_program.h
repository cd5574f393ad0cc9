// PlainProgram: a script in C++: a linear model of a few parameters, momentum, and a counter that
// is no tensor. What a sample is, its number says.
#pragma once

#include "worker/pytorch/torch_program.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

namespace rubato::worker {

class PlainProgram : public TorchProgram {
 public:
  static constexpr std::int64_t kWeights = 300;  // more than a block

  TorchSetup setup{
      .micro_batch = 2,
      .micro_batches = 5,
      .samples = 64,
      .tokens_per_step = 10,
      .seed = 7,
      .validation_micro_batches = 2,
      .extra_bytes = 64,
      .fingerprint = "plain",
      .model_config = "{}",
      .tensors = {{"weight", "F32", {kWeights}, TensorGroup::kTrained},
                  {"bias", "F32", {}, TensorGroup::kTrained},
                  {"mask", "BOOL", {3}, TensorGroup::kModel},
                  {"momentum.weight", "F32", {kWeights}, TensorGroup::kOptimizer}},
  };
  bool is_weighted = false;
  double scale = 1;                   // of the gradients
  double loss_scale = 1;              // of the losses alone
  std::string failure;                // of compute() and loaded()
  std::vector<std::int64_t> samples;  // of the last compute()
  std::vector<MicroBatch> ahead;      // told with it
  std::uint64_t loaded_at = 0;        // by loaded()
  int configured = 0;                 // times
  bool has_ended = false;             // it refuses all, as RequestQueue does

  Result<TorchSetup> configure(const std::string&) override {
    ++configured;
    return setup;
  }
  Status bind(const TorchMemory& memory) override {
    memory_ = memory;
    return ok();
  }
  Status init() override {
    TRY_OK(ask());
    for (std::int64_t i = 0; i < kWeights; ++i) weight()[i] = 0.01f * static_cast<float>(i % 17);
    *bias() = 0.5f;
    std::memset(memory_.tensors[2], 1, 3);
    std::memset(memory_.tensors[3], 0, kWeights * sizeof(float));
    std::memset(memory_.extra, 0, setup.extra_bytes);
    return ok();
  }
  Status loaded(std::uint64_t step) override {
    TRY_OK(ask());
    if (!failure.empty()) return Error(Code::kInvalid, failure).set_reason("ProgramFailed");
    loaded_at = step;
    return ok();
  }
  Result<MicroBatchLoss> compute(const MicroBatch& micro_batch,
                                 std::span<const MicroBatch> next) override {
    TRY_OK(ask());
    samples = micro_batch.samples;
    ahead.assign(next.begin(), next.end());
    if (!failure.empty()) return Error(Code::kInvalid, failure).set_reason("ProgramFailed");
    std::ranges::fill(memory_.gradient, 0.0f);
    double loss = 0;
    std::int64_t weight_sum = 0;
    for (const std::int64_t sample : samples) {
      const std::int64_t weight_of = is_weighted ? 1 + sample % 5 : 1;
      weight_sum += weight_of;
      const double target = std::sin(static_cast<double>(sample + 3 * micro_batch.micro));
      const Input& input = input_of(sample);
      double value = 0;
      for (std::int64_t i = 0; i < kWeights; ++i) value += weight()[i] * input[i];
      value = *bias() + value / static_cast<double>(kWeights);
      const double error = (value - target) * static_cast<double>(weight_of);
      loss += 0.5 * error * (value - target);
      const double factor = scale * error / static_cast<double>(kWeights);
      for (std::int64_t i = 0; i < kWeights; ++i)
        memory_.gradients[0][i] += static_cast<float>(factor * input[i]);
      *memory_.gradients[1] += static_cast<float>(scale * error);
    }
    loss *= loss_scale;
    if (is_weighted) return MicroBatchLoss{loss, weight_sum};
    const auto count = static_cast<float>(samples.size());
    for (float& each : memory_.gradient) each /= count;
    return MicroBatchLoss{loss / static_cast<double>(count), 1};
  }
  Result<double> apply(std::uint64_t, float factor, double, double, MemberPlace) override {
    TRY_OK(ask());
    if (factor != 1)
      for (float& each : memory_.gradient) each *= factor;
    auto* momentum = reinterpret_cast<float*>(memory_.tensors[3]);
    for (std::int64_t i = 0; i < kWeights; ++i) {
      momentum[i] = 0.9f * momentum[i] + memory_.gradients[0][i];
      weight()[i] -= 0.1f * momentum[i];
    }
    *bias() -= 0.1f * *memory_.gradients[1];
    std::uint64_t counter = 0;
    std::memcpy(&counter, memory_.extra, sizeof counter);
    ++counter;
    std::memcpy(memory_.extra, &counter, sizeof counter);
    return 0.1;
  }
  Result<double> validate(std::uint32_t micro) override {
    TRY_OK(ask());
    return loss_scale * (1.0 + micro);
  }
  void wait_until_idle() override {}
  bool is_over() override { return has_ended; }

  float* weight() { return reinterpret_cast<float*>(memory_.tensors[0]); }
  float* bias() { return reinterpret_cast<float*>(memory_.tensors[1]); }

 protected:
  Status ask() {
    return is_over() ? Status(Error(Code::kCancelled, "the script's loop is over")) : ok();
  }

 private:
  static constexpr std::int64_t kInputs = 101;  // different ones
  using Input = std::array<double, kWeights>;

  // Made once: the simulation asks for some hundred thousand a minute.
  static const Input& input_of(std::int64_t sample) {
    static const auto kAll = [] {
      std::vector<Input> made(kInputs);
      for (std::int64_t s = 0; s < kInputs; ++s)
        for (std::int64_t i = 0; i < kWeights; ++i)
          made[s][i] = std::cos(static_cast<double>(s * (i + 1) % kInputs));
      return made;
    }();
    return kAll[sample % kInputs];
  }

  TorchMemory memory_;
};

}  // namespace rubato::worker
