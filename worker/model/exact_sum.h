// The exact reduction: a sum of micro-batch gradients whose bits depend on the set of micro-batches
// alone, never on who computed which, in what order, or over how many workers.
//
// Each block of 256 elements has an exponent e, part of the training state. A contribution c
// becomes the integer q = round(c * 2^(F - e)), and integers are added: locally micro-batch by
// micro-batch, then across workers with a plain int32 sum of any algorithm. Addition of integers is
// associative, so every grouping gives the same sum.
//
//   F = 31 - headroom,  headroom = 3 + ceil(log2(M) / 2)      M: micro-batches of a step
//
// e is chosen so that the last step's summed gradient was at most 2^e in the block; contributions
// that are mostly noise are larger than their sum by sqrt(M) in total, hence the second term.
//
// Overflow must be judged alike by all, so it is judged by something that is itself an exact sum:
// behind the elements lies one guard per block, to which each contribution adds its largest |q|,
// rounded up to 2^12. Guards are summed by the same reduction. If a guard is below 2^31 / 2^12 then
// no partial sum of the block can have left int32, in any order. Otherwise the block overflowed:
// every worker sees the same guards, raises the same exponents, and the step is redone.
//
// Exponents move only with a decided step, by the reduced gradient g alone:
//   e' = max(ceil(log2 max|g| in block), e - 2, ceil(log2 max|g| in tensor) - 4)
// The last term is for rows that get a gradient only now and then (rare tokens): without it their
// exponents sink until the next occurrence overflows. The price: no block is resolved finer than
// 2^-(F + 4) of its tensor's largest gradient.
//
// Use per step, by every worker:
//   sum.clear(stream);  for each own micro-batch: sum.add(stream, gradient, exponents);
//   reduced = integer sum of accumulators() over all workers, out of place
//   if (sum.overflows(stream, reduced)) { sum.raise(stream, reduced, attempt, exponents); redo }
//   sum.mean(stream, reduced, exponents, gradient);     // mean over the M micro-batches
//   ... the step is decided ...
//   sum.advance(stream, gradient, exponents);
// A micro-batch's part can be kept and used after a failure: its accumulators stay as they are
// until clear(), as long as the exponents do not move.
//
// Thread: that of the stream. `exponents` is TrainingState::exponents().
#pragma once

#include "worker/backend/device.h"
#include "worker/model/parameter_table.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace rubato::worker {

class ExactSum {
 public:
  static constexpr std::int64_t kMicroBatchesMax = 4095;  // so that guards cannot wrap
  static constexpr int kGuardShift = 12;
  static constexpr int kRedosMax = 8;  // after that the gradient itself is broken (not finite)

  // kInvalid: micro_batches outside [1, kMicroBatchesMax]; kExhausted: no memory.
  static Result<ExactSum> create(Device& device, const ParameterTable& table,
                                 std::int64_t micro_batches);

  // What is summed over the workers: flat_count() elements, then one guard per block. i32.
  Buffer accumulators() const { return accumulators_; }
  std::int64_t accumulator_count() const { return flat_count_ + block_count_; }
  int headroom() const { return headroom_; }
  int fraction_bits() const { return 31 - headroom_; }

  // First exponents, from the gradient of logical micro-batch 0 of the step, which every worker
  // computes alike: the sum of M such gradients would fit.
  Status calibrate(Stream& stream, ConstBuffer micro_gradient, Buffer exponents);

  void clear(Stream& stream);
  void add(Stream& stream, ConstBuffer micro_gradient, ConstBuffer exponents);
  // Adds another worker's (or a salvaged) accumulators to `to`. accumulator_count() elements each.
  void merge(Stream& stream, ConstBuffer from, Buffer to);

  // True when some block's guard says that its sum cannot be trusted. Waits for the stream.
  Result<bool> overflows(Stream& stream, ConstBuffer reduced);
  // Raises the exponents of the blocks that overflowed: by 4 on the first attempt (0), 8 on the
  // second, 16, then 32. A function of (reduced, attempt) alone. Waits for the stream.
  Status raise(Stream& stream, ConstBuffer reduced, int attempt, Buffer exponents);
  // gradient = sum / M, f32. Asynchronous.
  void mean(Stream& stream, ConstBuffer reduced, ConstBuffer exponents, Buffer gradient);
  // The exponents of the next step, from the mean gradient of this decided one. Waits.
  Status advance(Stream& stream, ConstBuffer gradient, Buffer exponents);

 private:
  ExactSum() = default;
  Status block_exponents(Stream& stream, ConstBuffer x);

  Device* device_ = nullptr;
  Arena arena_;
  Buffer accumulators_;
  Buffer found_;  // block exponents of the last gradient looked at
  std::int64_t flat_count_ = 0;
  std::int64_t block_count_ = 0;
  std::int64_t micro_batches_ = 1;
  int headroom_ = 3;
  std::vector<std::int64_t> tensor_ends_;  // in blocks
  std::vector<std::int32_t> host_found_;
  std::vector<std::int32_t> host_exponents_;
  std::vector<std::int32_t> host_guards_;
};

}  // namespace rubato::worker
