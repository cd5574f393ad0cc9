#include "worker/step/model_replica.h"

#include "common/log.h"
#include "common/planted.h"
#include "common/words.h"
#include "worker/backend/digest.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/data/sampler.h"
#include "worker/data/token_file.h"
#include "worker/model/exact_sum.h"
#include "worker/model/fingerprint.h"
#include "worker/model/model.h"
#include "worker/model/optimizer.h"
#include "worker/model/step_buffers.h"
#include "worker/model/training_state.h"
#include "worker/step/copy_pool.h"
#include "worker/step/memory_check.h"
#include "worker/step/model_snapshot.h"
#include "worker/step/noise_scale.h"
#include "worker/step/stored_replica.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <utility>

#include <fmt/format.h>

namespace rubato::worker {

namespace {

class ModelReplica : public StoredReplica {
 public:
  ModelReplica(TrainingConfig config, const ReplicaOptions& options, std::unique_ptr<Device> device,
               std::unique_ptr<Model> model, TokenFile file, Sampler sampler, TrainingState state,
               ExactSum sum, AdamW optimizer)
      : StoredReplica(options.files, config.checkpoint_path, config.checkpoint_keep),
        config_(std::move(config)),
        files_(options.files),
        job_uid_(options.job_uid),
        names_data_(options.pinned.empty() ||
                    options.pinned.find(kDataOfFingerprint) != std::string::npos),
        ledger_(options.ledger),
        device_(std::move(device)),
        stream_(device_->make_stream()),
        model_(std::move(model)),
        file_(std::move(file)),
        sampler_(sampler),
        state_(std::move(state)),
        sum_(std::move(sum)),
        optimizer_(std::move(optimizer)) {}
  Status allocate();
  Status compute_fingerprint();  // before there is a state
  Status load_weights(const std::string& from);
  Error not_finite();  // the first loss

  Device& device() override { return *device_; }
  Stream& stream() override { return *stream_; }
  std::uint32_t micro_batches() const override {
    return static_cast<std::uint32_t>(sampler_.micro_batches());
  }
  std::uint64_t tokens_per_step() const override {
    return static_cast<std::uint64_t>(config_.sampler.global_batch *
                                      config_.sampler.sequence_length);
  }
  std::uint32_t validation_micro_batches() const override {
    return static_cast<std::uint32_t>(sampler_.validation_micro_batches());
  }
  double learning_rate(std::uint64_t step) const override {
    return learning_rate_at(config_.optimizer, static_cast<std::int64_t>(step));
  }
  Result<std::string> fingerprint() override { return fingerprint_; }

  std::uint64_t step() const override { return static_cast<std::uint64_t>(state_.step()); }
  void set_step(std::uint64_t step) override { state_.set_step(static_cast<std::int64_t>(step)); }
  std::vector<Buffer> sections() override {
    std::vector<Buffer> buffers;
    for (const StateSection& section : state_.sections()) buffers.push_back(section.buffer);
    return buffers;
  }
  Status init_from_seed() override;
  Result<LoadedCheckpoint> load_checkpoint(std::uint64_t step) override;
  Result<std::shared_ptr<Snapshot>> snapshot() override;
  Result<std::uint64_t> weight_digest() override {
    return state_.weight_digest(*device_, *stream_);
  }

  void clear() override { sum_.clear(*stream_); }
  Result<MicroPart> compute(const RoundKey& key, std::uint32_t micro) override;
  Status accumulate() override {
    sum_.add(*stream_, state_.step(), micro_, buffers_.gradient, state_.exponents());
    return stream_->synchronize();
  }
  Buffer accumulators() override { return sum_.accumulators(); }
  Buffer reduced() override { return buffers_.reduced; }
  void weigh() override { sum_.weigh_given(*stream_); }
  Result<Verdict> judge(std::uint32_t attempt) override;
  Result<StepRecord> apply(std::int64_t loss_q, std::uint64_t sample_digest) override;
  Status raise(std::uint32_t attempt) override {
    return sum_.raise(*stream_, buffers_.reduced, static_cast<int>(attempt), state_.exponents());
  }
  Result<std::int64_t> validate(std::uint32_t micro) override;
  double norm_of_mean() const override { return norm_; }
  double mean_loss(std::int64_t loss_q, std::uint32_t micro_batches) const override {
    return step_loss(loss_q, micro_batches);
  }

