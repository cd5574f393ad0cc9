// Backoff: waits that double, with jitter, and that forget after a quiet time. Values are those of
// the reference Kubernetes client. Not thread-safe.
#pragma once

#include "common/clock.h"
#include "common/rng.h"

namespace rubato::kube {

struct BackoffLimits {
  Duration first = 800ms;
  Duration most = 30s;  // before jitter
  double factor = 2.0;
  double jitter = 1.0;    // a wait w becomes w × [1, 1 + jitter)
  Duration quiet = 120s;  // without a call of next(): start again from `first`
};

class Backoff {
 public:
  Backoff(std::uint64_t seed, const BackoffLimits& limits = {})
      : limits_(limits), rng_(seed), wait_(limits.first) {}
  Duration next(MonoTime now);
  void reset() { wait_ = limits_.first; }

 private:
  BackoffLimits limits_;
  Rng rng_;
  Duration wait_;
  MonoTime last_{};
};

}  // namespace rubato::kube
