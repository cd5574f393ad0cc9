// FaultPoints: named places of a step where a fault can be planted, for the demo, the integration
// tests and the kill matrix. A plan is text, "phase[:step[:action]]":
//   phase   of a round:       compute, accumulate, reduce, commit, apply, publish, compare,
//                             checkpoint, finish
//           of a change:      pull, follow (the newcomer), donate (its donor), prepare, prepared,
//                             switch
//           of a recovery:    abort, fence (before the answer to it), form, level, connect
//   step    the step being worked on (zero-based); empty, * or absent: any
//   action  kill (default), stop, kill-group, stop-group: SIGKILL or SIGSTOP to this process, or to
//           the process groups of its agent and its own. slow-MS: sleeps MS milliseconds, each
//           time: a straggler
// RUBATO_FAULT_PHASE holds a plan from the start. RUBATO_FAULT_FILE names files (one, or several
// with a colon between them) of plans, one a line, that are looked at on each point, so that a
// running worker can be given one; a file is removed when a signal of it fires.
// A signal prints "fault-point phase=… step=… action=…" on stdout first, and fires once.
#pragma once

#include "common/clock.h"
#include "common/result.h"

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rubato::worker {

struct FaultPlan {
  std::string phase;
  std::optional<std::uint64_t> step;
  int signal = 0;  // 0: slow
  bool group = false;
  Duration slow{0};
  bool operator==(const FaultPlan&) const = default;
};
Result<FaultPlan> parse_fault_plan(std::string_view text);

// Thread-safe; moving it is not.
class FaultPoints {
 public:
  // From the environment; a plan that cannot be read is logged and ignored.
  static FaultPoints from_environment();
  FaultPoints() = default;
  FaultPoints(std::optional<FaultPlan> plan, const std::string& files);
  // Fires when a plan names this place. With SIGSTOP it returns after a SIGCONT.
  void reach(std::string_view phase, std::uint64_t step);

 private:
  struct FilePlan {
    FaultPlan plan;
    std::string file;
  };
  std::vector<FilePlan> file_plans() const;

  std::unique_ptr<std::mutex> mutex_ = std::make_unique<std::mutex>();
  std::optional<FaultPlan> plan_;
  std::vector<std::string> files_;
};

}  // namespace rubato::worker
