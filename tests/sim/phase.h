// Phase: the named places of a worker's step (worker/testing/fault_points.h), as faults strike at
// them and as they are counted. Coverage: which kinds of faults have met workers in which phases.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace rubato::sim {

enum class Phase : std::uint8_t {
  kStarting,  // no place was reached yet
  // Of a round; those that are reached most often first.
  kAccumulate,
  kCompute,
  kReduce,
  kCommit,
  kApply,
  kPublish,
  kValidate,
  kCompare,
  kCheckpoint,
  kFinish,
  // Of a change.
  kPull,
  kFollow,
  kDonate,
  kPrepare,
  kPrepared,
  kSwitch,
  // Of a recovery.
  kAbort,
  kFence,
  kForm,
  kLevel,
  kConnect,
};
constexpr std::size_t kPhases = static_cast<std::size_t>(Phase::kConnect) + 1;
const char* name_of(Phase phase);
std::optional<Phase> phase_named(std::string_view name);

// Counts of one story, or of many.
template <std::size_t Kinds>
struct PhaseCounts {
  std::array<std::uint64_t, kPhases> reached{};                 // by workers
  std::array<std::array<std::uint64_t, kPhases>, Kinds> met{};  // a fault, and a worker there

  void add(const PhaseCounts& other) {
    for (std::size_t p = 0; p < kPhases; ++p) {
      reached[p] += other.reached[p];
      for (std::size_t k = 0; k < Kinds; ++k) met[k][p] += other.met[k][p];
    }
  }
};

}  // namespace rubato::sim
