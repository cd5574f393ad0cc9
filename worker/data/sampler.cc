#include "worker/data/sampler.h"

#include "common/rng.h"
#include "common/words.h"
#include "worker/backend/digest.h"

#include <cmath>

namespace rubato::worker {

namespace {
constexpr int kRounds = 6;

std::uint64_t round_key(std::uint64_t key, int round, std::uint64_t half) {
  return mix64(key + static_cast<std::uint64_t>(round) * 0x9E3779B97F4A7C15 + mix64(half));
}
}  // namespace

KeyedPermutation::KeyedPermutation(std::uint64_t size, std::uint64_t key)
    : size_(size), key_(key), half_bits_(1) {
  CHECK(size > 0 && size <= (std::uint64_t{1} << 62));
  while ((std::uint64_t{1} << (2 * half_bits_)) < size) ++half_bits_;
}

std::uint64_t KeyedPermutation::operator()(std::uint64_t x) const {
  CHECK_LT(x, size_);
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  do {
    std::uint64_t left = x >> half_bits_;
    std::uint64_t right = x & mask;
    for (int round = 0; round < kRounds; ++round) {
      const std::uint64_t next = left ^ (round_key(key_, round, right) & mask);
      left = right;
      right = next;
    }
    x = (left << half_bits_) | right;
  } while (x >= size_);  // walks the cycle; it must come back, for x itself lies inside
  return x;
}

std::uint64_t KeyedPermutation::inverse(std::uint64_t y) const {
  CHECK_LT(y, size_);
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  do {
    std::uint64_t left = y >> half_bits_;
    std::uint64_t right = y & mask;
    for (int round = kRounds - 1; round >= 0; --round) {
      const std::uint64_t before = right ^ (round_key(key_, round, left) & mask);
      right = left;
      left = before;
    }
    y = (left << half_bits_) | right;
  } while (y >= size_);
  return y;
}

Result<Sampler> Sampler::create(const SamplerConfig& config, std::uint64_t token_count) {
  const auto bad = [](const std::string& what) { return Error(Code::kInvalid, what); };
  if (config.micro_batch < 1) return bad("batch.micro must be at least 1");
  if (config.sequence_length < 1) return bad("batch.sequenceLength must be at least 1");
  if (config.global_batch < 1 || config.global_batch % config.micro_batch != 0)
    return bad("batch.global " + std::to_string(config.global_batch) +
               " is not a multiple of batch.micro " + std::to_string(config.micro_batch));
  if (!(config.validation_fraction >= 0.0 && config.validation_fraction < 1.0))
    return bad("the validation fraction must lie in [0, 1)");
  // The last target of a sample is the first token of the next: hence the -1.
  const auto samples =
      token_count == 0
          ? std::int64_t{0}
          : static_cast<std::int64_t>((token_count - 1) /
                                      static_cast<std::uint64_t>(config.sequence_length));
  Sampler sampler;
  sampler.config_ = config;
  sampler.validation_samples_ =
      static_cast<std::int64_t>(config.validation_fraction * static_cast<double>(samples));
  sampler.train_samples_ = samples - sampler.validation_samples_;
  if (sampler.train_samples_ < config.global_batch)
    return bad(counted(token_count, "token", "gives", "give") + " " +
               counted(sampler.train_samples_, "training sample") + " of " +
               counted(config.sequence_length, "token") + ", fewer than batch.global " +
               std::to_string(config.global_batch) +
               "; give more data, or lower batch.global or batch.sequenceLength");
  return sampler;
}

std::int64_t Sampler::epoch(std::int64_t step, std::int64_t index) const {
  return (step * config_.global_batch + index) / train_samples_;
}

std::int64_t Sampler::sample_id(std::int64_t step, std::int64_t index) const {
  CHECK(step >= 0 && index >= 0 && index < config_.global_batch);
  const std::int64_t place = (step * config_.global_batch + index) % train_samples_;
  const std::uint64_t key =
      mix64(config_.seed) ^ mix64(static_cast<std::uint64_t>(epoch(step, index)) + 1);
  const KeyedPermutation shuffle(static_cast<std::uint64_t>(train_samples_), key);
  return static_cast<std::int64_t>(shuffle(static_cast<std::uint64_t>(place)));
}

std::vector<std::int64_t> Sampler::micro_batch_ids(std::int64_t step, std::int64_t m) const {
  CHECK(m >= 0 && m < micro_batches());
  std::vector<std::int64_t> ids;
  ids.reserve(static_cast<std::size_t>(config_.micro_batch));
  for (std::int64_t i = 0; i < config_.micro_batch; ++i)
    ids.push_back(sample_id(step, m * config_.micro_batch + i));
  return ids;
}

Status Sampler::read_ids(const TokenFile& file, std::span<const std::int64_t> ids,
                         std::vector<std::int32_t>& out) const {
  const auto row = static_cast<std::size_t>(config_.sequence_length) + 1;
  out.resize(ids.size() * row);
  for (std::size_t i = 0; i < ids.size(); ++i)
    TRY_OK(file.read(static_cast<std::uint64_t>(ids[i] * config_.sequence_length),
                     std::span(out).subspan(i * row, row)));
  return ok();
}

Status Sampler::read_micro_batch(const TokenFile& file, std::int64_t step, std::int64_t m,
                                 std::vector<std::int32_t>& out) const {
  return read_ids(file, micro_batch_ids(step, m), out);
}

std::int64_t Sampler::validation_micro_batches() const {
  return validation_samples_ / config_.micro_batch;
}

Status Sampler::read_validation(const TokenFile& file, std::int64_t m,
                                std::vector<std::int32_t>& out) const {
  CHECK(m >= 0 && m < validation_micro_batches());
  std::vector<std::int64_t> ids;
  ids.reserve(static_cast<std::size_t>(config_.micro_batch));
  for (std::int64_t i = 0; i < config_.micro_batch; ++i)
    ids.push_back(train_samples_ + m * config_.micro_batch + i);
  return read_ids(file, ids, out);
}

std::uint64_t sample_digest(std::int64_t step, std::int64_t index, std::int64_t id) {
  return mix64(mix64(mix64(static_cast<std::uint64_t>(step)) + static_cast<std::uint64_t>(index)) +
               static_cast<std::uint64_t>(id));
}

std::uint64_t Sampler::micro_batch_digest(std::int64_t step, std::int64_t m) const {
  return micro_batch_digest(step, m, micro_batch_ids(step, m));
}

std::uint64_t Sampler::micro_batch_digest(std::int64_t step, std::int64_t m,
                                          std::span<const std::int64_t> ids) const {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < ids.size(); ++i)
    sum += sample_digest(step, m * config_.micro_batch + static_cast<std::int64_t>(i), ids[i]);
  return sum;
}

std::uint64_t Sampler::step_digest(std::int64_t step) const {
  std::uint64_t sum = 0;
  for (std::int64_t m = 0; m < micro_batches(); ++m) sum += micro_batch_digest(step, m);
  return sum;
}

Status check_samples(const Sampler& sampler, std::int64_t step, std::uint64_t used) {
  const std::uint64_t expected = sampler.step_digest(step);
  if (used == expected) return ok();
  return Error(Code::kInternal, "step " + std::to_string(step + 1) +
                                    ": the samples that were used have the digest " + to_hex(used) +
                                    ", those of the step have " + to_hex(expected))
      .set_reason("LedgerMismatch");
}

}  // namespace rubato::worker
