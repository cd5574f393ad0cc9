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
constexpr std::int64_t kMlpHiddenMost = 1 << 18;
constexpr std::int64_t kLlamaGrain = 16;  // mlpHidden and hidden / heads are multiples of it
constexpr double kRopeThetaMost = 1e12;
constexpr double kRopeFactorMost = 1024;  // each of ropeScaling's
constexpr std::int64_t kVocabularyMost = 1 << 20;
constexpr std::int64_t kSequenceMost = 1 << 20;  // tokens
constexpr std::int64_t kMicroBatchMost = 4096;   // samples
constexpr double kLearningRateMost = 100;
constexpr double kWeightDecayMost = 1;
// The optimizer computes with f32, of which the smallest are flushed to zero: no beta is to round
// to 1, and no epsilon to 0.
constexpr double kBetaMost = 0.9999999;
constexpr double kEpsilonLeast = 1e-37;
constexpr double kEpsilonMost = 1;
constexpr double kValidationFractionMost = 0.5;

// What a llama preset says beyond the sizes that all families have.
struct LlamaPreset {
  std::int32_t kv_heads = 0, mlp_hidden = 0;
  double rope_theta = 10000;
  double rope_factor = 1;  // of Llama 3's scaling: low 1, high 4, 8192 tokens
  bool has_tied_head = true;
};
struct Preset {
  std::string_view name;  // its first word is the family
  std::int32_t layers, heads, hidden, vocabulary;
  std::string_view about;
  LlamaPreset llama = {};
};
inline constexpr std::array kPresets{
    Preset{"gpt2-tiny", 2, 2, 64, 257, "0.1 M parameters, bytes; for tests"},
    Preset{"gpt2-demo", 4, 4, 192, 257, "1.8 M parameters, bytes; the demo"},
    Preset{"gpt2-10m", 6, 6, 384, 257, "10.6 M parameters, bytes"},
    Preset{"gpt2-124m", 12, 12, 768, 50257, "124 M parameters, GPT-2's tokens"},
    Preset{"llama-tiny", 2, 4, 64, 257, "0.1 M parameters, bytes; for tests", {2, 176}},
    Preset{"llama-demo", 4, 6, 192, 257, "1.6 M parameters, bytes", {2, 512}},
    Preset{"llama-3.2-1b", 16, 32, 2048, 128256, "Llama 3.2 1B", {8, 8192, 500000, 32}},
    Preset{"llama-2-7b", 32, 32, 4096, 32000, "Llama 2 7B", {32, 11008, 10000, 1, false}},
    Preset{"llama-3.1-8b", 32, 32, 4096, 128256, "Llama 3.1 8B", {8, 14336, 500000, 8, false}},
};

// Weights of one block that multiply, of either family.
constexpr double gpt2_block_weights(double hidden) { return 12 * hidden * hidden; }
constexpr double llama_block_weights(double hidden, double kv_hidden, double mlp_hidden) {
  return 2 * hidden * hidden + 2 * hidden * kv_hidden + 3 * hidden * mlp_hidden;
}
// Forward and backward of one token, nothing recomputed: 6 per weight that multiplies, 12 layers
// hidden length for attention (the count of the PaLM report, arXiv 2204.02311, its appendix B).
constexpr double flops_per_token(double layers, double block_weights, double hidden,
                                 double vocabulary, double length) {
  return 6 * (layers * block_weights + vocabulary * hidden) + 12 * layers * hidden * length;
}

}  // namespace rubato::training
