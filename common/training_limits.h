// What the API accepts of a model and its training, and the worker computes with: one table for
// both sides. Plain values.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace rubato::training {

constexpr std::int64_t kLayersMost = 1024;
constexpr std::int64_t kHeadsMost = 1024;
constexpr std::int64_t kHiddenMost = 1 << 16;
constexpr std::int64_t kVocabularyMost = 1 << 20;
constexpr std::int64_t kSequenceMost = 1 << 20;  // tokens
constexpr std::int64_t kMicroBatchMost = 4096;   // samples
constexpr double kLearningRateMost = 100;
constexpr double kWeightDecayMost = 1;
constexpr double kEpsilonMost = 1;
constexpr double kValidationFractionMost = 0.5;

struct Preset {
  std::string_view name;  // its first word is the family
  std::int32_t layers, heads, hidden, vocabulary;
  std::string_view about;
};
inline constexpr std::array kPresets{
    Preset{"gpt2-tiny", 2, 2, 64, 257, "0.1 M parameters, bytes; for tests"},
    Preset{"gpt2-demo", 4, 4, 192, 257, "1.8 M parameters, bytes; the demo"},
    Preset{"gpt2-10m", 6, 6, 384, 257, "10.6 M parameters, bytes"},
    Preset{"gpt2-124m", 12, 12, 768, 50257, "124 M parameters, GPT-2's tokens"},
};

// Forward and backward of one token, nothing recomputed: 6 per weight that multiplies, 12 layers
// hidden length for attention (the count of the PaLM report, arXiv 2204.02311, its appendix B).
constexpr double flops_per_token(double layers, double hidden, double vocabulary, double length) {
  return 6 * (12 * layers * hidden * hidden + vocabulary * hidden) + 12 * layers * hidden * length;
}

}  // namespace rubato::training
