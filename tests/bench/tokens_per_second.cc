// Training speed of one worker on one thread: forward, backward, exact reduction and AdamW, with
// the time of each part. tests/bench/pytorch_baseline.py measures PyTorch on the same shapes.
//
//   tokens_per_second [--preset kjv|gpt2-124m] [--micro 8] [--sequence 128] [--steps 20] [--isa
//   auto]
#include "common/rng.h"
#include "worker/data/sampler.h"
#include "worker/model/exact_sum.h"
#include "worker/model/model.h"
#include "worker/model/optimizer.h"
#include "worker/model/training_state.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace rubato::worker {
namespace {

using Time = std::chrono::steady_clock;

struct Options {
  std::string preset = "kjv";
  std::string isa = "auto";
  std::string data;
  std::int64_t micro = 8;
  std::int64_t sequence = 0;
  std::int64_t micro_batches = 4;
  int steps = 20;
};

// Seconds of CPU this process has used: what a busy machine does not distort as much.
double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Seconds to add a gradient to a plain f32 sum: what a reduction that is not exact would do in the
// place of quantising.
double plain_sum_seconds(const Buffer& gradient) {
  constexpr int kRounds = 21;
  const auto count = static_cast<std::size_t>(gradient.count());
  const auto* source = static_cast<const float*>(gradient.address());  // of the CPU: plain memory
  std::vector<float> sum(count);
  std::vector<double> seconds;
  for (int round = 0; round < kRounds; ++round) {
    const auto begin = Time::now();
    for (std::size_t i = 0; i < count; ++i) sum[i] += source[i];
    seconds.push_back(std::chrono::duration<double>(Time::now() - begin).count());
  }
  return median(seconds);
}

// What the model reads: a token file, or the same random tokens again and again.
class Text {
 public:
  static Result<Text> open(const Options& options, const ModelConfig& config) {
    Text out;
    out.tokens_.resize(static_cast<std::size_t>(options.micro * (config.sequence_length + 1)));
    Rng rng(1);
    for (auto& token : out.tokens_)
      token = static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(config.vocabulary)));
    if (options.data.empty()) return out;
    TRY(out.file_, TokenFile::open(options.data));
    TRY(out.sampler_, Sampler::create({.seed = 1,
                                       .global_batch = options.micro * options.micro_batches,
                                       .micro_batch = options.micro,
                                       .sequence_length = config.sequence_length},
                                      out.file_->count()));
    TRY_OK(out.read(0, 0));
    return out;
  }
  Status read(int step, std::int64_t micro_batch) {
    return sampler_ ? sampler_->read_micro_batch(*file_, step, micro_batch, tokens_) : ok();
  }
  bool is_real() const { return sampler_.has_value(); }
  const std::vector<std::int32_t>& tokens() const { return tokens_; }

 private:
  std::vector<std::int32_t> tokens_;
  std::optional<TokenFile> file_;
  std::optional<Sampler> sampler_;
};

struct Seconds {
  std::vector<double> compute, quantise;  // of each micro-batch
  std::vector<double> update, whole;      // of each step
  double cpu = 0;                         // of all steps
};

void report(const Options& options, const ModelConfig& config, const std::string& fingerprint,
            const Model& model, const Seconds& seconds, double plain_sum, int redos) {
  const auto per_step =
      static_cast<double>(options.micro_batches * options.micro * config.sequence_length);
  const double rate = per_step / median(seconds.whole);
  const double compute = median(seconds.compute);
  const double quantise = median(seconds.quantise);
  std::printf(
      "rubato %s %s: %lld parameters, micro-batch %lld x %lld, %lld micro-batches a step\n"
      "  %.0f tokens/s (median of %zu steps; best %.0f; per CPU second %.0f), %.1f GFLOP/s of the "
      "model\n"
      "  micro-batch %.2f ms, quantise %.2f ms (%.1f %%; a plain f32 sum %.2f ms), update %.2f ms "
      "a step, redone steps %d\n",
      options.preset.c_str(), fingerprint.c_str(),
      static_cast<long long>(model.table().parameter_count()),
      static_cast<long long>(options.micro), static_cast<long long>(config.sequence_length),
      static_cast<long long>(options.micro_batches), rate, seconds.whole.size(),
      per_step / *std::min_element(seconds.whole.begin(), seconds.whole.end()),
      per_step * static_cast<double>(seconds.whole.size()) / seconds.cpu,
      rate * model.flops_per_token() * 1e-9, 1e3 * compute, 1e3 * quantise,
      100.0 * quantise / compute, 1e3 * plain_sum, 1e3 * median(seconds.update), redos);
}

