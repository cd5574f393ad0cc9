#include "operator/coordinator/coordinator.h"

namespace rubato::coordinator {

const char* name_of(Phase phase) {
  switch (phase) {
    case Phase::kWaiting:
      return "Waiting";
    case Phase::kForming:
      return "Forming";
    case Phase::kTraining:
      return "Training";
    case Phase::kSwitching:
      return "Switching";
    case Phase::kRecovering:
      return "Recovering";
    case Phase::kParked:
      return "Parked";
    case Phase::kStopping:
      return "Stopping";
    case Phase::kStopped:
      return "Stopped";
    case Phase::kFinished:
      return "Finished";
    case Phase::kFailed:
      return "Failed";
  }
  return "?";
}

bool is_rescale(const Change& change) {
  return change.kind == "recover" || change.kind == "join" || change.kind == "leave";
}

}  // namespace rubato::coordinator
