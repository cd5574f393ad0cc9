// Training speed of one worker on one thread: forward, backward, exact reduction and AdamW, with
// the time of each part. tests/bench/pytorch_baseline.py measures PyTorch on the same shapes.
//
//   tokens_per_second [--preset kjv|gpt2-124m] [--micro 8] [--sequence 128] [--steps 20] [--isa
//   auto] [--bf16]
#include "common/rng.h"
#include "worker/data/sampler.h"
#include "worker/model/exact_sum.h"
#include "worker/model/model.h"
#include "worker/model/optimizer.h"
#include "worker/model/training_state.h"
#include "worker/step/state_digest.h"

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
  bool is_bf16 = false;
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

// Adds a gradient to three sums, one after the other, in a new order each time: exactly under the
// numerics of new jobs, exactly under those of version 1, and in plain f32, as a reduction that is
// not exact would. All see the same gradient, caches and neighbours on the machine. What the two
// others take is counted aside: it is no part of a step.
class ThreeSums {
 public:
  static constexpr std::size_t kNow = 0, kBefore = 1, kPlain = 2;

  static Result<ThreeSums> create(Device& device, const ParameterTable& table,
                                  std::int64_t micro_batches) {
    ThreeSums out;
    out.kernels_ = &device.kernels();
    TRY(out.before_, ExactSum::create(device, table, micro_batches, 1));
    TRY(out.arena_, device.allocate(Arena::bytes_for(DType::kF32, table.flat_count()) +
                                    Arena::bytes_for(DType::kI32, table.block_count())));
    out.plain_ = out.arena_.take(DType::kF32, table.flat_count());
    out.exponents_ = out.arena_.take(DType::kI32, table.block_count());
    return out;
  }
  // Before the first micro-batch of a step, with a gradient like those to come.
  Status begin(Stream& stream, const Buffer& gradient) {
    const Aside aside(*this);
    before_->clear(stream);
    return before_->calibrate(stream, gradient, exponents_);
  }
  void add(Stream& stream, ExactSum& sum, std::int64_t step, std::int64_t micro,
           const Buffer& gradient, const Buffer& exponents) {
    for (std::size_t i = 0; i < 3; ++i) {
      const std::size_t which = (seconds[0].size() + i) % 3;
      std::optional<Aside> aside;
      if (which != kNow) aside.emplace(*this);
      const double begin = cpu_seconds();
      if (which == kNow) sum.add(stream, step, micro, gradient, exponents);
      if (which == kBefore) before_->add(stream, step, micro, gradient, exponents_);
      if (which == kPlain) kernels_->add(stream, gradient, plain_, plain_);
      taken_[which] = cpu_seconds() - begin;
    }
    for (std::size_t i = 0; i < 3; ++i) seconds[i].push_back(taken_[i]);
  }
  std::vector<double> seconds[3];  // of each micro-batch, of CPU
  double wall_aside = 0;
  double cpu_aside = 0;

 private:
  class Aside {
   public:
    explicit Aside(ThreeSums& sums) : sums_(sums) {}
    ~Aside() {
      sums_.wall_aside += std::chrono::duration<double>(Time::now() - wall_).count();
      sums_.cpu_aside += cpu_seconds() - cpu_;
    }
    Aside(const Aside&) = delete;
    Aside& operator=(const Aside&) = delete;

   private:
    ThreeSums& sums_;
    Time::time_point wall_ = Time::now();
    double cpu_ = cpu_seconds();
  };

  Kernels* kernels_ = nullptr;
  std::optional<ExactSum> before_;
  Arena arena_;
  Buffer plain_, exponents_;
  double taken_[3] = {};
};

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
    PosixFileSystem files;
    TRY(out.file_, TokenFile::open(files, options.data));
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
  std::vector<double> compute;        // of each micro-batch, of CPU
  std::vector<double> update, whole;  // of each step
  std::vector<double> checksums;      // of each step, of CPU: of what is given, and of what is got
  double cpu = 0;                     // of all steps
  // Of what members compare of the state, of CPU, aside: a vote's part, and all, as before a
  // checkpoint.
  std::vector<double> vote_digest, whole_digest;
};

// Of part `step` mod 64 as in the vote of that step, or of all.
Result<double> digest_seconds(Device& device, Stream& stream, const TrainingState& state,
                              const StatePart& part) {
  std::vector<Buffer> sections;
  for (const StateSection& section : state.sections()) sections.push_back(section.buffer);
  const double begin = cpu_seconds();
  TRY_OK(state_digest(device, stream, sections, part, 1, 1));
  return cpu_seconds() - begin;
}

