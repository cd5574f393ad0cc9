#include "worker/step/stored_replica.h"

namespace rubato::worker {

namespace {
Error no_path() { return Error(Code::kNotFound, "checkpoint.path is not set"); }
}  // namespace

StoredReplica::StoredReplica(FileSystem& files, const std::string& path, int keep) {
  if (!path.empty()) store_.emplace(files, path, keep);
}

Result<std::vector<std::uint64_t>> StoredReplica::checkpoints() const {
  if (!store_) return std::vector<std::uint64_t>();
  TRY(const auto steps, store_->folder().steps());
  return std::vector<std::uint64_t>(steps.begin(), steps.end());
}

Result<FoundCheckpoint> StoredReplica::look_at_checkpoint(std::uint64_t step) const {
  if (!store_) return no_path();
  TRY(const CheckpointSummary about, store_->folder().summary(static_cast<std::int64_t>(step)));
  return FoundCheckpoint{step, about.state_digest};
}

Result<std::string> StoredReplica::set_aside_checkpoint(std::uint64_t step) {
  if (!store_) return no_path();
  TRY(const std::string name, store_->folder().set_aside(static_cast<std::int64_t>(step)));
  return store_->folder().directory() + "/" + name;
}

Result<std::vector<std::string>> StoredReplica::damaged_checkpoints() const {
  if (!store_) return std::vector<std::string>();
  TRY(std::vector<std::string> names, store_->folder().damaged());
  for (std::string& name : names) name = store_->folder().directory() + "/" + name;
  return names;
}

Status StoredReplica::check_path() const {
  if (!store_) return ok();
  Status owner = store_->check_owner(info());
  const bool is_taken = !owner.ok() && owner.error().reason() == kCheckpointPathTaken;
  return is_taken ? owner : ok();
}

Result<std::string> StoredReplica::own_path(std::uint64_t step) const {
  if (!store_) return no_path();
  TRY_OK(store_->check_owner(info()));
  return store_->folder().path_of(static_cast<std::int64_t>(step));
}

}  // namespace rubato::worker
