#include "worker/model/generate.h"

#include "worker/model/scalar_math.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace rubato::worker {

namespace {

std::int32_t choose(std::span<const float> logits, const GenerateOptions& options,
                    std::uint64_t place) {
  const auto best = std::max_element(logits.begin(), logits.end());
  if (options.temperature <= 0.0) return static_cast<std::int32_t>(best - logits.begin());
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (options.top_k > 0 && static_cast<std::size_t>(options.top_k) < order.size()) {
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
    order.resize(static_cast<std::size_t>(options.top_k));
  }
  std::vector<double> weights;
  double total = 0.0;
  for (const std::size_t token : order) {
    const double above = static_cast<double>(logits[token]) - static_cast<double>(*best);
    weights.push_back(exp_of(above / options.temperature));
    total += weights.back();
  }
  double left = unit_of(options.seed, place) * total;
  for (std::size_t i = 0; i < order.size(); ++i) {
    left -= weights[i];
    if (left < 0.0) return static_cast<std::int32_t>(order[i]);
  }
  return static_cast<std::int32_t>(order.back());
}

}  // namespace

Result<std::vector<std::int32_t>> generate(Stream& stream, Model& model, ConstBuffer parameters,
                                           std::vector<std::int32_t> prompt,
                                           const GenerateOptions& options,
                                           const std::function<void(std::int32_t)>& on_token) {
  if (prompt.empty()) return Error(Code::kInvalid, "the prompt is empty");
  const auto window = static_cast<std::size_t>(model.config().sequence_length);
  std::vector<std::int32_t> made;
  std::vector<float> logits;
  for (std::int64_t i = 0; i < options.tokens; ++i) {
    const std::size_t length = std::min(window, prompt.size());
    const auto recent = std::span(prompt).last(length);
    TRY_OK(model.last_logits(stream, recent, parameters, logits));
    if (!std::ranges::all_of(logits, [](float logit) { return std::isfinite(logit); }))
      return Error(Code::kInvalid,
                   "what the model gives is not finite: its training has diverged, or its weights "
                   "are damaged");
    const std::int32_t token = choose(logits, options, static_cast<std::uint64_t>(i));
    if (token == options.end_token) break;
    prompt.push_back(token);
    made.push_back(token);
    if (on_token) on_token(token);
  }
  return made;
}

}  // namespace rubato::worker
