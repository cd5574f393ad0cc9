// SampleLedger: told what this worker really fed to the model, and what it contributed to each
// decision, by the code that feeds tokens to the model, never by the sampler. For tests: the worker
// that ships has none (worker/main/hooks.h); FileLedger of worker/testing writes it down.
// Thread: the step thread alone.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace rubato::worker {

class SampleLedger {
 public:
  SampleLedger() = default;
  SampleLedger(const SampleLedger&) = delete;
  SampleLedger& operator=(const SampleLedger&) = delete;
  virtual ~SampleLedger() = default;

  // `tokens` is a digest of all token rows of the micro-batch as they were read.
  virtual void forward(std::uint64_t generation, std::uint64_t seq, std::uint64_t step,
                       std::uint32_t micro, std::span<const std::int64_t> ids,
                       std::uint64_t tokens) = 0;
  virtual void vote(std::uint64_t generation, std::uint64_t seq, std::uint64_t step,
                    std::span<const std::uint32_t> micros) = 0;
  virtual void decided(std::uint64_t generation, std::uint64_t seq, std::uint64_t step,
                       const std::string& outcome, std::uint64_t sample_digest) = 0;
};

}  // namespace rubato::worker
