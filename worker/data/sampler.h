// Which samples a step trains on: a pure function of (seed, step, index). Nothing is stored but the
// step number, any worker can compute any index in O(1), and a step that is redone sees the same
// samples. A sample id is a window of the training range: [id * length, id * length + length + 1).
#pragma once

#include "common/result.h"
#include "worker/data/token_file.h"

#include <cstdint>
#include <span>
#include <vector>

namespace rubato::worker {

// A permutation of [0, size), chosen by a key: a balanced Feistel network of six rounds on the next
// even number of bits, walked until it lands inside (at most 4 tries on average).
class KeyedPermutation {
 public:
  KeyedPermutation(std::uint64_t size, std::uint64_t key);
  std::uint64_t operator()(std::uint64_t x) const;  // x < size
  std::uint64_t inverse(std::uint64_t y) const;     // y < size

 private:
  std::uint64_t size_;
  std::uint64_t key_;
  int half_bits_;
};

struct SamplerConfig {
  std::uint64_t seed = 0;
  std::int64_t global_batch = 0;      // samples of a step
  std::int64_t micro_batch = 0;       // samples of a logical micro-batch; divides global_batch
  std::int64_t sequence_length = 0;   // tokens of a sample
  double validation_fraction = 0.05;  // of the samples, from the end of the file; never trained on
};

class Sampler {
 public:
  // kInvalid: a field, or too few tokens for one global batch.
  static Result<Sampler> create(const SamplerConfig& config, std::uint64_t token_count);

  const SamplerConfig& config() const { return config_; }
  std::int64_t train_samples() const { return train_samples_; }
  std::int64_t validation_samples() const { return validation_samples_; }
  std::int64_t micro_batches() const { return config_.global_batch / config_.micro_batch; }

  // The id of sample `index` of step `step`; ids of an epoch are each given once.
  std::int64_t sample_id(std::int64_t step, std::int64_t index) const;
  std::int64_t epoch(std::int64_t step, std::int64_t index) const;

  // The ids of logical micro-batch m of a step, in order.
  std::vector<std::int64_t> micro_batch_ids(std::int64_t step, std::int64_t m) const;
  // Their tokens: micro_batch rows of sequence_length + 1.
  Status read_micro_batch(const TokenFile& file, std::int64_t step, std::int64_t m,
                          std::vector<std::int32_t>& out) const;
  // Validation micro-batch m of validation_micro_batches(), always the same.
  std::int64_t validation_micro_batches() const;
  Status read_validation(const TokenFile& file, std::int64_t m,
                         std::vector<std::int32_t>& out) const;

  // Digest of the sample ids of a step: the sum over its samples of mix64(step, index, id), modulo
  // 2^64, so that parts computed by different workers add up. micro_batch_digest is one part.
  std::uint64_t micro_batch_digest(std::int64_t step, std::int64_t m) const;
  // The same of the ids that were really used.
  std::uint64_t micro_batch_digest(std::int64_t step, std::int64_t m,
                                   std::span<const std::int64_t> ids) const;
  std::uint64_t step_digest(std::int64_t step) const;

 private:
  Sampler() = default;
  Status read_ids(const TokenFile& file, std::span<const std::int64_t> ids,
                  std::vector<std::int32_t>& out) const;
  SamplerConfig config_;
  std::int64_t train_samples_ = 0;
  std::int64_t validation_samples_ = 0;
};

// "LedgerMismatch" (reason(), kInternal): the samples that were used in a step have another digest.
Status check_samples(const Sampler& sampler, std::int64_t step, std::uint64_t used);

// One term of the digest above. What computes gradients adds this for each sample it really used.
std::uint64_t sample_digest(std::int64_t step, std::int64_t index, std::int64_t id);

}  // namespace rubato::worker
