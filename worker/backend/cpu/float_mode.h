// The floating-point mode of compute: round to nearest, denormals flushed (in and out), no
// exceptions. It belongs to the thread, so every kernel sets it and puts the old one back: 20
// cycles.
#pragma once

#include <immintrin.h>

namespace rubato::worker::cpu {

class FloatMode {
 public:
  FloatMode() : before_(_mm_getcsr()) { _mm_setcsr(kCompute); }
  ~FloatMode() { _mm_setcsr(before_); }
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
  static constexpr unsigned kCompute = 0x1F80 | 0x8000 | 0x0040;  // masked, FTZ, DAZ
  unsigned before_;
};

}  // namespace rubato::worker::cpu
