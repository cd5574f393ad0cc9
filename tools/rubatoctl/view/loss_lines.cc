#include "tools/rubatoctl/view/loss_lines.h"

#include <cstdlib>

#include <fmt/core.h>

namespace rubato::ctl {

std::optional<LossLine> parse_loss_line(std::string_view line) {
  if (!line.starts_with("step=")) return std::nullopt;
  LossLine out;
  bool has_loss = false;
  while (!line.empty()) {
    const auto blank = line.find(' ');
    const std::string_view word = line.substr(0, blank);
    line = blank == std::string_view::npos ? std::string_view() : line.substr(blank + 1);
    const auto equals = word.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string_view name = word.substr(0, equals);
    const std::string value(word.substr(equals + 1));
    if (name == "step") out.step = std::strtoll(value.c_str(), nullptr, 10);
    if (name == "loss") {
      out.loss = std::strtod(value.c_str(), nullptr);
      has_loss = true;
    }
    if (name == "bits") out.bits = value;
    if (name == "lr") out.learning_rate = value;
    if (name == "tokens/s") out.tokens_per_second = std::strtod(value.c_str(), nullptr);
    if (name == "gpus") out.gpus = static_cast<int>(std::strtol(value.c_str(), nullptr, 10));
    if (name == "generation") out.generation = std::strtoll(value.c_str(), nullptr, 10);
    if (name == "replay") out.replay = value == "1";
  }
  if (!has_loss || out.step <= 0) return std::nullopt;
  return out;
}

std::optional<std::string> LossStory::take(const std::string& pod, std::string_view line) {
  if (const auto loss = parse_loss_line(line)) {
    const auto [known, is_new] = steps_.emplace(loss->step, *loss);
    if (is_new) return std::string(line);
    if (known->second.bits != loss->bits) {
      ++conflicts_;
      return fmt::format("[{}] step {} has other loss bits: {} here, {} before", pod, loss->step,
                         loss->bits, known->second.bits);
    }
    if (known->second.replay && !loss->replay) known->second = *loss;  // it says more
    return std::nullopt;
  }
  if (line.starts_with("validation step=") || line.starts_with("finished step=")) {
    if (!said_.emplace(line).second) return std::nullopt;
    return std::string(line);
  }
  return fmt::format("[{}] {}", pod, line);
}

std::string to_csv(const std::map<std::int64_t, LossLine>& steps) {
  std::string text = "step,loss,bits,learning_rate,tokens_per_second,gpus,generation\n";
  for (const auto& [step, line] : steps) {
    text += fmt::format("{},{:.6f},{},{},", step, line.loss, line.bits, line.learning_rate);
    // A replayed line does not know how fast and on how many its step was.
    text += line.replay
                ? ",,\n"
                : fmt::format("{:.0f},{},{}\n", line.tokens_per_second, line.gpus, line.generation);
  }
  return text;
}

}  // namespace rubato::ctl
