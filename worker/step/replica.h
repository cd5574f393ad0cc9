// Replica: what one member of a job holds and computes, as the step engine sees it. The engine
// knows rounds, votes and generations; the replica knows tensors. ModelReplica is the real one; a
// test may use a quadratic.
//
// A round of step s, on every member:
//   clear();  for each own micro-batch: compute(), accumulate();  weigh();
//   reduced() = integer sum of accumulators() over the members;  judge();
//   ... the round is decided ...  apply() or raise()
// State changes only in apply, raise, init, load and through sections(). A computed micro-batch
// that is not accumulated leaves no trace.
//
// Thread: the step thread alone; a Snapshot may be read by any thread.
#pragma once

#include "common/result.h"
#include "worker/backend/device.h"
#include "worker/checkpoint/step_record.h"
#include "worker/model/sum_checksum.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace rubato::worker {

// Which attempt a forward pass belongs to: for the sample ledger.
struct RoundKey {
  std::uint64_t generation = 0;
  std::uint64_t seq = 0;
};

// The loss_q of a validation that is not a finite number; no sum of others is it. Any sum with it
// is it again, so that it passes through votes and records as other sums do.
constexpr std::int64_t kNotFiniteQ = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t validation_sum(std::int64_t a, std::int64_t b) {
  return a == kNotFiniteQ || b == kNotFiniteQ ? kNotFiniteQ : a + b;
}

// What one micro-batch adds to the vote. All of it is summed as integers.
struct MicroPart {
  std::int64_t loss_q = 0;
  std::uint64_t sample_digest = 0;
  bool non_finite = false;
  bool ends = false;        // the script has ended the job: the step before was the last
  double squared_norm = 0;  // of its gradient, in steps that measure noise (noise_scale.h)
};

// What the reduction says of itself: equal on every member, but for what this one gave.
struct Verdict {
  bool overflow = false;  // the sum cannot be trusted: raise() and redo
  bool non_finite = false;
  SumChecksum given;  // of accumulators(), as weigh() found them
  SumChecksum reduced;
};

// A copy of the state between two rounds. Immutable.
class Snapshot {
 public:
  virtual ~Snapshot() = default;
  virtual std::uint64_t step() const = 0;
  // Bytes of each section, in the order of Replica::sections().
  virtual std::vector<std::size_t> section_bytes() const = 0;
  // The sections as host memory, which lives as long as the snapshot. From a device whose memory is
  // apart they are copied at the first call; its error, then.
  virtual Result<std::vector<std::span<const std::byte>>> sections() const = 0;
  // Writes a checkpoint and returns its path. `redo_attempts`: of the open step, so far. Takes as
  // long as the disk does: never in the step thread. kConflict, "CheckpointPathTaken": another
  // job's are there; trying again does not help.
  virtual Result<std::string> save(std::span<const StepRecord> records,
                                   std::uint32_t redo_attempts) = 0;
};

// A checkpoint on disk: equal (step, digest), equal state.
struct FoundCheckpoint {
  std::uint64_t step = 0;
  std::uint64_t digest = 0;
};

// What a checkpoint holds beside the sections.
struct LoadedCheckpoint {
  std::vector<StepRecord> records;
  std::uint32_t redo_attempts = 0;
};

class Replica {
 public:
  virtual ~Replica() = default;
  virtual Device& device() = 0;
  virtual Stream& stream() = 0;

  // ---- What the job says ----
  virtual std::uint32_t micro_batches() const = 0;
  virtual std::uint64_t tokens_per_step() const = 0;
  virtual std::uint32_t validation_micro_batches() const = 0;  // 0: no validation split
  virtual double learning_rate(std::uint64_t step) const = 0;  // for people
  // Hash of the arithmetic at the job's shapes; cached.
  virtual Result<std::string> fingerprint() = 0;

  // ---- State ----
  virtual std::uint64_t step() const = 0;  // committed
  virtual void set_step(std::uint64_t step) = 0;
  virtual std::vector<Buffer> sections() = 0;
  virtual Status init_from_seed() = 0;
  // ---- Checkpoints. "CheckpointDamaged" (reason()): its bytes are wrong; kUnavailable: the disk
  // does not answer, kDenied: it may not be read, and nothing is known.
  virtual Result<std::vector<std::uint64_t>> checkpoints() const = 0;  // steps, ascending
  // What one says of itself, without reading all of it.
  virtual Result<FoundCheckpoint> look_at_checkpoint(std::uint64_t step) const = 0;
  // kConflict, "CheckpointPathTaken": it is another job's.
  virtual Result<LoadedCheckpoint> load_checkpoint(std::uint64_t step) = 0;
  // Out of the way of older ones, and kept: its new path. kNotFound: somebody else did.
  virtual Result<std::string> set_aside_checkpoint(std::uint64_t step) = 0;
  // Paths of those that were set aside.
  virtual Result<std::vector<std::string>> damaged_checkpoints() const = 0;

  // kUnavailable: as many as there may be are in use; kExhausted: no memory for a copy.
  virtual Result<std::shared_ptr<Snapshot>> snapshot() = 0;
  virtual Result<std::uint64_t> weight_digest() = 0;
  // At the job's end: whoever looks at the state behind the last step (a script, say) is to see
  // this one, also where no round has followed since it was loaded. kCancelled: nobody looks.
  virtual Status show() { return ok(); }
  // At the job's end, before the member says so: from then on a script does with its model what it
  // likes, and the state is a copy, until it trains on. Errors as of snapshot(): the job is done
  // all the same.
  virtual Status keep_apart() { return ok(); }

  // ---- A round ----
  // Which member of how many this is from now on, and how many steps the job has. For people:
  // nothing that is computed may depend on it.
  virtual void take_place(std::uint32_t /*rank*/, std::uint32_t /*members*/,
                          std::uint64_t /*stop_steps*/) {}
  virtual void clear() = 0;
  // Micro-batches that compute() is about to be called for, in this order: a hint.
  virtual void expect(std::span<const std::uint32_t> /*micros*/) {}
  virtual Result<MicroPart> compute(const RoundKey& key, std::uint32_t micro) = 0;
  virtual Status accumulate() = 0;
  virtual Buffer accumulators() = 0;  // kI32
  virtual Buffer reduced() = 0;       // kI32, equal count
  // Of the accumulators, before a reduction reads them. judge() has the result.
  virtual void weigh() = 0;
  // `attempt`: redos of this step so far.
  virtual Result<Verdict> judge(std::uint32_t attempt) = 0;
  // Of the mean over micro-batches that judge() has found.
  virtual double norm_of_mean() const = 0;
  // After judge() said neither overflow nor non-finite. Commits step().
  virtual Result<StepRecord> apply(std::int64_t loss_q, std::uint64_t sample_digest) = 0;
  virtual Status raise(std::uint32_t attempt) = 0;
  // loss_q of one micro-batch, or kNotFiniteQ; validation_sum() adds them.
  virtual Result<std::int64_t> validate(std::uint32_t micro) = 0;
  virtual double mean_loss(std::int64_t loss_q, std::uint32_t micro_batches) const = 0;
};

}  // namespace rubato::worker
