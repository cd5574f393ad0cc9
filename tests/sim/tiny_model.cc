#include "tests/sim/tiny_model.h"

#include "common/rng.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace rubato::sim {
namespace {

using worker::Buffer;
using worker::ConstBuffer;
using worker::Device;
using worker::MicroLoss;
using worker::Model;
using worker::ModelConfig;
using worker::ParameterTable;
using worker::Stream;

constexpr std::int64_t kWidth = 4;
constexpr std::int64_t kClasses = 8;
constexpr std::int64_t kReads = 4;  // tokens of a row that are looked at
constexpr float kSpikeWeight = 4096.0f;

// loss = mean over the tokens read of (sum_k E[token][k] W[k][next mod 8] - next / 8)^2 / 2.
class TinyModel : public Model {
 public:
  TinyModel(ModelConfig config, std::int64_t micro_batch, Device& device,
            std::function<void()> work)
      : config_(std::move(config)),
        micro_batch_(micro_batch),
        device_(device),
        work_(std::move(work)) {
    embedding_ = table_.add("embedding", {kTinyVocabulary, kWidth}, true).offset;
    output_ = table_.add("output", {kWidth, kClasses}, true).offset;
  }
  const ModelConfig& config() const override { return config_; }
  const ParameterTable& table() const override { return table_; }
  std::int64_t micro_batch() const override { return micro_batch_; }

  void init_tensor(std::uint64_t seed, const worker::Parameter& entry,
                   std::span<float> out) const override {
    Rng rng(seed);
    const auto next = [&] { return (static_cast<float>(rng.below(2001)) - 1000.0f) / 2000.0f; };
    for (const auto& before : table_.entries())
      if (before.offset < entry.offset)
        for (std::int64_t i = 0; i < before.count; ++i) (void)next();
    std::ranges::generate(out, next);
  }

  Result<MicroLoss> forward_backward(Stream&, std::span<const std::int32_t> tokens,
                                     ConstBuffer parameters, Buffer gradient) override {
    work_();
    auto* g = static_cast<float*>(device_.host_view(gradient));
    std::fill_n(g, gradient.count(), 0.0f);
    return pass(tokens, parameters, g);
  }
  Result<MicroLoss> evaluate(Stream&, std::span<const std::int32_t> tokens,
                             ConstBuffer parameters) override {
    work_();
    return pass(tokens, parameters, nullptr);
  }
  Status logits(Stream&, std::span<const std::int32_t>, ConstBuffer, std::vector<float>&) override {
    return Error(Code::kInvalid, "a tiny model writes no text");
  }
  Status last_logits(Stream& stream, std::span<const std::int32_t> tokens, ConstBuffer parameters,
                     std::vector<float>& out) override {
    return logits(stream, tokens, parameters, out);
  }
  double flops_per_token() const override { return 6.0 * kWidth * kClasses; }

 private:
  MicroLoss pass(std::span<const std::int32_t> tokens, ConstBuffer parameters, float* g) const {
    const auto* p = static_cast<const float*>(device_.host_view(parameters));
    const auto row = static_cast<std::size_t>(config_.sequence_length + 1);
    const float share = 1.0f / static_cast<float>(micro_batch_ * kReads);
    float loss = 0;
    for (std::size_t first = 0; first + row <= tokens.size(); first += row) {
      const float weight = tokens[first] == kTinySpike ? kSpikeWeight : 1.0f;
      for (std::size_t i = first; i < first + kReads; ++i) {
        const float* e = p + embedding_ + tokens[i] * kWidth;
        const float* w = p + output_ + tokens[i + 1] % kClasses;
        float out = 0;
        for (std::int64_t k = 0; k < kWidth; ++k) out += e[k] * w[k * kClasses];
        const float miss = out - static_cast<float>(tokens[i + 1]) / kClasses;
        loss += share * miss * miss / 2;
        if (g == nullptr) continue;
        float* ge = g + embedding_ + tokens[i] * kWidth;
        float* gw = g + output_ + tokens[i + 1] % kClasses;
        for (std::int64_t k = 0; k < kWidth; ++k) {
          ge[k] += weight * share * miss * w[k * kClasses];
          gw[k * kClasses] += weight * share * miss * e[k];
        }
      }
    }
    return worker::make_micro_loss(loss);
  }

  const ModelConfig config_;
  const std::int64_t micro_batch_;
  Device& device_;
  const std::function<void()> work_;
  ParameterTable table_;
  std::int64_t embedding_ = 0;
  std::int64_t output_ = 0;
};

}  // namespace

std::unique_ptr<Model> make_tiny_model(const ModelConfig& config, std::int64_t micro_batch,
                                       Device& device, std::function<void()> work) {
  return std::make_unique<TinyModel>(config, micro_batch, device, std::move(work));
}

}  // namespace rubato::sim
