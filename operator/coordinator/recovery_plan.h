// How the survivors of a broken generation go on: from their standings alone. Pure.
// Private to this folder: includes the generated wire messages.
#pragma once

#include "worker/protocol/shares.h"
#include "worker/protocol/wire.pb.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace rubato::coordinator {

struct RecoveryPlan {
  std::uint64_t base_seq = 0;                         // the round that begins
  std::optional<wire::CommitRecord> decision;         // of round base_seq - 1, for those one behind
  std::vector<std::vector<wire::MicroRange>> shares;  // by position in the input
  std::vector<bool> levels;                           // false: must follow anew
  std::uint32_t salvaged = 0;                         // micro-batches that stay where they are
  std::uint32_t recomputed = 0;
};

// `standings`: of all workers asked, in order of rank; at least one has state. Shares are dealt to
// those that level; the share of another is empty. `heard`: of workers that will be no members;
// what they have decided is decided. It may be that nobody levels with that.
RecoveryPlan plan_recovery(const std::vector<wire::WorkerStanding>& standings,
                           std::uint32_t micro_batches,
                           const std::vector<wire::WorkerStanding>& heard = {});

}  // namespace rubato::coordinator