Status run(const Options& options) {
  TRY(ModelConfig config, model_preset(options.preset));
  if (options.sequence > 0) config.sequence_length = options.sequence;
  TRY(auto device, open_device({.kind = "cpu", .isa = options.isa}));
  const auto stream = device->make_stream();
  TRY(auto model, make_model(config, options.micro, *device));
  const ParameterTable& table = model->table();
  TRY(TrainingState state, TrainingState::create(*device, table));
  TRY(ExactSum sum, ExactSum::create(*device, table, options.micro_batches));
  TRY(AdamW adamw, AdamW::create({}, *device, table));
  TRY(Arena arena, device->allocate(Arena::bytes_for(DType::kF32, table.flat_count())));
  const Buffer gradient = arena.take(DType::kF32, table.flat_count());
  {
    std::vector<float> start(static_cast<std::size_t>(table.flat_count()));
    model->init(1, start);
    device->copy_to_device(*stream, state.parameters(), start.data());
  }
  TRY(Text text, Text::open(options, config));

  TRY(const MicroLoss warm,
      model->forward_backward(*stream, text.tokens(), state.parameters(), gradient));
  if (!warm.is_finite) return Error(Code::kInternal, "the loss is not finite");
  TRY_OK(sum.calibrate(*stream, gradient, state.exponents()));
  Seconds seconds;
  int redos = 0;
  int attempt = 0;
  for (int step = 0; step < options.steps;) {
    sum.clear(*stream);
    std::int64_t total = 0;
    const auto begin = Time::now();
    const double cpu_begin = cpu_seconds();
    for (std::int64_t m = 0; m < options.micro_batches; ++m) {
      TRY_OK(text.read(step, m));
      const auto t0 = Time::now();
      TRY(const MicroLoss loss,
          model->forward_backward(*stream, text.tokens(), state.parameters(), gradient));
      const auto t1 = Time::now();
      sum.add(*stream, gradient, state.exponents());
      const auto t2 = Time::now();
      seconds.compute.push_back(std::chrono::duration<double>(t1 - t0).count());
      seconds.quantise.push_back(std::chrono::duration<double>(t2 - t1).count());
      total += loss.fixed;
      if (!loss.is_finite) return Error(Code::kInternal, "the loss is not finite");
    }
    const auto t3 = Time::now();
    TRY(const bool overflows, sum.overflows(*stream, sum.accumulators()));
    if (overflows) {
      redos += 1;
      std::printf("  step %d is redone\n", step);
      TRY_OK(sum.raise(*stream, sum.accumulators(), attempt++, state.exponents()));
      continue;
    }
    attempt = 0;
    sum.mean(*stream, sum.accumulators(), state.exponents(), gradient);
    TRY(const double norm, adamw.norm(*stream, gradient));
    TRY_OK(sum.advance(*stream, gradient, state.exponents()));
    adamw.apply(*stream, gradient, norm, state);
    const auto end = Time::now();
    seconds.cpu += cpu_seconds() - cpu_begin;
    if (text.is_real() && (step % 50 == 0 || step + 1 == options.steps))
      std::printf("  step %d loss %.4f norm %.3f\n", step, step_loss(total, options.micro_batches),
                  norm);
    step += 1;
    seconds.update.push_back(std::chrono::duration<double>(end - t3).count());
    seconds.whole.push_back(std::chrono::duration<double>(end - begin).count());
  }
  report(options, config, device->fingerprint(), *model, seconds, plain_sum_seconds(gradient),
         redos);
  return ok();
}

}  // namespace
}  // namespace rubato::worker

int main(int argc, char** argv) {
  CLI::App app("Training speed of one worker on one thread.");
  rubato::worker::Options options;
  app.add_option("--preset", options.preset);
  app.add_option("--isa", options.isa);
  app.add_option("--data", options.data);
  app.add_option("--micro", options.micro);
  app.add_option("--sequence", options.sequence);
  app.add_option("--micro-batches", options.micro_batches);
  app.add_option("--steps", options.steps);
  CLI11_PARSE(app, argc, argv);
  const auto done = rubato::worker::run(options);
  if (done.ok()) return 0;
  std::cerr << done.error().to_string() << "\n";
  return 1;
}
