// The exact reduction: a sum of micro-batch gradients whose bits depend on the set of micro-batches
// alone, never on who computed which, in what order, or over how many workers; and whose error is
// without bias and bounded element by element.
//
// Each block of 256 elements has an exponent e, part of the training state. A contribution c
// becomes an integer number q of quanta 2^(e - F), F = 27, and integers are added: locally
// micro-batch by micro-batch, then across workers with a plain int32 sum of any algorithm. Addition
// of integers is associative, so every grouping gives the same sum.
//
// Rounding. x = c * 2^(F - e) is rounded up or down (kernels.h, Dither) as r_m says, 32 bits for
// micro-batch m of the M of a step:  r_m = J + o(pi(m)) mod 2^32,  o(k) = floor(k * 2^32 / M),
// J a hash of (step, element), pi a permutation of 0..M-1 drawn by a hash of (step). The r_m of an
// element are thus M points at equal distances on a circle, turned by J and dealt out by pi. They
// depend on (step, micro-batch, element) alone: not on rank, order, world size or processor.
//
// Bound. Let S be the sum of the x of one element, Q that of its q; take J and pi as random (they
// are hashes), c as zero or a normal f32. All in quanta:
//   (1) |Q - S| <= M at worst, and q = x where x is whole: zero stays zero.
//   (2) |E Q - S| <= M / 2^31 (the fraction of x is cut after 31 bits; no other bias).
//   (3) P(|Q - S| >= 1 + M / 2^31 + t sqrt(M)) <= 2 exp(-2 t^2), Var Q <= M / 4 + 1 + M / 2^30.
//   (4) If all M contributions are equal, |Q - S| < 1 + M / 2^31.
// Proof. (1) q is floor(x) or ceil(x). (2) Each r_m is uniform. For (3) and (4) fix J. A |q| is
// rounded up where r_m lies in one arc of the circle (from its origin onwards for x >= 0, up to its
// origin for x < 0), whose share p of the circle is the cut fraction of |x|. Of M points at equal
// distances an arc holds pM or the next whole number on either side, and pi deals every point to m
// alike: |E[q | J] - x| < 1 / M + 1 / 2^31, over M contributions |E[Q | J] - S| < 1 + M / 2^31. If
// all x are equal then each point of the arc is dealt to one of them: Q has no chance left in it
// and is E[Q | J], which is (4). Else: numbers dealt out by a random permutation are negatively
// associated (Joag-Dev and Proschan 1983), and so are functions of one number each that all fall,
// as q(r_m) does for x of either sign. For such the variance of the sum is at most the sum of the
// variances, at most 1 / 4 each, and the moment generating function at most the product of theirs,
// so that Hoeffding's inequality holds as for independent ones: P(|Q - E[Q | J]| >= t sqrt(M)) <=
// 2 exp(-2 t^2). With |E[Q | J] - S| that is (3). (An independent dither has the same (3), but
// sqrt(M) / 2 in the place of (4).)
//
// In the units of the gradient: e is chosen so that A = sum over the micro-batches of the block's
// largest |c| was at most 2^e in the last step (and > 2^(e-1), where none of the bounds below
// holds e up). So with probability 1 - 3e-14 (t = 4) an element's sum is wrong by less than
//   (1 + 4 sqrt(M)) * 2^(e - 27)     M = 8: 2^-23.3 of 2^e, 64: 2^-21.9, 512: 2^-20.4, 4096:
//   2^-18.9
// and with probability 1 by less than 2^-27 of it where micro-batches agree; an error that changes
// from step to step without bias, so that what is smaller is not lost but blurred: an optimizer
// that averages over steps still sees it. A sum in f32, one by one, errs by some sqrt(M) * 2^-25 of
// the sum of the element's own |c|: less where an element is far below its block's largest.
//
// Overflow must be judged alike by all, so it is judged by something that is itself an exact sum:
// behind the elements lies one guard per block, to which each contribution adds its ceil(max |x|),
// rounded up to 2^s; no |q| is larger, however the dither falls. Guards are summed by the same
// reduction. If a guard is below 2^(31 - s) then no partial sum of the block can have left int32,
// in any order. Otherwise the block overflowed: every worker sees the same guards, raises the same
// exponents, and the step is redone. s = max(4, ceil(log2 M)): a block that cannot be rounded adds
// 2^(31 - s), so that M of them stay below 2^32 and guards, read without sign, cannot wrap.
//
// Exponents move only with a decided step, by its reduced guards alone. A guard G says that A was
// at most 2^a, a = e + s - F + ceil(log2 G):
//   e' = max(a, e - 2, the largest a in the tensor - 4)
// The last term is for rows that get a gradient only now and then (rare tokens): without it their
// exponents sink until the next occurrence overflows. The price: no contribution of a tensor is
// resolved finer than 2^-(F + 4) of the tensor's largest A. (In terms of the tensor's largest mean
// gradient g that is M * 2^-(F + 4) where contributions agree, as A = M g then, and more by up to
// sqrt(M) where they are mostly noise.) Headroom: A may grow by 2^4 from one step to the next.
//
// A tensor that no micro-batch of a step used (an expert that no token chose, the head of another
// task) says nothing of what its next gradient is like: it keeps its exponents. One that the first
// gradient does not use begins with the median of the largest exponents of those that it does use:
// where that is too low, a step is redone; where it is too high, its first sums are that much
// coarser than the bound says, and e sinks by 2 with each step that uses it.
//
// Numerics version 2 (numerics.h), for jobs that began under it: a tensor without a gradient sinks
// by 2 a step, and begins at the bottom, so that its next gradient overflows: steps are redone.
//
// Version 1: the same, and x is rounded to nearest, so that a contribution below half a quantum
// vanishes however many there are; F = 28 - ceil(log2(M) / 2); s = 12; and a is ceil(log2) of the
// block's largest |sum|, with room for contributions that are mostly noise, sqrt(M) larger than
// their sum, taken from F.
//
// Checksum. Whoever adds the workers' integers (links, NCCL) may return success and garbage, on one
// worker or alike on all. So each weighs what it gives and what it got (Kernels::weighted_sums, and
// a weight for each chunk), modulo 2^64: weighing is linear, so the reduced integers weigh what all
// that were given weigh together, or the reduction is wrong. That holds of elements as long as none
// of their sums left int32: where a guard says that one may have, elements are not compared, and
// not used either. Guards are compared modulo 2^32, as they are read without sign: exponents are
// raised by them. It costs two reads of the integers a step, 8 bytes a parameter, and no wait: of
// one of 2 x 1024 tokens at 124M 0.75 % on one core, and, as reckoned, 0.03 % of one of 32 768 on
// an H200. What is wrong before it is weighed, a gradient or its rounding, is not seen.
//
// Use per step, by every worker:
//   sum.clear(stream);  for each own micro-batch m: sum.add(stream, step, m, gradient, exponents);
//   sum.weigh_given(stream);
//   reduced = integer sum of accumulators() over all workers, out of place
//   sum.weigh_reduced(stream, reduced);
//   if (sum.overflows(stream, reduced)) { sum.raise(stream, reduced, attempt, exponents); redo }
//   sum.mean(stream, reduced, exponents, gradient);     // mean over the M micro-batches
//   ... the step is decided ...
//   sum.advance(stream, reduced, gradient, exponents);
// A micro-batch's part can be kept and used after a failure: its accumulators stay as they are
// until clear(), as long as the exponents do not move.
//
// Thread: that of the stream. `exponents` is TrainingState::exponents().
#pragma once

