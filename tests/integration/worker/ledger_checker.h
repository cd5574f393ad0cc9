// Checks the ledgers that the workers of a run wrote (worker/testing/file_ledger.h) against the
// data itself: that each committed step was made of every micro-batch exactly once, that each
// micro-batch held the samples it should, and that the tokens fed to the model were those samples'
// tokens.
//
// It does not trust the sampler of the run: order and coverage are checked against a reference
// ledger (an undisturbed run) and by counting, the tokens against the token file.
#pragma once

#include "common/result.h"

#include <cstdint>
#include <string>
#include <vector>

namespace rubato::worker {

struct LedgerTerms {
  std::string folder;     // *.jsonl of the run
  std::string reference;  // *.jsonl of an undisturbed run; empty: without
  std::string tokens;     // token file
  std::uint32_t micro_batches = 0;
  std::uint32_t micro_batch = 0;
  std::uint32_t sequence_length = 0;
  std::uint64_t steps = 0;          // committed steps that must be there
  std::uint64_t train_samples = 0;  // samples of one epoch
};

struct LedgerReport {
  std::uint64_t steps = 0;
  std::uint64_t samples = 0;
  std::uint64_t forwards = 0;    // micro-batches computed in all
  std::uint64_t recomputed = 0;  // of those, computed but not part of a decision
  std::uint64_t redone = 0;  // rounds that all members decided to do again (an exponent overflowed)
  std::vector<std::string> faults;  // empty: exactly once
};

// kInvalid: a ledger cannot be read. Faults of the run itself are in the report (at most 20).
Result<LedgerReport> check_ledger(const LedgerTerms& terms);

}  // namespace rubato::worker
