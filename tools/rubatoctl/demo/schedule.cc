#include "tools/rubatoctl/demo/schedule.h"

namespace rubato::ctl {

DemoSteps demo_steps(std::int64_t steps) {
  return {steps * 15 / 100, steps * 40 / 100, steps * 60 / 100};
}

std::optional<DemoAct> DemoSchedule::next(std::int64_t step, int gpus) {
  switch (stage_) {
    case Stage::kTwo:
      if (gpus != 2 || step < steps_.grow) return std::nullopt;
      stage_ = Stage::kGrowing;
      return DemoAct::kGrow;
    case Stage::kGrowing:
      if (gpus != 4) return std::nullopt;
      stage_ = Stage::kFour;
      [[fallthrough]];
    case Stage::kFour:
      if (step < steps_.lose) return std::nullopt;
      stage_ = Stage::kLosing;
      return DemoAct::kLose;
    case Stage::kLosing:
      if (gpus != 3) return std::nullopt;
      stage_ = Stage::kThree;
      [[fallthrough]];
    case Stage::kThree:
      if (step < steps_.replace) return std::nullopt;
      stage_ = Stage::kReplacing;
      return DemoAct::kReplace;
    case Stage::kReplacing:
      if (gpus == 4) stage_ = Stage::kThrough;
      return std::nullopt;
    case Stage::kThrough:
      return std::nullopt;
  }
  return std::nullopt;
}

std::string DemoSchedule::missing() const {
  switch (stage_) {
    case Stage::kTwo:
      return "a start on 2 GPUs";
    case Stage::kGrowing:
      return "the growth to 4 GPUs";
    case Stage::kFour:
      return "the loss of a node";
    case Stage::kLosing:
      return "going on with 3 GPUs";
    case Stage::kThree:
      return "a new node";
    case Stage::kReplacing:
      return "the return to 4 GPUs";
    case Stage::kThrough:
      return "";
  }
  return "";
}

}  // namespace rubato::ctl