#include "worker/backend/device.h"
#include "worker/model/numerics.h"
#include "worker/model/parameter_table.h"
#include "worker/model/sum_checksum.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace rubato::worker {

class ExactSum {
 public:
  static constexpr std::int64_t kMicroBatchesMax = 8192;         // beyond, exponents could not sink
  static constexpr std::int64_t kMicroBatchesMaxNearest = 4095;  // numerics version 1
  static constexpr int kRedosMax = 8;  // after that the gradient itself is broken (not finite)

  // kInvalid: micro_batches outside [1, kMicroBatchesMax], or a version of the numerics that this
  // program does not know; kExhausted: no memory.
  static Result<ExactSum> create(Device& device, const ParameterTable& table,
                                 std::int64_t micro_batches, int numerics = kNumericsVersion);
  int numerics() const { return numerics_; }
  // A sum of so many micro-batches in the accumulators of this one, which outlives it and is not
  // used meanwhile. As create().
  Result<ExactSum> sharing_memory(const ParameterTable& table, std::int64_t micro_batches) const;

  // What is summed over the workers: flat_count() elements, then one guard per block. i32.
  Buffer accumulators() const { return accumulators_; }
  std::int64_t accumulator_count() const { return flat_count_ + block_count_; }
  int fraction_bits() const { return fraction_bits_; }

