#include "worker/step/model_snapshot.h"

#include <utility>

namespace rubato::worker {

ModelSnapshot::ModelSnapshot(std::shared_ptr<TrainingState> state, Device& device,
                             const ParameterTable& table, const CheckpointStore* store,
                             CheckpointInfo info)
    : state_(std::move(state)),
      device_(device),
      table_(table),
      store_(store),
      info_(std::move(info)) {}

std::vector<std::size_t> ModelSnapshot::section_bytes() const {
  std::vector<std::size_t> bytes;
  for (const StateSection& section : state_->sections()) {
    bytes.push_back(section.buffer.bytes());
  }
  return bytes;
}

Result<std::vector<std::span<const std::byte>>> ModelSnapshot::sections() const {
  const std::lock_guard lock(mutex_);
  if (!host_) {
    const auto stream = device_.make_stream();
    TRY(HostState host, HostState::read(device_, *stream, *state_));
    host_.emplace(std::move(host));
  }
  std::vector<std::span<const std::byte>> spans;
  const std::vector<std::size_t> bytes = section_bytes();
  spans.reserve(bytes.size());
  for (std::size_t i = 0; i < bytes.size(); ++i) spans.emplace_back(host_->section(i), bytes[i]);
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
