// One loss curve of a small model with many micro-batches a step, its gradients summed in one of
// four ways: what tests/bench/numerics.py compares.
//
//   loss_curve --data kjv.tok --sum f32|backwards|exact|nearest [--seed 1] [--steps 300]
//              [--micro-batches 512] [--learning-rate 0.0003]
//
// f32 adds micro-batch after micro-batch, backwards the same from the last to the first; exact is
// the exact sum of new jobs, nearest that of numerics version 1. Prints "step N loss X" lines, then
// "validation loss" and "redone steps".
#include "common/files.h"
#include "worker/data/sampler.h"
#include "worker/model/exact_sum.h"
#include "worker/model/model.h"
#include "worker/model/optimizer.h"
#include "worker/model/training_state.h"

#include <cstdio>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace rubato::worker {
namespace {

struct Options {
  std::string data;
  std::string sum = "exact";
  std::uint64_t seed = 1;
  std::int64_t steps = 300;
  std::int64_t micro_batches = 512;
  double learning_rate = 3e-4;
  std::int64_t validation = 256;  // micro-batches
};

// Some 22 000 parameters: 150 000 micro-batches a curve are many.
ModelConfig small_model() {
  return {.layers = 1, .heads = 2, .hidden = 32, .vocabulary = 257, .sequence_length = 16};
}

class Curve {
 public:
  static Result<Curve> create(const Options& options);
  // The loss of one step.
  Result<double> step();
  Result<double> validate();
  int redos() const { return redos_; }

 private:
  Result<std::int64_t> add_all();

