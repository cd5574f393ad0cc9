// What the workers of a job print, made into one story. Each worker prints every step it commits,
//
//   step=12 loss=3.141593 bits=0x400921fb… lr=1.0000e-03 tokens/s=5120 gpus=2 generation=3
//
// and a newcomer first repeats those it was sent (replay=1, without speed). Pure; one thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace rubato::ctl {

struct LossLine {
  std::int64_t step = 0;
  double loss = 0;
  std::string bits;  // of the loss, a double: equal bits, equal loss
  std::string learning_rate;
  double tokens_per_second = 0;  // 0: not said (a replayed line)
  int gpus = 0;                  // 0: not said
  std::int64_t generation = 0;
  bool replay = false;
};
std::optional<LossLine> parse_loss_line(std::string_view line);

// Takes the lines of all pods as they come and says each fact once. A step that comes again with
// other bits is told: it must never happen.
class LossStory {
 public:
  // What to print for this line; nothing when it was said before.
  std::optional<std::string> take(const std::string& pod, std::string_view line);
  const std::map<std::int64_t, LossLine>& steps() const { return steps_; }
  // Steps that came with different bits.
  std::int64_t conflicts() const { return conflicts_; }

 private:
  std::map<std::int64_t, LossLine> steps_;
  std::set<std::string, std::less<>> said_;  // validation and end lines, which all workers print
  std::int64_t conflicts_ = 0;
};

// "step,loss,bits,learning_rate,tokens_per_second,gpus,generation" and a line per step.
std::string to_csv(const std::map<std::int64_t, LossLine>& steps);

}  // namespace rubato::ctl
