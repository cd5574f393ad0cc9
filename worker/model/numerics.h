// Versions of the arithmetic. A change of code that changes the bits of training adds a version and
// keeps the older ones: a job goes on under the version that it began with, whatever program its
// members run. The version leads the numerics fingerprint ("3-cpu/avx2/…"), to which the job's
// record pins every joiner, and stands in each checkpoint, for jobs whose record is gone.
//
//   1  ExactSum rounds to nearest; exponents follow the sum
//   2  ExactSum rounds by a dither; exponents follow the guards
//   3  a tensor that a step did not use keeps its exponents, and has some from the start; the sum
//      of a script's losses has no bound
#pragma once

#include <string_view>

namespace rubato::worker {

constexpr int kNumericsVersion = 3;  // of new jobs
constexpr int kNumericsVersionOldest = 1;

constexpr bool knows_numerics(int version) {
  return version >= kNumericsVersionOldest && version <= kNumericsVersion;
}

// The version that a fingerprint names; 0 when it names none.
constexpr int numerics_version_of(std::string_view fingerprint) {
  int version = 0;
  for (std::size_t i = 0; i < fingerprint.size() && i < 6; ++i) {
    const char c = fingerprint[i];
    if (c == '-') return version;
    if (c < '0' || c > '9') return 0;
    version = 10 * version + (c - '0');
  }
  return 0;
}

}  // namespace rubato::worker
