// Sums of amounts that people write, which may be as large as the type holds: at its ends they stay
// where they are, and never wrap.
#pragma once

#include <concepts>
#include <limits>

namespace rubato {

template <std::signed_integral T>
constexpr T saturating_add(T a, T b) {
  T sum{};
  if (!__builtin_add_overflow(a, b, &sum)) return sum;
  return b > 0 ? std::numeric_limits<T>::max() : std::numeric_limits<T>::min();
}

template <std::signed_integral T>
constexpr T saturating_subtract(T a, T b) {
  T rest{};
  if (!__builtin_sub_overflow(a, b, &rest)) return rest;
  return b > 0 ? std::numeric_limits<T>::min() : std::numeric_limits<T>::max();
}

}  // namespace rubato