  Options options_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Model> model_;
  std::optional<TokenFile> file_;
  std::optional<Sampler> sampler_;
  std::optional<TrainingState> state_;
  std::optional<ExactSum> sum_;  // none: f32
  std::optional<AdamW> adamw_;
  Arena arena_;
  Buffer gradient_, plain_;
  std::vector<std::int32_t> tokens_;
  int redos_ = 0;
};

Result<Curve> Curve::create(const Options& options) {
  Curve curve;
  curve.options_ = options;
  const ModelConfig config = small_model();
  TRY(curve.device_, open_device({}));
  Device& device = *curve.device_;
  curve.stream_ = device.make_stream();
  TRY(curve.model_, make_model(config, 1, device));
  const ParameterTable& table = curve.model_->table();
  PosixFileSystem files;
  TRY(curve.file_, TokenFile::open(files, options.data));
  TRY(curve.sampler_, Sampler::create({.seed = options.seed,
                                       .global_batch = options.micro_batches,
                                       .micro_batch = 1,
                                       .sequence_length = config.sequence_length},
                                      curve.file_->count()));
  TRY(curve.state_, TrainingState::create(device, table));
  TRY(curve.adamw_,
      AdamW::create({.learning_rate = options.learning_rate, .warmup_steps = 20}, device, table));
  TRY(curve.arena_, device.allocate(2 * Arena::bytes_for(DType::kF32, table.flat_count())));
  curve.gradient_ = curve.arena_.take(DType::kF32, table.flat_count());
  curve.plain_ = curve.arena_.take(DType::kF32, table.flat_count());
  std::vector<float> start(static_cast<std::size_t>(table.flat_count()));
  curve.model_->init(options.seed, start);
  device.copy_to_device(*curve.stream_, curve.state_->parameters(), start.data());
  if (options.sum == "f32" || options.sum == "backwards") return curve;
  if (options.sum != "exact" && options.sum != "nearest")
    return Error(Code::kInvalid, "--sum " + options.sum);
  TRY(curve.sum_, ExactSum::create(device, table, options.micro_batches,
                                   options.sum == "exact" ? kNumericsVersion : 1));
  TRY_OK(curve.sampler_->read_micro_batch(*curve.file_, 0, 0, curve.tokens_));
  TRY(const MicroLoss first,
      curve.model_->forward_backward(*curve.stream_, curve.tokens_, curve.state_->parameters(),
                                     curve.gradient_));
  if (!first.is_finite) return Error(Code::kInternal, "the loss is not finite");
  TRY_OK(curve.sum_->calibrate(*curve.stream_, curve.gradient_, curve.state_->exponents()));
  return curve;
}

Result<std::int64_t> Curve::add_all() {
  std::int64_t total = 0;
  device_->memset(*stream_, plain_, 0);
  if (sum_) sum_->clear(*stream_);
  for (std::int64_t i = 0; i < options_.micro_batches; ++i) {
    const std::int64_t m = options_.sum == "backwards" ? options_.micro_batches - 1 - i : i;
    TRY_OK(sampler_->read_micro_batch(*file_, state_->step(), m, tokens_));
    TRY(const MicroLoss loss,
        model_->forward_backward(*stream_, tokens_, state_->parameters(), gradient_));
    if (!loss.is_finite) return Error(Code::kInternal, "the loss is not finite");
    total += loss.fixed;
    if (sum_)
      sum_->add(*stream_, state_->step(), m, gradient_, state_->exponents());
    else
      device_->kernels().add(*stream_, gradient_, plain_, plain_);
  }
  return total;
}

Result<double> Curve::step() {
  TRY(std::int64_t total, add_all());
  for (int attempt = 0; sum_; ++attempt) {
    TRY(const bool overflows, sum_->overflows(*stream_, sum_->accumulators()));
    if (!overflows) break;
    if (attempt == ExactSum::kRedosMax) return Error(Code::kInternal, "overflows for ever");
    redos_ += 1;
    TRY_OK(sum_->raise(*stream_, sum_->accumulators(), attempt, state_->exponents()));
    TRY(total, add_all());
  }
  if (sum_) {
    sum_->mean(*stream_, sum_->accumulators(), state_->exponents(), gradient_);
    TRY_OK(sum_->advance(*stream_, sum_->accumulators(), gradient_, state_->exponents()));
  } else {
    const auto* from = static_cast<const float*>(plain_.address());  // of the CPU: plain memory
    auto* to = static_cast<float*>(gradient_.address());
    for (std::int64_t i = 0; i < plain_.count(); ++i)
      to[i] = from[i] / static_cast<float>(options_.micro_batches);
  }
  TRY(const double norm, adamw_->norm(*stream_, gradient_));
  adamw_->apply(*stream_, gradient_, norm, *state_);
  return step_loss(total, options_.micro_batches);
}

Result<double> Curve::validate() {
  std::int64_t total = 0;
  for (std::int64_t m = 0; m < options_.validation; ++m) {
    TRY_OK(sampler_->read_validation(*file_, m, tokens_));
    TRY(const MicroLoss loss, model_->evaluate(*stream_, tokens_, state_->parameters()));
    total += loss.fixed;
  }
  return step_loss(total, options_.validation);
}

Status run(const Options& options) {
  TRY(Curve curve, Curve::create(options));
  for (std::int64_t step = 0; step < options.steps; ++step) {
    TRY(const double loss, curve.step());
    std::printf("step %lld loss %.9f\n", static_cast<long long>(step), loss);
  }
  TRY(const double validation, curve.validate());
  std::printf("validation loss %.9f\nredone steps %d\n", validation, curve.redos());
  return ok();
}

}  // namespace
}  // namespace rubato::worker

int main(int argc, char** argv) {
  CLI::App app("One loss curve, with one kind of gradient sum.");
  rubato::worker::Options options;
  app.add_option("--data", options.data)->required();
  app.add_option("--sum", options.sum);
  app.add_option("--seed", options.seed);
  app.add_option("--steps", options.steps);
  app.add_option("--micro-batches", options.micro_batches);
  app.add_option("--learning-rate", options.learning_rate);
  CLI11_PARSE(app, argc, argv);
  const auto done = rubato::worker::run(options);
  if (done.ok()) return 0;
  std::cerr << done.error().to_string() << "\n";
  return 1;
}
