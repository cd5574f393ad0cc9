// The few transcendental functions that training needs once per step or once per weight, made of
// additions, multiplications and divisions alone, so that they give equal bits on every machine.
// libm's may not: glibc picks other code when the CPU has fused multiply-add.
#pragma once

#include <cstdint>

namespace rubato::worker {

double log_of(double x);                               // x > 0, normal; error below 1e-15 relative
double cos_of_pi(double x);                            // cos(pi x), |x| <= 2^20
double power_of(double base, std::uint64_t exponent);  // by squaring: a pure function of both
double exp_of(double x);                               // x <= 0; error below 1e-9 relative
double sqrt_of(double x);                              // the correctly rounded root

// Standard normal number `index` of the stream `key` (Box-Muller on mixed counters).
double normal_of(std::uint64_t key, std::uint64_t index);
// Uniform in (0, 1), 52 bits.
double unit_of(std::uint64_t key, std::uint64_t index);

}  // namespace rubato::worker