void report(const Options& options, const ModelConfig& config, const std::string& fingerprint,
            const Model& model, const Seconds& seconds, const ThreeSums& sums, int redos) {
  const auto per_step =
      static_cast<double>(options.micro_batches * options.micro * config.sequence_length);
  const double rate = per_step / median(seconds.whole);
  const double compute = median(seconds.compute);
  const double quantise = median(sums.seconds[ThreeSums::kNow]);
  const double before = median(sums.seconds[ThreeSums::kBefore]);
  const double plain = median(sums.seconds[ThreeSums::kPlain]);
  std::printf(
      "rubato %s %s: %lld parameters, micro-batch %lld x %lld, %lld micro-batches a step\n"
      "  %.0f tokens/s (median of %zu steps; best %.0f; per CPU second %.0f), %.1f GFLOP/s of the "
      "model\n"
      "  micro-batch %.2f ms, quantise %.2f ms (%.1f %%; a plain f32 sum %.2f ms; numerics version "
      "1 "
      "%.2f ms; CPU time, medians of %zu), update %.2f ms a step, redone steps %d\n",
      options.preset.c_str(), fingerprint.c_str(),
      static_cast<long long>(model.table().parameter_count()),
      static_cast<long long>(options.micro), static_cast<long long>(config.sequence_length),
      static_cast<long long>(options.micro_batches), rate, seconds.whole.size(),
      per_step / *std::min_element(seconds.whole.begin(), seconds.whole.end()),
      per_step * static_cast<double>(seconds.whole.size()) / seconds.cpu,
      rate * model.flops_per_token() * 1e-9, 1e3 * compute, 1e3 * quantise,
      100.0 * quantise / compute, 1e3 * plain, 1e3 * before, seconds.compute.size(),
      1e3 * median(seconds.update), redos);
  const double step = 1e3 * seconds.cpu / static_cast<double>(seconds.whole.size());
  const double vote = 1e3 * median(seconds.vote_digest);
  const double all = 1e3 * median(seconds.whole_digest);
  std::printf(
      "  state digest: 1/%u of it %.3f ms (%.3f %% of a step of %.1f ms), all of it %.2f ms "
      "(%.2f %%; CPU time, medians of %zu)\n",
      kStateParts, vote, 100 * vote / step, step, all, 100 * all / step,
      seconds.vote_digest.size());
  const double checksums = 1e3 * median(seconds.checksums);
  std::printf("  checksums of the sums: %.3f ms (%.3f %% of a step; CPU time, median of %zu)\n",
              checksums, 100 * checksums / step, seconds.checksums.size());
}

Status run(const Options& options) {
  TRY(ModelConfig config, model_preset(options.preset));
  if (options.sequence > 0) config.sequence_length = options.sequence;
  TRY(auto device,
      open_device({.kind = "cpu",
                   .isa = options.isa,
                   .precision = options.is_bf16 ? Precision::kBf16 : Precision::kF32}));
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
  TRY(ThreeSums sums, ThreeSums::create(*device, table, options.micro_batches));
  Seconds seconds;
  int redos = 0;
  int attempt = 0;
  for (int step = 0; step < options.steps;) {
    sum.clear(*stream);
    std::int64_t total = 0;
    sums.wall_aside = 0;
    sums.cpu_aside = 0;
    const auto begin = Time::now();
    const double cpu_begin = cpu_seconds();
    for (std::int64_t m = 0; m < options.micro_batches; ++m) {
      TRY_OK(text.read(step, m));
      const double compute_begin = cpu_seconds();
      TRY(const MicroLoss loss,
          model->forward_backward(*stream, text.tokens(), state.parameters(), gradient));
      seconds.compute.push_back(cpu_seconds() - compute_begin);
      if (m == 0) TRY_OK(sums.begin(*stream, gradient));
      sums.add(*stream, sum, step, m, gradient, state.exponents());
      total += loss.fixed;
      if (!loss.is_finite) return Error(Code::kInternal, "the loss is not finite");
    }
    const auto t3 = Time::now();
    const double weigh_begin = cpu_seconds();
    sum.weigh_given(*stream);
    sum.weigh_reduced(*stream, sum.accumulators());
    seconds.checksums.push_back(cpu_seconds() - weigh_begin);
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
    TRY_OK(sum.advance(*stream, sum.accumulators(), gradient, state.exponents()));
    adamw.apply(*stream, gradient, norm, state);
    const auto end = Time::now();
    seconds.cpu += cpu_seconds() - cpu_begin - sums.cpu_aside;
    if (text.is_real() && (step % 50 == 0 || step + 1 == options.steps))
      std::printf("  step %d loss %.4f norm %.3f\n", step, step_loss(total, options.micro_batches),
                  norm);
    step += 1;
    seconds.update.push_back(std::chrono::duration<double>(end - t3).count());
    seconds.whole.push_back(std::chrono::duration<double>(end - begin).count() - sums.wall_aside);
    const StatePart voted{static_cast<std::uint32_t>(step) % kStateParts, kStateParts};
    TRY(const double vote, digest_seconds(*device, *stream, state, voted));
    TRY(const double all, digest_seconds(*device, *stream, state, {}));
    seconds.vote_digest.push_back(vote);
    seconds.whole_digest.push_back(all);
  }
  report(options, config, device->fingerprint(), *model, seconds, sums, redos);
  return ok();
}

}  // namespace
}  // namespace rubato::worker

int main(int argc, char** argv) {
  CLI::App app("Training speed of one worker on one thread.");
  rubato::worker::Options options;
  app.add_option("--preset", options.preset);
  app.add_option("--isa", options.isa);
  app.add_flag("--bf16", options.is_bf16, "Matrix products in bf16.");
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
