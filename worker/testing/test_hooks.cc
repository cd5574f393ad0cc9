// The hooks of bin/testing/rubato-worker: fault points and ledger, as the environment asks for
// them.
#include "worker/main/hooks.h"
#include "worker/testing/deferred_device.h"
#include "worker/testing/fault_points.h"
#include "worker/testing/file_ledger.h"

#include <cstdlib>

namespace rubato::worker {

Hooks make_hooks() {
  Hooks hooks;
  hooks.reach = [faults = std::make_shared<FaultPoints>(FaultPoints::from_environment())](
                    std::string_view phase, std::uint64_t step) { faults->reach(phase, step); };
  const char* ledger = std::getenv("RUBATO_LEDGER");
  if (ledger != nullptr && *ledger != '\0') hooks.open_ledger = FileLedger::open;
  hooks.open_device = open_any_device;
  return hooks;
}

}  // namespace rubato::worker