 private:
  CheckpointInfo info() const override;

  const TrainingConfig config_;
  FileSystem& files_;
  const std::string job_uid_;
  const bool names_data_;  // the fingerprint: not for a job that an older version began
  SampleLedger* ledger_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Model> model_;
  TokenFile file_;
  Sampler sampler_;
  TrainingState state_;
  ExactSum sum_;
  AdamW optimizer_;
  StepBuffers buffers_;
  double norm_ = 0;
  std::string fingerprint_;
  CopyPool<TrainingState> copies_;
  std::vector<std::int32_t> tokens_;
  std::uint32_t micro_ = 0;  // of the gradient that compute() left
};

Status ModelReplica::allocate() {
  TRY(buffers_, StepBuffers::create(*device_, *stream_, sum_, model_->table().flat_count()));
  return ok();
}

// In the memory of the state: nothing else of this size is in the plan (plan_memory()).
Status ModelReplica::compute_fingerprint() {
  TRY(fingerprint_, numerics_fingerprint(*device_, *stream_, *model_, config_.optimizer,
                                         {state_, sum_, optimizer_, buffers_.gradient}));
  if (names_data_) {
    fingerprint_ +=
        kDataOfFingerprint + to_hex(file_.digest()) + "," + std::to_string(file_.count());
  }
  return ok();
}

Status ModelReplica::load_weights(const std::string& from) {
  TRY(const std::string path, weights_at(files_, from));
  return load_parameters(files_, path, config_.model, *device_, *stream_, model_->table(),
                         state_.parameters());
}

// Of training.model.initFrom: other weights are needed.
Error unusable(const Error& error) {
  return error.in("training.model.initFrom").set_reason(kInitFromUnusable);
}

Error ModelReplica::not_finite() {
  const Error why(Code::kInvalid, "the first loss is not finite");
  if (config_.init_from.empty()) return why;
  std::vector<float> host(static_cast<std::size_t>(model_->table().flat_count()));
  device_->copy_to_host(*stream_, host.data(), state_.parameters());
  if (const Status copied = stream_->synchronize(); !copied.ok()) return copied.error();
  const auto is_broken = [](float weight) { return !std::isfinite(weight); };
  for (const Parameter& entry : model_->table().entries()) {
    const auto weights = std::span(host).subspan(static_cast<std::size_t>(entry.offset),
                                                 static_cast<std::size_t>(entry.count));
    if (std::ranges::any_of(weights, is_broken))
      return unusable(Error(Code::kInvalid, config_.init_from + ": tensor " + entry.name +
                                                ": expected finite numbers, found others"));
  }
  return unusable(why.in(config_.init_from));
}

Status ModelReplica::init_from_seed() {
  for (const Buffer buffer : {state_.exp_avg(), state_.exp_avg_sq(), state_.exponents()}) {
    device_->memset(*stream_, buffer, 0);
  }
  state_.set_step(0);
  if (config_.init_from.empty()) {
    TRY_OK(model_->init(config_.seed, *device_, *stream_, state_.parameters()));
  } else {
    const Status loaded = load_weights(config_.init_from);
    if (!loaded.ok()) {
      const bool may_change =
          loaded.error().code() == Code::kUnavailable || loaded.error().reason() == kDeviceLost;
      return may_change ? loaded.error().in("training.model.initFrom") : unusable(loaded.error());
    }
  }
  // First exponents: from micro-batch 0 of step 0, which every worker computes alike.
  TRY_OK(sampler_.read_micro_batch(file_, 0, 0, tokens_));
  TRY(const MicroLoss loss,
      model_->forward_backward(*stream_, tokens_, state_.parameters(), buffers_.gradient));
  if (!loss.is_finite) return not_finite();
  return sum_.calibrate(*stream_, buffers_.gradient, state_.exponents());
}

// ---- Checkpoints ----

Result<LoadedCheckpoint> ModelReplica::load_checkpoint(std::uint64_t step) {
  TRY(const std::string path, own_path(step));
  TRY(Checkpoint loaded,
      rubato::worker::load_checkpoint(files_, path, *device_, *stream_, model_->table(), state_));
  if (loaded.info.numerics_version != sum_.numerics()) {
    return Error(Code::kInvalid, fmt::format("{}: numerics version {}, this job has {}", path,
                                             loaded.info.numerics_version, sum_.numerics()));
  }
  CHECK_EQ(static_cast<std::uint64_t>(state_.step()), step);
  return LoadedCheckpoint{std::move(loaded.records), loaded.info.redo_attempts};
}

CheckpointInfo ModelReplica::info() const {
  CheckpointInfo info;
  info.step = state_.step();
  info.sequence = state_.step();
  info.seed = config_.seed;
  info.data_digest = file_.digest();
  info.global_batch = config_.sampler.global_batch;
  info.micro_batch = config_.sampler.micro_batch;
  info.numerics_version = sum_.numerics();
  info.job_uid = job_uid_;
  info.fingerprint = fingerprint_;
  info.validation_fraction = config_.sampler.validation_fraction;
  info.init_from = config_.init_from;
  info.model = config_.model;
  info.optimizer = config_.optimizer;
  return info;
}

Result<std::shared_ptr<Snapshot>> ModelReplica::snapshot() {
  TRY(const std::shared_ptr<TrainingState> copy,
      copies_.take([&] { return TrainingState::create(*device_, model_->table()); }));
  const auto from = state_.sections();
  const auto to = copy->sections();
  const std::size_t sections = from.size() - (planted(Bug::kForgetExponents) ? 1 : 0);
  for (std::size_t i = 0; i < sections; ++i) {
    device_->copy(*stream_, to[i].buffer, from[i].buffer);
  }
  TRY_OK(stream_->synchronize());
  copy->set_step(state_.step());
  return std::shared_ptr<Snapshot>(
      std::make_shared<ModelSnapshot>(copy, *device_, model_->table(), store(), info()));
}

Result<MicroPart> ModelReplica::compute(const RoundKey& key, std::uint32_t micro) {
  const std::int64_t step = state_.step();
  micro_ = micro;
  const auto ids = sampler_.micro_batch_ids(step, micro);
  TRY_OK(sampler_.read_micro_batch(file_, step, micro, tokens_));
  // The ledger and the digest speak of the ids and tokens that go into the model right here.
  if (ledger_ != nullptr) {
    ledger_->forward(key.generation, key.seq, static_cast<std::uint64_t>(step), micro, ids,
                     digest_of(tokens_.data(), tokens_.size() * sizeof(std::int32_t)));
  }
  TRY(const MicroLoss loss,
      model_->forward_backward(*stream_, tokens_, state_.parameters(), buffers_.gradient));
  MicroPart part;
  part.loss_q = loss.fixed;
  part.non_finite = !loss.is_finite;
  part.sample_digest = sampler_.micro_batch_digest(step, micro, ids);
  if (measures_noise(static_cast<std::uint64_t>(step), micro_batches())) {
    TRY(const double norm, optimizer_.norm(*stream_, buffers_.gradient));
    part.squared_norm = norm * norm;
  }
  return part;
}

Result<Verdict> ModelReplica::judge(std::uint32_t attempt) {
  Verdict verdict;
  sum_.weigh_reduced(*stream_, buffers_.reduced);
  TRY(verdict.overflow, sum_.overflows(*stream_, buffers_.reduced));
  verdict.given = sum_.given();
  verdict.reduced = sum_.reduced();
  if (verdict.overflow) {
    // Exponents that rise without end mean that the gradient itself is not finite.
    if (attempt >= static_cast<std::uint32_t>(ExactSum::kRedosMax)) verdict.non_finite = true;
    return verdict;
  }
  sum_.mean(*stream_, buffers_.reduced, state_.exponents(), buffers_.gradient);
  TRY(norm_, optimizer_.norm(*stream_, buffers_.gradient));
  verdict.non_finite = !std::isfinite(norm_);
  return verdict;
}

Result<StepRecord> ModelReplica::apply(std::int64_t loss_q, std::uint64_t digest) {
  TRY_OK(check_samples(sampler_, state_.step(), digest));
  const StepRecord record =
      make_step_record(state_.step(), step_loss(loss_q, micro_batches()), digest, norm_);
  optimizer_.apply(*stream_, buffers_.gradient, norm_, state_);
  TRY_OK(sum_.advance(*stream_, buffers_.reduced, buffers_.gradient, state_.exponents()));
  return record;
}

Result<std::int64_t> ModelReplica::validate(std::uint32_t micro) {
  TRY_OK(sampler_.read_validation(file_, micro, tokens_));
  TRY(const MicroLoss loss, model_->evaluate(*stream_, tokens_, state_.parameters()));
  return loss.is_finite ? loss.fixed : kNotFiniteQ;
}

// "1-cpu/avx512_core/…" pins the instruction set.
std::string isa_of(const std::string& fingerprint) {
  const std::size_t at = fingerprint.find("cpu/");
  if (at == std::string::npos) return "auto";
  const std::size_t begin = at + 4;
  return fingerprint.substr(begin, fingerprint.find('/', begin) - begin);
}

// Of the job's own newest checkpoint; empty: none.
Result<std::string> newest_fingerprint(const TrainingConfig& config,
                                       const ReplicaOptions& options) {
  if (config.checkpoint_path.empty()) return std::string();
  const CheckpointFolder folder(options.files, config.checkpoint_path);
  TRY(const auto steps, folder.steps());
  if (steps.empty()) return std::string();
  const auto newest = info_of_listed(options.files, folder, steps.back());
  if (newest.ok()) return newest->job_uid == options.job_uid ? newest->fingerprint : std::string();
  if (newest.error().code() != Code::kInvalid) return newest.error();
  return std::string();  // it is damaged
}

template <class T>
Result<T> with_reason(Result<T> result, const char* reason) {
  if (result.ok()) return result;
  Error error = result.error();
  return error.set_reason(reason);
}

// Whoever took memory since it was planned may give it back: no fault of the spec.
template <class T>
Result<T> taken(Result<T> result) {
  const bool is_out = !result.ok() && result.error().code() == Code::kExhausted;
  return is_out ? with_reason(std::move(result), kOutOfMemory) : std::move(result);
}

}  // namespace

Result<std::unique_ptr<Replica>> make_model_replica(const TrainingConfig& config,
                                                    const ReplicaOptions& options) {
  if (!config.has_model)
    return Error(Code::kInvalid,
                 "training.model is missing: what a script trains, that script's "
                 "process computes (runtime pytorch)");
  TRY(const std::string path, find_token_file(options.files, config.data_path));
  TRY(TokenFile file, TokenFile::open(options.files, path));
  if (file.vocabulary() > static_cast<std::uint64_t>(config.model.vocabulary)) {
    return Error(Code::kInvalid, fmt::format("{}: tokens below {}, the model's vocab is {}", path,
                                             file.vocabulary(), config.model.vocabulary))
        .set_reason("DataInvalid");
  }
  TRY(Sampler sampler, with_reason(Sampler::create(config.sampler, file.count()), "DataInvalid"));
  std::string began_with = options.pinned;
  if (began_with.empty()) {
    TRY(began_with, newest_fingerprint(config, options));
  }
  if (config.evaluate_every > 0 && sampler.validation_micro_batches() == 0) {
    const std::string why = fmt::format(
        "training.evaluateEvery is set, but the validation part of {} has {}, fewer "
        "than batch.micro ({}): raise data.validationFraction",
        path, counted(sampler.validation_samples(), "sample"), config.sampler.micro_batch);
    if (began_with.empty()) return Error(Code::kInvalid, why).set_reason("DataInvalid");
    LOG_WARNING("worker", "no validation: {}", why);  // what has begun so goes on
  }
  DeviceSpec spec;
  spec.kind = options.device;
  spec.precision = config.precision;
  spec.isa = isa_of(began_with);
  TRY(auto device, with_reason(options.open_device(spec), "DeviceUnavailable"));
  TRY(const int numerics, numerics_of(options.files, config.checkpoint_path, options.numerics));
  TRY_OK(check_memory(config, numerics, *device, options.make_model));
  TRY(auto model,
      taken(with_reason(options.make_model(config.model, config.sampler.micro_batch, *device),
                        "BadTraining")));
  TRY(TrainingState state, taken(TrainingState::create(*device, model->table())));
  TRY(ExactSum sum,
      taken(ExactSum::create(*device, model->table(), sampler.micro_batches(), numerics)));
  TRY(AdamW optimizer, taken(AdamW::create(config.optimizer, *device, model->table())));
  auto replica = std::make_unique<ModelReplica>(
      config, options, std::move(device), std::move(model), std::move(file), sampler,
      std::move(state), std::move(sum), std::move(optimizer));
  TRY_OK(replica->check_path());
  TRY_OK(taken(replica->allocate()));
  TRY_OK(taken(replica->compute_fingerprint()));
  return std::unique_ptr<Replica>(std::move(replica));
}

}  // namespace rubato::worker
