// NoiseScale: how much the gradients of a step's micro-batches differ, as the gradient noise scale
// B = tr(Σ) / |G|² of McCandlish et al., "An Empirical Model of Large-Batch Training" (2018), §2.2:
// a batch well below it learns as much from each token as the smallest one does, one well above it
// spends tokens for little. Σ and G are estimated without bias from squared norms at two batch
// sizes, those of a micro-batch and of the whole step, and averaged over steps (appendix A.1).
//
// A value: equal on all members of one build, for each adds the same numbers. For people: nothing
// that is computed depends on it. It costs one read of the gradient a micro-batch, in one step of
// kNoiseMeasuredEvery.
#pragma once

#include <cstdint>
#include <optional>

namespace rubato::worker {

constexpr std::uint64_t kNoiseMeasuredEvery = 16;

// Are squared norms of micro-batches measured in step `step`, the first of which is 0?
bool measures_noise(std::uint64_t step, std::uint32_t micro_batches);

class NoiseScale {
 public:
  NoiseScale() = default;
  // As another one is: see trace() and signal().
  NoiseScale(double trace, double signal);

  // Of one step: the sum of the squared norms of its micro-batches' gradients, and the norm of
  // their mean. What is not finite, or of a single micro-batch, says nothing.
  void add(std::uint32_t micro_batches, double squared_norms, double norm_of_mean);

  // In micro-batches; none: nothing was measured, or the gradient is lost in its noise.
  std::optional<double> micro_batches() const;

  // Averages so far, of tr(Σ) in micro-batches and of |G|²; 0 and 0: none.
  double trace() const { return trace_; }
  double signal() const { return signal_; }

 private:
  double trace_ = 0;
  double signal_ = 0;
};

}  // namespace rubato::worker
