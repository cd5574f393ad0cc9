// Named places of a step where a fault can be planted, for the demo, the integration tests and the
// kill matrix. A plan is text, "phase[:step[:action]]":
//   phase   form, pull, compute, accumulate, reduce, commit, apply, switch, checkpoint
//   step    the step being worked on (zero-based); empty or absent: any
//   action  kill (default), stop, kill-group, stop-group: SIGKILL or SIGSTOP to this process or to
//           its process group
// RUBATO_FAULT_PHASE holds a plan from the start. RUBATO_FAULT_FILE names a file that is looked at
// on each point, so that a running worker can be given one; it is removed when it fires.
// Firing prints "fault-point phase=… step=… action=…" on stdout first. Each worker fires once.
#pragma once

#include "common/result.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace rubato::worker {

struct FaultPlan {
  std::string phase;
  std::optional<std::uint64_t> step;
  int signal = 0;
  bool group = false;
  bool operator==(const FaultPlan&) const = default;
};
Result<FaultPlan> parse_fault_plan(std::string_view text);

class FaultPoints {
 public:
  // From the environment; a plan that cannot be read is logged and ignored.
  static FaultPoints from_environment();
  FaultPoints() = default;
  FaultPoints(std::optional<FaultPlan> plan, std::string file)
      : plan_(std::move(plan)), file_(std::move(file)) {}
  // Fires when the plan names this place. With SIGSTOP it returns after a SIGCONT.
  void reach(std::string_view phase, std::uint64_t step);

 private:
  std::optional<FaultPlan> plan_;
  std::string file_;
};

}  // namespace rubato::worker
