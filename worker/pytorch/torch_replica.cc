#include "worker/pytorch/torch_replica.h"

#include "common/words.h"
#include "worker/backend/digest.h"
#include "worker/data/sampler.h"
#include "worker/model/exact_sum.h"
#include "worker/model/optimizer.h"
#include "worker/model/step_buffers.h"
#include "worker/pytorch/torch_state.h"
#include "worker/step/copy_pool.h"
#include "worker/step/noise_scale.h"
#include "worker/step/stored_replica.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include <fmt/format.h>

namespace rubato::worker {

namespace {

constexpr double kLossSumMost = static_cast<double>(std::int64_t{1} << 33);

// A loss too large for loss_q: its digits to the base 2^17, the lowest in quanta of kLossQuantum.
// They are summed behind the weight, and the sum over all micro-batches fits. Below 2^140. Members
// of builds before sum none of them: numerics version 3.
constexpr int kNumericsOfDigits = 3;
constexpr int kDigitBits = 17;
constexpr std::size_t kDigits = 10;
using LossDigits = std::array<std::int32_t, kDigits>;
static_assert(ExactSum::kMicroBatchesMax << kDigitBits < std::int64_t{1} << 31);
static_assert(1 + kDigits <= kBlockElements);

// None: the loss is not finite, or larger still.
std::optional<LossDigits> digits_of(double loss) {
  LossDigits digits{};
  double rest = std::abs(loss) / kLossQuantum;
  for (std::size_t i = kDigits; i-- > 0;) {
    const double unit = std::ldexp(1.0, kDigitBits * static_cast<int>(i));
    const double digit = std::floor(rest / unit);
    if (!(digit < std::ldexp(1.0, kDigitBits))) return std::nullopt;
    rest -= digit * unit;
    digits[i] = static_cast<std::int32_t>(loss < 0 ? -digit : digit);
  }
  return digits;
}

double value_of(std::span<const std::int32_t> digits) {
  double value = 0;
  for (std::size_t i = digits.size(); i-- > 0;)
    value += std::ldexp(kLossQuantum * digits[i], kDigitBits * static_cast<int>(i));
  return value;
}

class TorchSnapshot : public Snapshot {
 public:
  TorchSnapshot(std::shared_ptr<TorchState> state, FileSystem& files, const TorchLayout& layout,
                const CheckpointStore* store, CheckpointInfo info)
      : state_(std::move(state)),
        files_(files),
        layout_(layout),
        store_(store),
        info_(std::move(info)) {}
  std::uint64_t step() const override { return state_->step(); }
  std::vector<std::size_t> section_bytes() const override {
    std::vector<std::size_t> sizes;
    for (const auto section : state_->bytes()) sizes.push_back(section.size());
    return sizes;
  }
  Result<std::vector<std::span<const std::byte>>> sections() const override {
    const auto sections = state_->bytes();
    return std::vector<std::span<const std::byte>>(sections.begin(), sections.end());
  }
  Result<std::string> save(std::span<const StepRecord> records,
                           std::uint32_t redo_attempts) override {
    if (store_ == nullptr) return Error(Code::kInvalid, "checkpoint.path is not set");
    info_.redo_attempts = redo_attempts;
    info_.state_digest = state_->digest();
    TRY_OK(store_->save(info_, records, [&](const std::string& directory) {
      return write_torch_state(files_, directory, layout_, *state_, info_.numerics_version);
    }));
    return store_->folder().path_of(info_.step);
  }

 private:
  std::shared_ptr<TorchState> state_;
  FileSystem& files_;
  const TorchLayout& layout_;
  const CheckpointStore* store_;
  CheckpointInfo info_;
};

class TorchReplica : public StoredReplica {
 public:
  TorchReplica(const TrainingConfig& config, const ReplicaOptions& options, TorchProgram& program,
               std::unique_ptr<Device> device, TorchLayout layout, Sampler sampler, int numerics)
      : StoredReplica(options.files, config.checkpoint_path, config.checkpoint_keep),
        files_(options.files),
        job_uid_(options.job_uid),
        numerics_(numerics),
        ledger_(options.ledger),
        program_(program),
        device_(std::move(device)),
        stream_(device_->make_stream()),
        layout_(std::move(layout)),
        sampler_(sampler),
        place_{.stop_steps = config.stop_steps} {
    const std::array<std::uint64_t, 2> of_data{static_cast<std::uint64_t>(setup().samples), 0};
    data_digest_ = digest_of(of_data.data(), sizeof of_data);
  }
  Status allocate();