  // First exponents, from the gradient of logical micro-batch 0 of the step, which every worker
  // computes alike: the sum of M such gradients would fit.
  Status calibrate(Stream& stream, ConstBuffer micro_gradient, Buffer exponents);

  void clear(Stream& stream);
  // The gradient of logical micro-batch `micro` of step `step`, which key its rounding.
  void add(Stream& stream, std::int64_t step, std::int64_t micro, ConstBuffer micro_gradient,
           ConstBuffer exponents);
  // Weighs the accumulators, before they are given away. Asynchronous.
  void weigh_given(Stream& stream);
  // Weighs their sum. Once the stream was waited for, given() and reduced() are these two.
  void weigh_reduced(Stream& stream, ConstBuffer reduced);
  SumChecksum given() const { return checksum(0); }
  SumChecksum reduced() const { return checksum(1); }

  // Adds another worker's (or a salvaged) accumulators to `to`. accumulator_count() elements each.
  void merge(Stream& stream, ConstBuffer from, Buffer to);

  // True when some block's guard says that its sum cannot be trusted. Waits for the stream.
  Result<bool> overflows(Stream& stream, ConstBuffer reduced);
  // Raises the exponents of the blocks that overflowed: by 4 on the first attempt (0), 8 on the
  // second, 16, then 32. A function of (reduced, attempt) alone. Waits for the stream.
  Status raise(Stream& stream, ConstBuffer reduced, int attempt, Buffer exponents);
  // gradient = sum / M, f32. Asynchronous.
  void mean(Stream& stream, ConstBuffer reduced, ConstBuffer exponents, Buffer gradient);
  // The exponents of the next step, from this decided one's sum and mean gradient. Waits.
  Status advance(Stream& stream, ConstBuffer reduced, ConstBuffer gradient, Buffer exponents);

 private:
  ExactSum() = default;
  static Result<ExactSum> without_memory(Device& device, const ParameterTable& table,
                                         std::int64_t micro_batches, int numerics);
  bool rounds_to_nearest() const { return numerics_ == 1; }
  bool keeps_unused() const { return numerics_ >= 3; }
  // Into the `place`-th half of weighed_.
  void weigh(Stream& stream, ConstBuffer sums, std::int64_t place);
  SumChecksum checksum(std::size_t place) const;
  std::int64_t element_chunks() const;
  std::int64_t weighed_count() const;  // chunks of elements and of guards
  void copy_guards(Stream& stream, ConstBuffer reduced);
  bool is_over(std::int32_t guard) const;
  // Into host_found_, what a block's exponent would be if only the last step counted.
  Status find_by_gradient(Stream& stream, ConstBuffer gradient);
  Status find_by_guards(Stream& stream, ConstBuffer reduced);
  std::vector<std::int32_t> tops_of_tensors() const;  // the largest of host_found_ in each
  std::uint32_t dither_offset(std::int64_t step, std::int64_t micro);

  Device* device_ = nullptr;
  Arena arena_;
  Buffer accumulators_;
  Buffer found_;    // block exponents of the last gradient looked at
  Buffer weighed_;  // i64: sums of chunks of what was given, then of what was reduced
  std::int64_t flat_count_ = 0;
  std::int64_t block_count_ = 0;
  std::int64_t micro_batches_ = 1;
  int numerics_ = kNumericsVersion;
  int fraction_bits_ = 0;
  int guard_shift_ = 0;
  std::int64_t dealt_step_ = -1;           // the step that dealt_ is of
  std::vector<std::uint32_t> dealt_;       // o(pi(m))
  std::vector<std::int64_t> tensor_ends_;  // in blocks
  std::vector<std::int32_t> host_found_;
  std::vector<std::int32_t> host_exponents_;
  std::vector<std::int32_t> host_guards_;
  std::vector<std::int64_t> host_weighed_;
};

}  // namespace rubato::worker
