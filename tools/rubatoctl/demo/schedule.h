// What the demo does to its job, and when. Pure: told what is seen, it says what to do next.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace rubato::ctl {

enum class DemoAct {
  kGrow,     // add two nodes: 2 GPUs become 4
  kLose,     // cut the power of one in the middle of a step: 3 remain
  kReplace,  // add a node: 4 again
};

struct DemoSteps {
  std::int64_t grow = 0;
  std::int64_t lose = 0;
  std::int64_t replace = 0;
};
// At 15, 40 and 60 percent of the job.
DemoSteps demo_steps(std::int64_t steps);

class DemoSchedule {
 public:
  explicit DemoSchedule(DemoSteps steps) : steps_(steps) {}
  // `step` is the last committed one, `gpus` how many took part in it. Each act comes once, when
  // what was done before shows.
  std::optional<DemoAct> next(std::int64_t step, int gpus);
  // All acts were done and the last one shows.
  bool is_through() const { return stage_ == Stage::kThrough; }
  // What is still to be seen, for the message when the job ends before.
  std::string missing() const;

 private:
  enum class Stage { kTwo, kGrowing, kFour, kLosing, kThree, kReplacing, kThrough };
  DemoSteps steps_;
  Stage stage_ = Stage::kTwo;
};

}  // namespace rubato::ctl