  Device& device() override { return *device_; }
  Stream& stream() override { return *stream_; }
  std::uint32_t micro_batches() const override {
    return static_cast<std::uint32_t>(setup().micro_batches);
  }
  std::uint64_t tokens_per_step() const override { return setup().tokens_per_step; }
  std::uint32_t validation_micro_batches() const override {
    return setup().validation_micro_batches;
  }
  double learning_rate(std::uint64_t) const override { return learning_rate_; }
  Result<std::string> fingerprint() override { return fingerprint_of(); }

  std::uint64_t step() const override { return state().step(); }
  void set_step(std::uint64_t step) override {
    state().set_step(step);
    is_news_ = true;
    place_ = {.stop_steps = place_.stop_steps};
  }
  void take_place(std::uint32_t rank, std::uint32_t members, std::uint64_t stop_steps) override {
    place_ = {rank, members, stop_steps};
  }
  std::vector<Buffer> sections() override {
    program_.wait_until_idle();
    return state().sections();
  }
  Status init_from_seed() override;
  Result<LoadedCheckpoint> load_checkpoint(std::uint64_t step) override;
  Result<std::shared_ptr<Snapshot>> snapshot() override;
  Result<std::uint64_t> weight_digest() override {
    program_.wait_until_idle();
    return state().weight_digest(layout_);
  }
  Status show() override { return tell_news(); }
  Status keep_apart() override;

  void clear() override { sum_->clear(*stream_); }
  void expect(std::span<const std::uint32_t> micros) override {
    expected_.assign(micros.begin(), micros.end());
  }
  Result<MicroPart> compute(const RoundKey& key, std::uint32_t micro) override;
  Status accumulate() override;
  Buffer accumulators() override { return sum_->accumulators(); }
  Buffer reduced() override { return buffers_.reduced; }
  void weigh() override { sum_->weigh_given(*stream_); }
  Result<Verdict> judge(std::uint32_t attempt) override;
  Result<StepRecord> apply(std::int64_t loss_q, std::uint64_t sample_digest) override;
  Status raise(std::uint32_t attempt) override {
    return sum_->raise(*stream_, buffers_.reduced, static_cast<int>(attempt), state().exponents());
  }
  Result<std::int64_t> validate(std::uint32_t micro) override;
  double norm_of_mean() const override { return norm_of_mean_; }
  double mean_loss(std::int64_t loss_q, std::uint32_t micro_batches) const override {
    return static_cast<double>(loss_q) * kLossQuantum / micro_batches;
  }

 private:
  const TorchSetup& setup() const { return layout_.setup(); }
  const TorchState& state() const { return apart_ ? *apart_ : state_; }
  TorchState& state() { return apart_ ? *apart_ : state_; }
  Result<std::shared_ptr<TorchState>> copy();
  std::string fingerprint_of() const;
  CheckpointInfo info() const override;
  Status tell_news();
  MicroBatch micro_batch(std::uint64_t step, std::uint32_t micro) const;
  std::vector<MicroBatch> after(std::uint32_t micro) const;
  std::int32_t& weight_in(Buffer sums) {
    return static_cast<std::int32_t*>(device_->host_view(sums))[layout_.weight_offset()];
  }
  std::span<std::int32_t> digits_in(Buffer sums) { return {&weight_in(sums) + 1, kDigits}; }

