// train DEVICE PRESET TOKENS MICRO LENGTH MICRO_BATCHES STEPS: trains a preset as one worker does,
// in this process, and prints every step's loss as bits, the digest of the state at the end, and
// the time of each part of a step. The same words on another device give losses to compare.
#include "common/files.h"
#include "worker/backend/digest.h"
#include "worker/data/sampler.h"
#include "worker/data/token_file.h"
#include "worker/model/exact_sum.h"
#include "worker/model/model.h"
#include "worker/model/optimizer.h"
#include "worker/model/training_state.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace rubato::worker {
namespace {

struct Words {
  std::string device, preset, tokens;
  std::int64_t micro, length, micro_batches, steps;
};

double seconds_since(std::chrono::steady_clock::time_point begun) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// One job on one device, with the time that each part of its steps took.
class Job {
 public:
  static Result<Job> open(const Words& words);
  Status begin();
  // The mean loss.
  Result<double> step();
  void print_times() const;
  Result<std::uint64_t> digest() { return state_.digest(*device_, *stream_); }

 private:
  Job(std::unique_ptr<Device> device, std::unique_ptr<Model> model, TrainingState state,
      ExactSum sum, AdamW adamw, TokenFile file, Sampler sampler, Arena arena)
      : device_(std::move(device)),
        stream_(device_->make_stream()),
        model_(std::move(model)),
        state_(std::move(state)),
        sum_(std::move(sum)),
        adamw_(std::move(adamw)),
        file_(std::move(file)),
        sampler_(sampler),
        arena_(std::move(arena)),
        gradient_(arena_.take(DType::kF32, model_->table().flat_count())) {}
  Status compute(std::int64_t& loss);

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Model> model_;
  TrainingState state_;
  ExactSum sum_;
  AdamW adamw_;
  TokenFile file_;
  Sampler sampler_;
  Arena arena_;
  Buffer gradient_;
  std::vector<std::int32_t> tokens_;
  std::vector<double> whole_, gradients_, update_;  // seconds
  int redos_ = 0;
};

Result<Job> Job::open(const Words& words) {
  PosixFileSystem files;
  TRY(ModelConfig config, model_preset(words.preset));
  config.sequence_length = words.length;
  TRY(auto device, open_device({.kind = words.device}));
  std::printf("%s\n", device->fingerprint().c_str());
  TRY(auto model, make_model(config, words.micro, *device));
  TRY(TrainingState state, TrainingState::create(*device, model->table()));
  TRY(ExactSum sum, ExactSum::create(*device, model->table(), words.micro_batches));
  const OptimizerConfig optimizer{.warmup_steps = 5, .decay_steps = 200};
  TRY(AdamW adamw, AdamW::create(optimizer, *device, model->table()));
  TRY(TokenFile file, TokenFile::open(files, words.tokens));
  const SamplerConfig samples{.seed = 3,
                              .global_batch = words.micro * words.micro_batches,
                              .micro_batch = words.micro,
                              .sequence_length = words.length};
  TRY(Sampler sampler, Sampler::create(samples, file.count()));
  TRY(Arena arena, device->allocate(Arena::bytes_for(DType::kF32, model->table().flat_count())));
  return Job(std::move(device), std::move(model), std::move(state), std::move(sum),
             std::move(adamw), std::move(file), sampler, std::move(arena));
}

Status Job::begin() {
  std::vector<float> start(static_cast<std::size_t>(model_->table().flat_count()));
  model_->init(7, start);
  device_->copy_to_device(*stream_, state_.parameters(), start.data());
  TRY_OK(stream_->synchronize());
  TRY_OK(sampler_.read_micro_batch(file_, 0, 0, tokens_));
  TRY_OK(model_->forward_backward(*stream_, tokens_, state_.parameters(), gradient_));
  return sum_.calibrate(*stream_, gradient_, state_.exponents());
}

Status Job::compute(std::int64_t& loss) {
  loss = 0;
  sum_.clear(*stream_);
  for (std::int64_t m = 0; m < sampler_.micro_batches(); ++m) {
    TRY_OK(sampler_.read_micro_batch(file_, state_.step(), m, tokens_));
    TRY(const MicroLoss micro,
        model_->forward_backward(*stream_, tokens_, state_.parameters(), gradient_));
    loss += micro.fixed;
    sum_.add(*stream_, state_.step(), m, gradient_, state_.exponents());
    TRY_OK(stream_->synchronize());
  }
  return ok();
}

Result<double> Job::step() {
  const auto begun = std::chrono::steady_clock::now();
  std::int64_t loss = 0;
  TRY_OK(compute(loss));
  gradients_.push_back(seconds_since(begun));
  const auto computed = std::chrono::steady_clock::now();
  for (int attempt = 0;; ++attempt) {
    TRY(const bool overflows, sum_.overflows(*stream_, sum_.accumulators()));
    if (!overflows) break;
    ++redos_;
    TRY_OK(sum_.raise(*stream_, sum_.accumulators(), attempt, state_.exponents()));
    TRY_OK(compute(loss));
  }
  sum_.mean(*stream_, sum_.accumulators(), state_.exponents(), gradient_);
  TRY(const double norm, adamw_.norm(*stream_, gradient_));
  adamw_.apply(*stream_, gradient_, norm, state_);
  TRY_OK(sum_.advance(*stream_, sum_.accumulators(), gradient_, state_.exponents()));
  TRY_OK(stream_->synchronize());
  update_.push_back(seconds_since(computed));
  whole_.push_back(seconds_since(begun));
  return step_loss(loss, sampler_.micro_batches());
}

void Job::print_times() const {
  const SamplerConfig& samples = sampler_.config();
  const auto tokens = static_cast<double>(samples.global_batch * samples.sequence_length);
  const double whole = median(whole_);
  std::printf(
      "%zu steps of %.0f tokens: %.1f ms (median; %.1f to %.1f), of it gradients %.1f, "
      "update %.1f; %.0f tokens/s; %.2f TFLOP/s; %d redone\n",
      whole_.size(), tokens, 1e3 * whole, 1e3 * *std::ranges::min_element(whole_),
      1e3 * *std::ranges::max_element(whole_), 1e3 * median(gradients_), 1e3 * median(update_),
      tokens / whole, tokens / whole * model_->flops_per_token() * 1e-12, redos_);
}

Status train(const Words& words) {
  TRY(Job job, Job::open(words));
  TRY_OK(job.begin());
  for (std::int64_t i = 0; i < words.steps; ++i) {
    TRY(const double loss, job.step());
    if (i < 10 || (i + 1) % 10 == 0)
      std::printf("step=%lld loss=%.9f %a\n", static_cast<long long>(i + 1), loss, loss);
  }
  TRY(const std::uint64_t digest, job.digest());
  std::printf("state=%s\n", to_hex(digest).c_str());
  job.print_times();
  return ok();
}

}  // namespace
}  // namespace rubato::worker

int main(int argc, char** argv) {
  constexpr int kWords = 8;
  if (argc != kWords) {
    std::printf("train DEVICE PRESET TOKENS MICRO LENGTH MICRO_BATCHES STEPS\n");
    return 2;
  }
  const auto done =
      rubato::worker::train({argv[1], argv[2], argv[3], std::atoll(argv[4]), std::atoll(argv[5]),
                             std::atoll(argv[6]), std::atoll(argv[7])});
  if (!done.ok()) std::printf("%s\n", done.error().to_string().c_str());
  return done.ok() ? 0 : 1;
}
