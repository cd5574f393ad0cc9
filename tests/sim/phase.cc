#include "tests/sim/phase.h"

namespace rubato::sim {
namespace {
constexpr std::array<const char*, kPhases> kNames = {
    "starting", "accumulate", "compute", "reduce", "commit", "apply",  "publish", "validate",
    "compare",  "checkpoint", "finish",  "pull",   "follow", "donate", "prepare", "prepared",
    "switch",   "abort",      "fence",   "form",   "level",  "connect"};
}  // namespace

const char* name_of(Phase phase) { return kNames.at(static_cast<std::size_t>(phase)); }

std::optional<Phase> phase_named(std::string_view name) {
  for (std::size_t p = 0; p < kPhases; ++p)
    if (name == kNames[p]) return static_cast<Phase>(p);
  return std::nullopt;
}

}  // namespace rubato::sim
