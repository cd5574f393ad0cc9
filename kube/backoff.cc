#include "kube/backoff.h"

#include <algorithm>

namespace rubato::kube {

Duration Backoff::next(MonoTime now) {
  if (now - last_ > limits_.quiet) reset();
  last_ = now;
  const auto stretch = [](Duration wait, double by) {
    return Duration(static_cast<Duration::rep>(static_cast<double>(wait.count()) * by));
  };
  const Duration wait = stretch(wait_, 1.0 + limits_.jitter * rng_.unit());
  wait_ = std::min(limits_.most, stretch(wait_, limits_.factor));
  return wait;
}

}  // namespace rubato::kube
