// How long one pass of a model (forward and backward, all layers) takes on a GPU type at which only
// one of its layers was measured, twice; from what all layers took on other types. Pure.
//
// The measured layer is the one that the model repeats. Its time is linear in the micro-batch, as
// work against the roofline of the type (compute or bandwidth, whichever binds) with a constant for
// launches and links:
//   t(m) = a + b m, through the two points
// Another layer is slower or faster than that one by the ratio of their work, if both meet the same
// roof; so the ratio of their times, at that micro-batch, is taken from the known types (the
// median, as some types meet another roof):
//   t_l(m) = t(m) * median over known types of (their t_l(m) / their t(m))
// Only within one tensor degree: across degrees the links of a node differ between types, and no
// scaling of times holds.
#pragma once

#include "common/result.h"

#include <cstddef>
#include <vector>

namespace rubato::sched {

struct LayerTime {
  double micro_batch = 1;
  double seconds = 0;
};
using LayerTimes = std::vector<LayerTime>;  // by micro-batch, each once

// On the line through the two nearest points; beyond all of them by the last two, and at least a
// tenth of the nearest. Of a single point: its time.
double interpolated(const LayerTimes& times, double micro_batch);

class PassTimes {
 public:
  // `measured`: two points of the layer at position `repeated`, on the type in question. `known`: a
  // list of layers for each other type, at the same tensor degree. kInvalid: no known type, layers
  // that are not the same number everywhere, or times and micro-batches that are not finite, above
  // 0 and in order.
  static Result<PassTimes> scaled(const LayerTimes& measured, std::size_t repeated,
                                  std::vector<std::vector<LayerTimes>> known);
  double layer_s(std::size_t layer, double micro_batch) const;
  double pass_s(double micro_batch) const;

 private:
  PassTimes(LayerTimes measured, std::size_t repeated, std::vector<std::vector<LayerTimes>> known)
      : measured_(std::move(measured)), repeated_(repeated), known_(std::move(known)) {}

  LayerTimes measured_;
  std::size_t repeated_;
  std::vector<std::vector<LayerTimes>> known_;
};

}  // namespace rubato::sched