  FileSystem& files_;
  const std::string job_uid_;
  const int numerics_;
  SampleLedger* ledger_;
  TorchProgram& program_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  const TorchLayout layout_;
  Sampler sampler_;
  std::uint64_t data_digest_ = 0;
  TorchState state_;                   // in which the script's tensors lie
  std::shared_ptr<TorchState> apart_;  // see keep_apart(); null: the state is state_
  bool is_news_ = true;                // the script has not seen what is in the state
  MemberPlace place_;
  std::optional<ExactSum> sum_;
  GradientNorm norm_of_;
  StepBuffers buffers_;
  double norm_of_mean_ = 0;  // over micro-batches, whatever their weights
  double norm_ = 0;          // of what the optimizer is given, before it is clipped
  float factor_ = 1;         // that makes the mean what the optimizer is given
  std::int64_t weight_ = 1;  // of the step
  double learning_rate_ = 0;
  CopyPool<TorchState> copies_;
  std::vector<std::uint32_t> expected_;
  std::uint32_t micro_ = 0;        // of the gradient that compute() left
  std::int32_t micro_weight_ = 1;  // and its weight
  LossDigits micro_digits_{};      // and its loss, if it is a large one
};

Status TorchReplica::allocate() {
  TRY(state_, TorchState::create(*device_, layout_));
  TRY(ExactSum sum, ExactSum::create(*device_, layout_.table(), setup().micro_batches, numerics_));
  sum_.emplace(std::move(sum));
  const std::int64_t flat = layout_.table().flat_count();
  TRY(norm_of_, GradientNorm::create(*device_, flat));
  TRY(buffers_, StepBuffers::create(*device_, *stream_, *sum_, flat));

  TorchMemory memory;
  auto* gradient = static_cast<float*>(device_->host_view(buffers_.gradient));
  memory.gradient = {gradient, static_cast<std::size_t>(flat)};
  memory.extra = state_.extra();
  for (const std::int64_t offset : layout_.offsets())
    memory.tensors.push_back(state_.tensor(offset));
  for (const TorchTensor& tensor : setup().tensors) {
    if (tensor.group != TensorGroup::kTrained) break;
    const Parameter* place = layout_.table().find(tensor.name);
    memory.gradients.push_back(place == nullptr ? gradient : gradient + place->offset);
  }
  return program_.bind(memory);
}

std::string TorchReplica::fingerprint_of() const {
  return fmt::format("{}-{}/{}{}{},{}", numerics_, device_->fingerprint(), setup().fingerprint,
                     kDataOfFingerprint, to_hex(data_digest_), setup().samples);
}

// The script reads the state when it needs it: rounds that a follower applies come one by one.
Status TorchReplica::tell_news() {
  if (apart_) {
    if (program_.is_over()) return Error(Code::kCancelled, "the script's loop is over");
    program_.wait_until_idle();
    state_.copy_from(*apart_);
    apart_.reset();
    is_news_ = true;
  }
  if (!is_news_) return ok();
  TRY_OK(program_.loaded(state_.step()));
  is_news_ = false;
  return ok();
}

Status TorchReplica::init_from_seed() {
  program_.wait_until_idle();
  TRY_OK(program_.init());
  apart_.reset();
  state_.set_step(0);
  is_news_ = false;
  device_->memset(*stream_, state_.exponents(), 0);
  TRY_OK(stream_->synchronize());
  // First exponents: from micro-batch 0 of step 0, which every worker computes alike.
  TRY(const MicroBatchLoss loss, program_.compute(micro_batch(0, 0), {}));
  if (!std::isfinite(loss.loss)) return Error(Code::kInvalid, "the first loss is not finite");
  return sum_->calibrate(*stream_, buffers_.gradient, state_.exponents());
}

// ---- Checkpoints ----

Result<LoadedCheckpoint> TorchReplica::load_checkpoint(std::uint64_t step) {
  TRY(const std::string path, own_path(step));
  program_.wait_until_idle();
  TRY(Checkpoint loaded, load_torch_state(files_, path, layout_, state()));
  is_news_ = true;
  CHECK_EQ(state().step(), step);
  return LoadedCheckpoint{std::move(loaded.records), loaded.info.redo_attempts};
}

CheckpointInfo TorchReplica::info() const {
  CheckpointInfo info;
  info.step = static_cast<std::int64_t>(state().step());
  info.sequence = info.step;
  info.seed = setup().seed;
  info.data_digest = data_digest_;
  info.global_batch = setup().micro_batch * setup().micro_batches;
  info.micro_batch = setup().micro_batch;
  info.numerics_version = numerics_;
  info.job_uid = job_uid_;
  info.fingerprint = fingerprint_of();
  info.script = fmt::format("{} tensors, {}", setup().tensors.size(), to_hex(layout_.digest()));
  return info;
}

Result<std::shared_ptr<TorchState>> TorchReplica::copy() {
  program_.wait_until_idle();
  TRY(std::shared_ptr<TorchState> copy,
      copies_.take([&] { return TorchState::create(*device_, layout_); }));
  copy->copy_from(state());
  return copy;
}

Result<std::shared_ptr<Snapshot>> TorchReplica::snapshot() {
  TRY(std::shared_ptr<TorchState> copied, copy());
  return std::shared_ptr<Snapshot>(
      std::make_shared<TorchSnapshot>(std::move(copied), files_, layout_, store(), info()));
}

// Whoever writes no checkpoints needs no state at the end.
Status TorchReplica::keep_apart() {
  if (apart_ || store() == nullptr) return ok();
  TRY(apart_, copy());
  return ok();
}

// ---- A round ----

MicroBatch TorchReplica::micro_batch(std::uint64_t step, std::uint32_t micro) const {
  return {step, micro, sampler_.micro_batch_ids(static_cast<std::int64_t>(step), micro)};
}

// What the script is to load next: the rest of the share, then that of the next steps, which is
// likely to be the same.
std::vector<MicroBatch> TorchReplica::after(std::uint32_t micro) const {
  std::vector<MicroBatch> next;
  const auto at = std::ranges::find(expected_, micro);
  if (at == expected_.end()) return next;
  auto place = static_cast<std::size_t>(at - expected_.begin());
  while (next.size() < setup().ahead) {
    ++place;
    const std::uint64_t step = state_.step() + place / expected_.size();
    if (step >= place_.stop_steps) break;
    next.push_back(micro_batch(step, expected_[place % expected_.size()]));
  }
  return next;
}

Result<MicroPart> TorchReplica::compute(const RoundKey& key, std::uint32_t micro) {
  TRY_OK(tell_news());
  const auto step = static_cast<std::int64_t>(state_.step());
  const MicroBatch own = micro_batch(state_.step(), micro);
  const std::uint64_t digest = sampler_.micro_batch_digest(step, micro, own.samples);
  if (ledger_ != nullptr)
    ledger_->forward(key.generation, key.seq, state_.step(), micro, own.samples, digest);
  TRY(const MicroBatchLoss loss, program_.compute(own, after(micro)));
  const std::int64_t weight_most = std::numeric_limits<std::int32_t>::max() / setup().micro_batches;
  if (loss.weight < 0 || loss.weight > weight_most)
    return Error(Code::kInvalid,
                 fmt::format(
                     "step {}, micro-batch {}: its weight is {}, but must lie in 0..{}: count "
                     "larger things in rubato.Weighted, images or rows in place of pixels",
                     step + 1, micro, loss.weight, weight_most))
        .set_reason("ProgramFailed");
  micro_ = micro;
  micro_weight_ = static_cast<std::int32_t>(loss.weight);
  MicroPart part;
  const bool fits = std::abs(loss.loss) < kLossSumMost / static_cast<double>(micro_batches());
  if (fits) part.loss_q = std::llround(loss.loss / kLossQuantum);
  std::optional<LossDigits> digits;
  if (fits)
    digits.emplace();
  else if (numerics_ >= kNumericsOfDigits)
    digits = digits_of(loss.loss);
  part.non_finite = !digits;
  micro_digits_ = digits.value_or(LossDigits{});
  part.sample_digest = digest;
  part.ends = loss.ends;
  if (measures_noise(state_.step(), micro_batches())) {
    TRY(const double norm, norm_of_.of(*stream_, buffers_.gradient));
    part.squared_norm = norm * norm;
  }
  return part;
}

Status TorchReplica::accumulate() {
  sum_->add(*stream_, static_cast<std::int64_t>(state_.step()), micro_, buffers_.gradient,
            state_.exponents());
  TRY_OK(stream_->synchronize());
  weight_in(sum_->accumulators()) += micro_weight_;
  const auto digits = digits_in(sum_->accumulators());
  for (std::size_t i = 0; i < kDigits; ++i) digits[i] += micro_digits_[i];
  return ok();
}

Result<Verdict> TorchReplica::judge(std::uint32_t attempt) {
  program_.wait_until_idle();
  Verdict verdict;
  sum_->weigh_reduced(*stream_, buffers_.reduced);
  TRY(verdict.overflow, sum_->overflows(*stream_, buffers_.reduced));
  verdict.given = sum_->given();
  verdict.reduced = sum_->reduced();
  if (verdict.overflow) {
    // Exponents that rise without end mean that the gradient itself is not finite.
    if (attempt >= static_cast<std::uint32_t>(ExactSum::kRedosMax)) verdict.non_finite = true;
    return verdict;
  }
  sum_->mean(*stream_, buffers_.reduced, state().exponents(), buffers_.gradient);
  TRY_OK(stream_->synchronize());
  auto* gradient = static_cast<float*>(device_->host_view(buffers_.gradient));
  std::fill_n(gradient + layout_.weight_offset(), 1 + kDigits, 0.0f);
  TRY(norm_of_mean_, norm_of_.of(*stream_, buffers_.gradient));
  // 0: of nothing but padding, and the gradient is zero.
  weight_ = std::max(weight_in(buffers_.reduced), 1);
  const double by_weight = static_cast<double>(micro_batches()) / static_cast<double>(weight_);
  norm_ = norm_of_mean_ * by_weight;
  verdict.non_finite = !std::isfinite(norm_);
  const double most = setup().max_grad_norm;
  const double clip = most > 0 && norm_ > most ? most / norm_ : 1;
  factor_ = static_cast<float>(by_weight * clip);
  return verdict;
}

Result<StepRecord> TorchReplica::apply(std::int64_t loss_q, std::uint64_t digest) {
  const auto step = static_cast<std::int64_t>(state().step());
  TRY_OK(check_samples(sampler_, step, digest));
  TRY_OK(tell_news());
  const double sum =
      static_cast<double>(loss_q) * kLossQuantum + value_of(digits_in(buffers_.reduced));
  const double loss = sum / static_cast<double>(weight_);
  const StepRecord record = make_step_record(step, loss, digest, norm_);
  TRY(learning_rate_, program_.apply(state_.step(), factor_, loss, norm_, place_));
  TRY_OK(sum_->advance(*stream_, buffers_.reduced, buffers_.gradient, state_.exponents()));
  state_.set_step(state_.step() + 1);
  return record;
}

Result<std::int64_t> TorchReplica::validate(std::uint32_t micro) {
  TRY_OK(tell_news());
  TRY(const double loss, program_.validate(micro));
  if (!(std::abs(loss) < kLossSumMost / std::max(validation_micro_batches(), 1u)))
    return kNotFiniteQ;
  return std::llround(loss / kLossQuantum);
}

// What the manifest and the script both say must agree.
Status check_setup(const TrainingConfig& config, const TorchSetup& setup) {
  const auto batch = [](std::int64_t global, std::int64_t micro) {
    return fmt::format("global {}, micro {}", global, micro);
  };
  const SamplerConfig& wanted = config.sampler;
  const std::int64_t global = setup.micro_batch * setup.micro_batches;
  if (setup.micro_batch != wanted.micro_batch || global != wanted.global_batch)
    return Error(Code::kInvalid, fmt::format("the script has batches of {}, training.batch says {}",
                                             batch(global, setup.micro_batch),
                                             batch(wanted.global_batch, wanted.micro_batch)))
        .set_reason("BatchMismatch");
  if (config.evaluate_every > 0 && setup.validation_micro_batches == 0)
    return Error(Code::kInvalid,
                 "training.evaluateEvery is set, and the script has nothing to "
                 "evaluate: give rubato.Job(evaluate=…), or set it to 0")
        .set_reason("BadTraining");
  return ok();
}

}  // namespace

Result<std::unique_ptr<Replica>> make_torch_replica(const TrainingConfig& config,
                                                    const ReplicaOptions& options,
                                                    TorchProgram& program) {
  if (config.has_model)
    return Error(Code::kInvalid,
                 "training.model and training.data are of runtime builtin; a "
                 "script says what it trains")
        .set_reason("BadTraining");
  // First, for it may have to be asked again, and the script builds its model once.
  TRY(const int numerics, numerics_of(options.files, config.checkpoint_path, options.numerics));
  TRY(TorchSetup setup, program.configure(options.training));
  TRY_OK(check_setup(config, setup));
  SamplerConfig samples = config.sampler;
  samples.seed = setup.seed;
  samples.sequence_length = 1;
  samples.validation_fraction = 0;
  auto sampler = Sampler::create(samples, static_cast<std::uint64_t>(setup.samples) + 1);
  if (!sampler.ok())
    return Error(Code::kInvalid,
                 fmt::format("the data set has {}, fewer than training.batch.global {}",
                             counted(setup.samples, "sample"), samples.global_batch))
        .set_reason("DataInvalid");
  auto layout = TorchLayout::create(std::move(setup));
  if (!layout.ok()) return Error(layout.error()).set_reason("BadTraining");
  TRY(auto device, options.open_device({.kind = options.device}));
  auto replica = std::make_unique<TorchReplica>(config, options, program, std::move(device),
                                                std::move(layout).value(), *sampler, numerics);
  TRY_OK(replica->check_path());
  TRY_OK(replica->allocate());
  return std::unique_ptr<Replica>(std::move(replica));
}

}  // namespace rubato::worker
