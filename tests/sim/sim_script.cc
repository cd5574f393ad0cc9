#include "tests/sim/sim_script.h"

#include "common/json.h"
#include "worker/testing/plain_program.h"

#include <algorithm>
#include <utility>

namespace rubato::sim {
namespace {

constexpr std::int64_t kSamples = 4096;
constexpr std::int64_t kSamplesPerSpike = 150;  // samples
constexpr double kSpike = 4096;

class SimScript : public worker::PlainProgram {
 public:
  SimScript(std::function<void()> work, std::function<bool()> has_finished)
      : work_(std::move(work)), has_finished_(std::move(has_finished)) {}

  Result<worker::TorchSetup> configure(const std::string& training) override {
    TRY(const json::Value spec, json::parse(training));
    const json::Value& batch = spec["batch"];
    setup.micro_batch = batch["micro"].int_or(1);
    setup.micro_batches = batch["global"].int_or(1) / setup.micro_batch;
    setup.samples = kSamples;
    setup.max_grad_norm = 1;
    setup.ahead = 3;
    ends_at_ = static_cast<std::uint64_t>(spec["seed"].int_or(0));
    is_weighted = true;
    return setup;
  }
  Result<worker::MicroBatchLoss> compute(const worker::MicroBatch& micro_batch,
                                         std::span<const worker::MicroBatch> next) override {
    TRY_OK(ask());
    work_();
    const bool is_spike = std::ranges::any_of(micro_batch.samples, [](std::int64_t sample) {
      return sample % kSamplesPerSpike == kSamplesPerSpike - 1;
    });
    scale = is_spike ? kSpike : 1;
    TRY(worker::MicroBatchLoss loss, PlainProgram::compute(micro_batch, next));
    loss.ends = ends_at_ != 0 && micro_batch.step >= ends_at_;
    return loss;
  }

  bool is_over() override { return has_finished_(); }

 private:
  const std::function<void()> work_;
  const std::function<bool()> has_finished_;
  std::uint64_t ends_at_ = 0;
};

}  // namespace

std::unique_ptr<worker::TorchProgram> make_sim_script(std::function<void()> work,
                                                      std::function<bool()> has_finished) {
  return std::make_unique<SimScript>(std::move(work), std::move(has_finished));
}

}  // namespace rubato::sim
