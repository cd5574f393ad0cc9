// Every kernel once more, as plainly as it can be said, in double: what the fast ones are held to.
// Matrices are row-major vectors.
#pragma once

#include "worker/backend/kernels.h"

#include <cmath>
#include <cstdint>
#include <vector>

namespace rubato::worker::reference {

using Vector = std::vector<double>;

inline Vector gemm(const GemmShape& s, const Vector& a, const Vector& b) {
  Vector c(static_cast<std::size_t>(s.m * s.n));
  for (std::int64_t i = 0; i < s.m; ++i)
    for (std::int64_t j = 0; j < s.n; ++j) {
      double sum = 0;
      for (std::int64_t k = 0; k < s.k; ++k)
        sum += a[static_cast<std::size_t>(s.transpose_a ? k * s.m + i : i * s.k + k)] *
               b[static_cast<std::size_t>(s.transpose_b ? j * s.k + k : k * s.n + j)];
      c[static_cast<std::size_t>(i * s.n + j)] = sum;
    }
  return c;
}

inline Vector layernorm(std::size_t c, double epsilon, const Vector& x, const Vector& weight,
                        const Vector& bias) {
  Vector y(x.size());
  for (std::size_t r = 0; r < x.size() / c; ++r) {
    double mean = 0, variance = 0;
    for (std::size_t i = 0; i < c; ++i) mean += x[r * c + i] / static_cast<double>(c);
    for (std::size_t i = 0; i < c; ++i)
      variance += (x[r * c + i] - mean) * (x[r * c + i] - mean) / static_cast<double>(c);
    for (std::size_t i = 0; i < c; ++i)
      y[r * c + i] = (x[r * c + i] - mean) / std::sqrt(variance + epsilon) * weight[i] + bias[i];
  }
  return y;
}

inline Vector rmsnorm(std::size_t c, double epsilon, const Vector& x, const Vector& weight) {
  Vector y(x.size());
  for (std::size_t r = 0; r < x.size() / c; ++r) {
    double square = 0;
    for (std::size_t i = 0; i < c; ++i)
      square += x[r * c + i] * x[r * c + i] / static_cast<double>(c);
    for (std::size_t i = 0; i < c; ++i)
      y[r * c + i] = x[r * c + i] / std::sqrt(square + epsilon) * weight[i];
  }
  return y;
}

inline Vector swiglu(std::size_t width, const Vector& x) {
  Vector y;
  for (std::size_t r = 0; r < x.size() / (2 * width); ++r)
    for (std::size_t i = 0; i < width; ++i) {
      const double gate = x[r * 2 * width + i];
      y.push_back(gate / (1 + std::exp(-gate)) * x[r * 2 * width + width + i]);
    }
  return y;
}

inline Vector gelu(const Vector& x) {
  Vector y;
  for (const double v : x)
    y.push_back(0.5 * v * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v))));
  return y;
}

inline Vector attention(const AttentionShape& s, const Vector& qkv) {
  const auto t = static_cast<std::size_t>(s.length), d = static_cast<std::size_t>(s.head_size);
  const auto c = static_cast<std::size_t>(s.hidden());
  Vector out(static_cast<std::size_t>(s.batch) * t * c);
  for (std::size_t b = 0; b < static_cast<std::size_t>(s.batch); ++b)
    for (std::size_t h = 0; h < static_cast<std::size_t>(s.heads); ++h)
      for (std::size_t i = 0; i < t; ++i) {
        const std::size_t key = c + h / static_cast<std::size_t>(s.group()) * d;
        const std::size_t heads[] = {h * d, key, key + static_cast<std::size_t>(s.kv_hidden())};
        const auto at = [&](std::size_t part, std::size_t row, std::size_t k) {
          return qkv[(b * t + row) * static_cast<std::size_t>(s.columns()) + heads[part] + k];
        };
        Vector weights;
        double total = 0;
        for (std::size_t j = 0; j <= i; ++j) {
          double score = 0;
          for (std::size_t k = 0; k < d; ++k) score += at(0, i, k) * at(1, j, k);
          weights.push_back(std::exp(score / std::sqrt(static_cast<double>(d))));
          total += weights.back();
        }
        for (std::size_t j = 0; j <= i; ++j)
          for (std::size_t k = 0; k < d; ++k)
            out[(b * t + i) * c + h * d + k] += weights[j] / total * at(2, j, k);
      }
  return out;
}

inline Vector cross_entropy(std::size_t columns, std::size_t vocabulary,
                            const std::vector<std::int32_t>& targets, const Vector& logits) {
  Vector losses;
  for (std::size_t r = 0; r < targets.size(); ++r) {
    double total = 0;
    for (std::size_t i = 0; i < vocabulary; ++i) total += std::exp(logits[r * columns + i]);
    losses.push_back(std::log(total) - logits[r * columns + static_cast<std::size_t>(targets[r])]);
  }
  return losses;
}

// Gradient of sum(weights * f(x)) by central differences, at every `stride`-th element of x (the
// others are left zero).
template <class F>
Vector numerical_gradient(F f, Vector x, const Vector& weights, std::size_t stride = 1) {
  constexpr double kStep = 1e-5;
  const auto value = [&] {
    const Vector y = f(x);
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += weights[i] * y[i];
    return sum;
  };
  Vector gradient(x.size());
  for (std::size_t i = 0; i < x.size(); i += stride) {
    const double here = x[i];
    x[i] = here + kStep;
    const double above = value();
    x[i] = here - kStep;
    const double below = value();
    x[i] = here;
    gradient[i] = (above - below) / (2 * kStep);
  }
  return gradient;
}

}  // namespace rubato::worker::reference
