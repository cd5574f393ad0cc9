// Copies of a ModelReplica's state, for checkpoints and followers. Private to worker/step.
#pragma once

#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/host_state.h"
#include "worker/model/training_state.h"
#include "worker/step/replica.h"

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace rubato::worker {

class ModelSnapshot : public Snapshot {
 public:
  // `store` may be null: then save() says so.
  ModelSnapshot(std::shared_ptr<TrainingState> state, Device& device, const ParameterTable& table,
                const CheckpointStore* store, CheckpointInfo info);
  std::uint64_t step() const override { return static_cast<std::uint64_t>(state_->step()); }
  std::vector<std::size_t> section_bytes() const override;
  Result<std::vector<std::span<const std::byte>>> sections() const override;
  Result<std::string> save(std::span<const StepRecord> records,
                           std::uint32_t redo_attempts) override;

 private:
  std::shared_ptr<TrainingState> state_;
  Device& device_;
  const ParameterTable& table_;
  const CheckpointStore* store_;
  CheckpointInfo info_;
  mutable std::mutex mutex_;
  mutable std::optional<HostState> host_;  // from the first sections() on
};

}  // namespace rubato::worker
