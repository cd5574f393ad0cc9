// FakeReplica: a quadratic in integers, so that rounds take microseconds and any difference shows.
// The state is a vector w; micro-batch m of step s pulls it towards a point that (s, m) names.
#pragma once

#include "common/rng.h"
#include "tests/unit/worker/support/host_device.h"
#include "worker/step/noise_scale.h"
#include "worker/step/replica.h"
#include "worker/step/state_digest.h"

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace rubato::worker {

constexpr std::size_t kFakeSize = 1000;
constexpr std::uint32_t kFakeMicroBatches = 6;

// What may go wrong, the same on every worker of a test.
struct FakeTroubles {
  std::uint64_t overflow_step = ~std::uint64_t{0};  // its first attempt overflows
  std::uint64_t non_finite_step = ~std::uint64_t{0};
  std::uint32_t non_finite_times = 0;  // attempts of that step that are not finite
  std::function<void(std::uint64_t step, std::uint32_t micro)> on_compute = nullptr;
  std::function<Status(std::uint64_t step)> on_accumulate = nullptr;
  std::uint64_t checkpoint_every = 0;  // 0: the job has nowhere to write them
  std::size_t ballast = 0;             // numbers of state that no step touches
  // One bit of memory flips when the gradient of this step is here: of what this round's vote
  // speaks of, or of the ballast.
  std::uint64_t flip_step = ~std::uint64_t{0};
  bool flip_ballast = false;
  std::uint64_t ends_at = ~std::uint64_t{0};  // micro-batch 0 of this step says that the job ended
  std::optional<std::uint32_t> loads_attempts = {};  // checkpoints of any step have so many
  bool starts_otherwise = false;  // from other weights than those without troubles
  std::function<void(std::uint64_t step, Buffer reduced)> on_reduced = nullptr;
  std::function<Status(std::uint64_t step)> on_show = nullptr;
  std::function<Status()> on_snapshot = nullptr;
  std::function<Status()> on_keep_apart = nullptr;
  std::uint64_t nan_validation_step = ~std::uint64_t{0};  // the loss of one micro-batch there
  std::vector<std::uint64_t> listed = {};  // checkpoints, ascending; who looks at one asks on_look
  std::function<Result<FoundCheckpoint>(std::uint64_t step)> on_look = nullptr;
};

class FakeSnapshot : public Snapshot {
 public:
  FakeSnapshot(std::uint64_t step, std::vector<std::int32_t> state,
               std::vector<std::int32_t> ballast)
      : step_(step), state_(std::move(state)), ballast_(std::move(ballast)) {}
  std::uint64_t step() const override { return step_; }
  std::vector<std::size_t> section_bytes() const override {
    return {std::as_bytes(std::span(state_)).size(), std::as_bytes(std::span(ballast_)).size()};
  }
  Result<std::vector<std::span<const std::byte>>> sections() const override {
    return std::vector<std::span<const std::byte>>{std::as_bytes(std::span(state_)),
                                                   std::as_bytes(std::span(ballast_))};
  }
  Result<std::string> save(std::span<const StepRecord> records, std::uint32_t) override {
    if (records.size() != step_) return Error(Code::kInternal, "records do not end at the step");
    return "memory/step-" + std::to_string(step_);
  }

 private:
  std::uint64_t step_;
  std::vector<std::int32_t> state_, ballast_;
};

class FakeReplica : public Replica {
 public:
  explicit FakeReplica(FakeTroubles troubles = {})
      : troubles_(std::move(troubles)),
        w_(kFakeSize),
        sums_(kFakeSize),
        reduced_(kFakeSize),
        ballast_(troubles_.ballast) {}

  Device& device() override { return device_; }
  Stream& stream() override { return stream_; }
  std::uint32_t micro_batches() const override { return kFakeMicroBatches; }
  std::uint64_t tokens_per_step() const override { return 60; }
  std::uint32_t validation_micro_batches() const override { return 4; }
  double learning_rate(std::uint64_t) const override { return 0.125; }
  Result<std::string> fingerprint() override { return std::string("fake"); }
  std::uint64_t step() const override { return step_; }
  void set_step(std::uint64_t step) override { step_ = step; }
  std::vector<Buffer> sections() override { return {buffer(w_), buffer(ballast_)}; }
  Status init_from_seed() override {
    w_.assign(kFakeSize, 0);
    step_ = 0;
    if (troubles_.starts_otherwise) ballast_[0] = 1;
    return ok();
  }
  Result<std::vector<std::uint64_t>> checkpoints() const override { return troubles_.listed; }
  Result<FoundCheckpoint> look_at_checkpoint(std::uint64_t step) const override {
    if (!troubles_.on_look) return Error(Code::kNotFound, "none");
    return troubles_.on_look(step);
  }
  Result<LoadedCheckpoint> load_checkpoint(std::uint64_t step) override {
    if (!troubles_.loads_attempts) return Error(Code::kNotFound, "none");
    TRY_OK(init_from_seed());
    step_ = step;
    return LoadedCheckpoint{std::vector<StepRecord>(step), *troubles_.loads_attempts};
  }
  Result<std::string> set_aside_checkpoint(std::uint64_t) override {
    return Error(Code::kNotFound, "none");
  }
  Result<std::vector<std::string>> damaged_checkpoints() const override {
    return std::vector<std::string>();
  }
  Result<std::shared_ptr<Snapshot>> snapshot() override {
    if (troubles_.on_snapshot) TRY_OK(troubles_.on_snapshot());
    return std::shared_ptr<Snapshot>(std::make_shared<FakeSnapshot>(step_, w_, ballast_));
  }
  Result<std::uint64_t> weight_digest() override {
    std::uint64_t digest = 0;
    for (const std::int32_t value : w_) {
      digest = mix64(digest ^ static_cast<std::uint32_t>(value));
    }
    return digest;
  }

  Status show() override { return troubles_.on_show ? troubles_.on_show(step_) : ok(); }
  Status keep_apart() override {
    return troubles_.on_keep_apart ? troubles_.on_keep_apart() : ok();
  }

  void clear() override { sums_.assign(kFakeSize, 0); }
  void expect(std::span<const std::uint32_t> micros) override {
    expected_.assign(micros.begin(), micros.end());
  }
  Result<MicroPart> compute(const RoundKey&, std::uint32_t micro) override {
    CHECK(!expected_.empty() && expected_.front() == micro);
    expected_.pop_front();
    if (troubles_.on_compute) troubles_.on_compute(step_, micro);
    Rng rng(mix64(step_ * 1000 + micro));
    gradient_.resize(kFakeSize);
    MicroPart part;
    for (std::size_t i = 0; i < kFakeSize; ++i) {
      gradient_[i] = static_cast<std::int32_t>(rng.below(4096)) - w_[i];
      part.loss_q += std::int64_t{gradient_[i]} * gradient_[i];
    }
    part.sample_digest = mix64(step_ ^ (std::uint64_t{micro} << 32));
    part.non_finite =
        step_ == troubles_.non_finite_step && non_finite_done_ < troubles_.non_finite_times;
    part.ends = step_ == troubles_.ends_at && micro == 0;
    if (measures_noise(step_, kFakeMicroBatches)) part.squared_norm = 4;
    return part;
  }
  Status accumulate() override {
    if (troubles_.on_accumulate) TRY_OK(troubles_.on_accumulate(step_));
    for (std::size_t i = 0; i < kFakeSize; ++i) sums_[i] += gradient_[i];
    return ok();
  }
  Buffer accumulators() override { return buffer(sums_); }
  Buffer reduced() override { return buffer(reduced_); }
  void weigh() override { given_ = checksum_of(sums_); }
  Result<Verdict> judge(std::uint32_t attempt) override {
    if (troubles_.on_reduced) troubles_.on_reduced(step_, reduced());
    Verdict verdict{.given = given_, .reduced = checksum_of(reduced_)};
    verdict.overflow = step_ == troubles_.overflow_step && attempt == 0;
    if (step_ == troubles_.non_finite_step) ++non_finite_done_;
    if (step_ == troubles_.flip_step) flip();
    return verdict;
  }
  double norm_of_mean() const override { return 1; }
  Result<StepRecord> apply(std::int64_t loss_q, std::uint64_t digest) override {
    for (std::size_t i = 0; i < kFakeSize; ++i) w_[i] += reduced_[i] / 16;
    const double loss = static_cast<double>(loss_q);
    return make_step_record(static_cast<std::int64_t>(step_++), loss, digest, 1.0);
  }
  Status raise(std::uint32_t attempt) override {
    w_[0] += 100000 * (static_cast<std::int32_t>(attempt) + 1);  // exponents are state too
    return ok();
  }
  Result<std::int64_t> validate(std::uint32_t micro) override {
    return step_ == troubles_.nan_validation_step && micro == 1 ? kNotFiniteQ : w_[micro];
  }
  double mean_loss(std::int64_t loss_q, std::uint32_t) const override {
    return static_cast<double>(loss_q);
  }

 private:
  void flip() {
    troubles_.flip_step = ~std::uint64_t{0};       // once
    const std::size_t part = step_ % kStateParts;  // of the vote, as long as no step is redone
    (troubles_.flip_ballast ? ballast_[0]
                            : w_[(kFakeSize + ballast_.size()) * part / kStateParts]) ^= 1 << 7;
  }
  static SumChecksum checksum_of(const std::vector<std::int32_t>& sums) {
    SumChecksum out;
    for (std::size_t i = 0; i < sums.size(); ++i)
      out.elements += (mix64(i) | 1) * static_cast<std::uint64_t>(std::int64_t{sums[i]});
    return out;
  }
  static Buffer buffer(std::vector<std::int32_t>& values) {
    return {values.data(), static_cast<std::int64_t>(values.size()), DType::kI32};
  }
  FakeTroubles troubles_;
  HostDevice device_;
  ImmediateStream stream_;
  std::uint64_t step_ = 0;
  std::uint32_t non_finite_done_ = 0;
  SumChecksum given_;
  std::deque<std::uint32_t> expected_;
  std::vector<std::int32_t> w_, sums_, reduced_, gradient_, ballast_;
};

}  // namespace rubato::worker
