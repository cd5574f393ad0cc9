#include "worker/step/stored_replica.h"

#include "worker/model/numerics.h"

#include <ranges>

namespace rubato::worker {

namespace {
Error no_path() { return Error(Code::kNotFound, "checkpoint.path is not set"); }
}  // namespace

Result<CheckpointInfo> info_of_listed(FileSystem& files, const CheckpointFolder& folder,
                                      std::int64_t step) {
  const std::string path = folder.path_of(step);
  Result<CheckpointInfo> info = read_checkpoint_info(files, path);
  if (info.ok() || info.error().code() != Code::kNotFound) return info;
  const auto about = files.stat(path);
  if (about.ok()) return damaged_checkpoint(path, info.error().what());
  if (about.error().code() != Code::kNotFound) return about.error();
  return Error(Code::kUnavailable, "a checkpoint has just gone: " + path);
}

Result<int> numerics_of(FileSystem& files, const std::string& path, int pinned) {
  if (knows_numerics(pinned)) return pinned;
  if (path.empty()) return kNumericsVersion;
  const CheckpointFolder folder(files, path);
  TRY(const auto steps, folder.steps());
  for (const std::int64_t step : std::views::reverse(steps)) {
    const auto info = info_of_listed(files, folder, step);
    if (info.ok() && knows_numerics(info->numerics_version)) return info->numerics_version;
    if (!info.ok() && info.error().code() != Code::kInvalid) return info.error();
  }
  return kNumericsVersion;
}

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
