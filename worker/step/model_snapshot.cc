#include "worker/step/model_snapshot.h"

#include <utility>

namespace rubato::worker {

Result<std::shared_ptr<TrainingState>> SnapshotPool::take(Device& device,
                                                          const ParameterTable& table) {
  const std::lock_guard lock(mutex_);
  for (const auto& state : states_) {
    if (state.use_count() == 1) return state;
  }
  if (states_.size() >= kSnapshotsMax) return Error(Code::kExhausted, "all snapshots are in use");
  TRY(TrainingState state, TrainingState::create(device, table));
  states_.push_back(std::make_shared<TrainingState>(std::move(state)));
  return states_.back();
}

ModelSnapshot::ModelSnapshot(std::shared_ptr<TrainingState> state, Device& device,
                             const ParameterTable& table, const CheckpointStore* store,
                             CheckpointInfo info)
    : state_(std::move(state)),
      device_(device),
      table_(table),
      store_(store),
      info_(std::move(info)) {}

std::vector<std::span<const std::byte>> ModelSnapshot::sections() const {
  std::vector<std::span<const std::byte>> spans;
  for (const StateSection& section : state_->sections()) {
    const ConstBuffer buffer = section.buffer;
    spans.emplace_back(static_cast<const std::byte*>(device_.host_view(buffer)), buffer.bytes());
  }
  return spans;
}

Result<std::string> ModelSnapshot::save(std::span<const StepRecord> records,
                                        std::uint32_t redo_attempts) {
  if (store_ == nullptr) return Error(Code::kInvalid, "checkpoint.path is not set");
  const auto stream = device_.make_stream();
  info_.redo_attempts = redo_attempts;
  TRY_OK(store_->save(device_, *stream, table_, *state_, info_, records));
  return store_->folder().path_of(state_->step());
}

}  // namespace rubato::worker
