#include "worker/model/scalar_math.h"

#include "common/rng.h"

#include <bit>
#include <cmath>

namespace rubato::worker {

namespace {

constexpr double kPi = 3.14159265358979323846;

// sin and cos of a in [0, pi/4] by their series.
double sin_series(double a) {
  const double a2 = a * a;
  double sum = 1.0;
  for (int n = 17; n >= 3; n -= 2) sum = 1.0 - sum * a2 / (n * (n - 1));
  return a * sum;
}
double cos_series(double a) {
  const double a2 = a * a;
  double sum = 1.0;
  for (int n = 18; n >= 2; n -= 2) sum = 1.0 - sum * a2 / (n * (n - 1));
  return sum;
}

}  // namespace

double log_of(double x) {
  auto bits = std::bit_cast<std::uint64_t>(x);
  int k = static_cast<int>(bits >> 52) - 1023;
  bits = (bits & 0x000FFFFFFFFFFFFF) | 0x3FF0000000000000;
  auto m = std::bit_cast<double>(bits);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    k += 1;
  }
  // log m = 2 atanh z, z = (m - 1) / (m + 1), |z| <= 0.172
  const double z = (m - 1.0) / (m + 1.0);
  const double z2 = z * z;
  double series = 1.0 / 21;
  for (int n = 19; n >= 1; n -= 2) series = series * z2 + 1.0 / n;
  return k * 0.69314718055994530942 + 2.0 * z * series;
}

double cos_of_pi(double x) {
  if (x < 0) x = -x;
  x = x - 2.0 * static_cast<double>(static_cast<std::int64_t>(x / 2.0));  // in [0, 2)
  if (x > 1.0) x = 2.0 - x;                                               // cos is even
  const bool negative = x > 0.5;
  if (negative) x = 1.0 - x;  // in [0, 1/2]
  const double value = x <= 0.25 ? cos_series(kPi * x) : sin_series(kPi * (0.5 - x));
  return negative ? -value : value;
}

// By halving until the series converges at once.
double exp_of(double x) {
  if (x < -700.0) return 0.0;
  double small = x / 1024.0;
  double sum = 1.0;
  for (int n = 12; n >= 1; --n) sum = 1.0 + sum * small / n;
  for (int i = 0; i < 10; ++i) sum *= sum;
  return sum;
}

double power_of(double base, std::uint64_t exponent) {
  double result = 1.0;
  for (; exponent > 0; exponent >>= 1, base *= base)
    if ((exponent & 1) != 0) result *= base;
  return result;
}

double sqrt_of(double x) { return std::sqrt(x); }  // IEEE: one correctly rounded instruction

double unit_of(std::uint64_t key, std::uint64_t index) {
  const std::uint64_t word = mix64(mix64(key) + index * 0x9E3779B97F4A7C15);
  return (static_cast<double>(word >> 12) + 0.5) * 0x1p-52;
}

double normal_of(std::uint64_t key, std::uint64_t index) {
  const std::uint64_t pair = index / 2;
  const double radius = sqrt_of(-2.0 * log_of(unit_of(key, 2 * pair)));
  const double turn = 2.0 * unit_of(key, 2 * pair + 1);
  // The two numbers of a pair: cos and sin of one angle.
  return radius * cos_of_pi(index % 2 == 0 ? turn : turn - 0.5);
}

}  // namespace rubato::worker
