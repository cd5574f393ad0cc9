#include "worker/model/rotary.h"

#include "worker/model/scalar_math.h"

#include <numbers>

namespace rubato::worker {

namespace {

float scaled(float frequency, const RopeScaling& scaling) {
  if (scaling.factor == 1) return frequency;
  const auto given = static_cast<double>(frequency);
  const auto length = static_cast<double>(scaling.original_length);
  const double turns = length * given / (2 * std::numbers::pi);  // of the original length
  if (turns > scaling.high_frequency_factor) return frequency;
  if (turns < scaling.low_frequency_factor) return static_cast<float>(given / scaling.factor);
  const double part = (turns - scaling.low_frequency_factor) /
                      (scaling.high_frequency_factor - scaling.low_frequency_factor);
  return static_cast<float>((1 - part) * given / scaling.factor + part * given);
}

}  // namespace

std::vector<float> rotary_angles(const ModelConfig& config) {
  const std::int64_t size = config.hidden / config.heads;
  const auto half = static_cast<std::size_t>(size / 2);
  const double log_theta = log_of(config.rope_theta);
  std::vector<float> frequencies;
  for (std::size_t i = 0; i < half; ++i) {
    const auto exponent = static_cast<double>(static_cast<float>(2 * i) / static_cast<float>(size));
    const auto power = static_cast<float>(1.0 / exp_of(-exponent * log_theta));
    frequencies.push_back(scaled(1.0f / power, config.rope_scaling));
  }
  std::vector<float> angles;
  angles.reserve(static_cast<std::size_t>(config.sequence_length) * 2 * half);
  for (std::int64_t t = 0; t < config.sequence_length; ++t)
    for (const double quarter : {0.0, 0.5})  // a sine is the cosine of half a pi less
      for (const float frequency : frequencies) {
        const float angle = static_cast<float>(t) * frequency;
        angles.push_back(
            static_cast<float>(cos_of_pi(static_cast<double>(angle) / std::numbers::pi - quarter)));
      }
  return angles;
}

}  // namespace rubato::worker
