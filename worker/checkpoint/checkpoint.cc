#include "worker/checkpoint/checkpoint.h"

#include "common/json.h"
#include "common/log.h"
#include "common/planted.h"
#include "common/words.h"
#include "worker/checkpoint/file_writer.h"
#include "worker/checkpoint/host_state.h"
#include "worker/checkpoint/run_info.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/checkpoint/weight_files.h"

#include <algorithm>
#include <cstdio>
#include <optional>

namespace rubato::worker {

namespace {

constexpr std::size_t kJsonBytesMax = 1u << 20;

void add_tensors(const ParameterTable& table, const std::byte* flat, const std::string& prefix,
                 std::vector<TensorView>& out) {
  for (const Parameter& entry : table.entries())
    out.push_back({prefix + entry.name, "F32", entry.shape,
                   flat + static_cast<std::size_t>(entry.offset) * sizeof(float),
                   static_cast<std::uint64_t>(entry.count) * sizeof(float)});
}

Result<FileDigests> write_state(FileSystem& files, const std::string& directory,
                                const ParameterTable& table, const HostState& host,
                                const ModelConfig& config) {
  FileDigests digests;
  std::vector<TensorView> model;
  add_tensors(table, host.section(0), "", model);
  TRY(digests["model.safetensors"],
      write_safetensors(files, directory + "/model.safetensors", model, {{"format", "pt"}}));

  std::vector<TensorView> optimizer;
  add_tensors(table, host.section(1), "exp_avg.", optimizer);
  add_tensors(table, host.section(2), "exp_avg_sq.", optimizer);
  optimizer.push_back({"exponents",
                       "I32",
                       {table.block_count()},
                       host.section(3),
                       static_cast<std::uint64_t>(table.block_count()) * 4});
  TRY(digests["optimizer.safetensors"],
      write_safetensors(files, directory + "/optimizer.safetensors", optimizer, {}));
  const std::string text = json::dump(to_huggingface_config(config), 2) + "\n";
  TRY(digests["config.json"],
      write_file(files, directory + "/config.json", text.data(), text.size()));
  return digests;
}

// Everything in it lasts when this returns, but not its own name.
Status write_files(FileSystem& files, const std::string& directory, const CheckpointInfo& info,
                   std::span<const StepRecord> records, const CheckpointStore::WriteFiles& write) {
  TRY(FileDigests digests, write(directory));
  TRY(digests["steps.bin"],
      write_file(files, directory + "/steps.bin", records.data(), records.size_bytes()));
  const std::string run = dump_run_info(info, digests);
  TRY_OK(write_file(files, directory + "/run.json", run.data(), run.size()));
  return files.sync_directory(directory);
}

// Fills `flat` with the tensors of the table, their names behind `prefix`; padding zero.
Status read_flat(const Safetensors& file, const ParameterTable& table, const std::string& prefix,
                 std::vector<float>& flat) {
  flat.assign(static_cast<std::size_t>(table.flat_count()), 0.0f);
  for (const Parameter& entry : table.entries()) {
    const TensorEntry* tensor = file.find(prefix + entry.name);
    if (tensor == nullptr)
      return Error(Code::kInvalid, "tensor " + prefix + entry.name + " is missing");
    if (tensor->dtype != "F32")
      return Error(Code::kInvalid, "tensor " + tensor->name + " is " + tensor->dtype + ", not F32");
    if (tensor->shape != entry.shape)
      return Error(Code::kInvalid,
                   "tensor " + tensor->name + " has another shape than this model's");
    const auto to = std::span(flat).subspan(static_cast<std::size_t>(entry.offset),
                                            static_cast<std::size_t>(entry.count));
    TRY_OK(file.read(*tensor, std::as_writable_bytes(to)));
  }
  return ok();
}

// What cannot be looked at is not missing.
Result<std::string> resolve(FileSystem& files, const std::string& path) {
  const auto about = files.stat(path + "/run.json");
  if (about.ok()) return path;
  if (about.error().code() != Code::kNotFound) return about.error();
  return CheckpointStore(files, path, 1).latest();
}

// The disk does not answer, or lets us not read: nothing is known of the bytes.
bool is_unread(const Error& error) {
  return error.code() == Code::kUnavailable || error.code() == Code::kDenied;
}

// Of one whose run.json is what was written.
Result<CheckpointInfo> info_of_whole(FileSystem& files, const std::string& path) {
  TRY_OK(checkpoint_summary(files, path));
  return read_checkpoint_info(files, path);
}

// For whoever finds checkpoints of another job in the directory.
std::string ways_out(const CheckpointInfo& ours, const std::string& directory) {
  const bool is_script = !ours.script.empty();
  if (is_script && ours.job_uid.empty())
    return "Give Job(checkpoint=), or output_dir of RubatoTrainer, a folder of its own, or "
           "remove " +
           directory;
  const std::string start =
      is_script ? "" : " (to start from these weights, name them in training.model.initFrom)";
  return "Give the job a training.checkpoint.path of its own" + start +
         ", or remove what is there: rubatoctl checkpoint prune --keep 0 " + directory +
         " (to hand them to the next job instead: rubatoctl checkpoint release " + directory +
         "); that is the path inside the pod";
}

// Of `present`, all but the newest `keep` and `step`, which has just been written; and the drafts
// that nobody needs once that stands.
Status remove_old(const CheckpointFolder& folder, std::span<const std::int64_t> present, int keep,
                  std::int64_t step) {
  const std::size_t old =
      present.size() - std::min<std::size_t>(present.size(), static_cast<std::size_t>(keep));
  const bool is_wrong = planted(Bug::kPruneNewest);
  const auto excess = is_wrong ? present.last(old) : present.first(old);
  std::vector<std::int64_t> gone(excess.begin(), excess.end());
  if (!is_wrong) std::erase(gone, step);
  const Status removed = folder.remove(gone);
  const Status dropped = folder.remove_drafts(step);
  return removed.ok() ? dropped : removed;
}

}  // namespace

CheckpointStore::CheckpointStore(FileSystem& files, std::string directory, int keep)
    : files_(files), folder_(files, std::move(directory)), keep_(std::max(keep, 1)) {}

Result<std::string> CheckpointStore::latest() const {
  TRY(const std::vector<std::int64_t> present, folder_.steps());
  if (present.empty()) return Error(Code::kNotFound, "no checkpoint in " + folder_.directory());
  return folder_.path_of(present.back());
}

Status CheckpointStore::check_owner(const CheckpointInfo& ours) const {
  if (planted(Bug::kNoOwner)) return ok();
  TRY(const std::vector<std::int64_t> present, folder_.steps());
  bool is_ours = false;
  std::optional<Error> unread;
  for (const std::int64_t step : present) {
    const std::string path = folder_.path_of(step);
    const Result<CheckpointInfo> theirs = info_of_whole(files_, path);
    if (!theirs.ok()) {  // damaged: it says nothing of owners
      if (is_unread(theirs.error())) unread = theirs.error();
      continue;
    }
    const std::string why = difference(*theirs, ours);
    if (why.empty()) {
      is_ours = true;
      continue;
    }
    return Error(Code::kConflict,
                 path + " is not this job's: " + why + ". " + ways_out(ours, folder_.directory()))
        .set_reason(kCheckpointPathTaken);
  }
  if (unread && !is_ours) return *unread;
  return ok();
}

Status CheckpointStore::save(Device& device, Stream& stream, const ParameterTable& table,
                             const TrainingState& state, CheckpointInfo info,
                             std::span<const StepRecord> records) const {
  info.step = state.step();
  TRY(info.state_digest, state.digest(device, stream));
  TRY(const HostState host, HostState::read(device, stream, state));
  return save(info, records, [&](const std::string& directory) {
    return write_state(files_, directory, table, host, info.model);
  });
}

Status CheckpointStore::save(const CheckpointInfo& info, std::span<const StepRecord> records,
                             const WriteFiles& write) const {
  CHECK_EQ(static_cast<std::int64_t>(records.size()), info.step);
  const Status saved = save_once(info, records, write);
  if (saved.ok() || saved.error().code() != Code::kExhausted) return saved;
  // What writers left that died in a save takes room, and goes behind a save that is done. Here
  // alone it goes before one: another job's draft may be among it (take_turn).
  const auto left = folder_.drafts();
  if (!left.ok() || left->empty()) return saved;
  LOG_WARNING("checkpoint", "{}; drafts of writers that died go, and it is written once more",
              saved.error().what());
  (void)folder_.remove_drafts(info.step);  // the disk says what that was good for
  return save_once(info, records, write);
}

Status CheckpointStore::save_once(const CheckpointInfo& info, std::span<const StepRecord> records,
                                  const WriteFiles& write) const {
  TRY_OK(check_owner(info));
  TRY(const std::string draft, folder_.make_draft(info.step));
  Status done = write_files(files_, draft, info, records, write);
  if (done.ok()) done = take_turn(info);
  if (done.ok()) done = publish(draft, info);
  (void)files_.remove_all(parent_of(draft));
  const bool was_overtaken = !done.ok() && (done.error().code() == Code::kNotFound ||
                                            done.error().code() == Code::kAlreadyExists);
  if (!was_overtaken) return done;
  TRY_OK(check_owner(info));
  return Error(Code::kUnavailable, "another writer was quicker: " + done.error().what());
}

// Two jobs may have begun on an empty path, and neither sees a checkpoint of the other. So each,
// once its draft is complete, (1) removes the other's complete drafts, (2) looks whose checkpoints
// stand, (3) renames its own. Say that B's draft was complete later: at its (1) A's is removed,
// and A fails at (3), or A has passed (3), and B is refused at (2).
Status CheckpointStore::take_turn(const CheckpointInfo& info) const {
  TRY(const std::vector<std::string> drafts, folder_.drafts());
  for (const std::string& name : drafts) {
    const auto theirs = read_checkpoint_info(files_, folder_.path_in_draft(name));
    if (!theirs.ok() && is_unread(theirs.error())) return theirs.error();
    if (theirs.ok() && !difference(*theirs, info).empty()) TRY_OK(folder_.remove_entry(name));
  }
  return ok();
}

// From the draft to its name; only then may older ones go, and what a crash left behind.
Status CheckpointStore::publish(const std::string& draft, const CheckpointInfo& info) const {
  const auto stands = folder_.verify(info.step);
  TRY_OK(check_owner(info));  // what stands is ours, then
  const bool stays = stands.ok() && (stands->state_digest == info.state_digest ||
                                     stands->redo_attempts != info.redo_attempts);
  const bool is_other = stands.ok() || stands.error().reason() == kCheckpointDamaged;
  if (!stays && is_other) {
    const auto aside = folder_.set_aside(info.step);
    if (!aside.ok() && aside.error().code() != Code::kNotFound) return aside.error();
  }
  TRY_OK(stays ? folder_.make_names_durable() : folder_.publish(draft, info.step));
  const auto present = folder_.steps();
  if (present.ok() && present->empty())
    return Error(Code::kUnavailable, folder_.path_of(info.step) + " was taken away");
  // The checkpoint lasts: what cannot be removed now is no reason to write it once more.
  const Status removed =
      present.ok() ? remove_old(folder_, *present, keep_, info.step) : Status(present.error());
  if (!removed.ok()) LOG_WARNING("checkpoint", "old ones stay: {}", removed.error().what());
  return ok();
}

Result<CheckpointInfo> read_checkpoint_info(FileSystem& files, const std::string& path) {
  TRY(const std::string directory, resolve(files, path));
  TRY(const std::string text, read_text(files, directory + "/run.json", kJsonBytesMax));
  Result<CheckpointInfo> info = parse_run_info(text);
  if (!info.ok()) return info.error().in(directory);
  return info;
}

Result<std::string> weights_at(FileSystem& files, const std::string& path) {
  const auto checkpoint = resolve(files, path);
  if (!checkpoint.ok() && checkpoint.error().code() == Code::kUnavailable)
    return checkpoint.error();
  if (!checkpoint.ok()) return path;  // which need not be listed
  const auto verified = verify_checkpoint_files(files, *checkpoint, [](std::string_view name) {
    return name == "model.safetensors" || name == "config.json";
  });
  if (verified.ok()) return *checkpoint;
  Error error = verified.error();
  if (error.reason() != kCheckpointDamaged) return error;
  return Error(error.code(), error.what() + "; `rubatoctl checkpoint verify " +
                                 parent_of(*checkpoint) + "` finds those that are whole: name one")
      .set_reason(kCheckpointDamaged);
}

Status load_parameters(FileSystem& files, const std::string& path, const ModelConfig& config,
                       Device& device, Stream& stream, const ParameterTable& table,
                       Buffer parameters) {
  TRY(const WeightFiles weights, WeightFiles::open(files, path));
  TRY_OK(weights.check(config));
  device.memset(stream, parameters, 0);  // the padding
  return weights.read_each(table, [&](const Parameter& entry, std::span<const float> tensor) {
    device.copy_to_device(stream, parameters.slice(entry.offset, entry.count), tensor.data());
    return stream.synchronize();
  });
}

namespace {

Status load_optimizer(FileSystem& files, const std::string& path, Device& device, Stream& stream,
                      const ParameterTable& table, TrainingState& state) {
  TRY(const Safetensors optimizer, Safetensors::open(files, path));
  std::vector<float> flat;
  TRY_OK(read_flat(optimizer, table, "exp_avg.", flat));
  device.copy_to_device(stream, state.exp_avg(), flat.data());
  TRY_OK(stream.synchronize());
  TRY_OK(read_flat(optimizer, table, "exp_avg_sq.", flat));
  device.copy_to_device(stream, state.exp_avg_sq(), flat.data());
  TRY_OK(stream.synchronize());
  const TensorEntry* exponents = optimizer.find("exponents");
  if (exponents == nullptr || exponents->dtype != "I32" ||
      exponents->size != state.exponents().bytes())
    return Error(Code::kInvalid, path + " has no exponents that fit");
  std::vector<std::byte> bytes(exponents->size);
  TRY_OK(optimizer.read(*exponents, bytes));
  device.copy_to_device(stream, state.exponents(), bytes.data());
  return stream.synchronize();
}

}  // namespace

Result<Checkpoint> verify_checkpoint(FileSystem& files, const std::string& directory) {
  const auto damaged = [&](const std::string& why) { return damaged_checkpoint(directory, why); };
  TRY_OK(verify_checkpoint_files(files, directory));
  Checkpoint checkpoint;
  TRY(checkpoint.info, read_checkpoint_info(files, directory));
  auto records = read_step_records(files, directory + "/steps.bin");
  if (!records.ok() && is_unread(records.error())) return records.error();
  if (!records.ok()) return damaged(records.error().what());
  checkpoint.records = std::move(records).value();
  if (static_cast<std::int64_t>(checkpoint.records.size()) != checkpoint.info.step)
    return damaged("steps.bin has " + counted(checkpoint.records.size(), "record") + " for " +
                   counted(checkpoint.info.step, "step"));
  return checkpoint;
}

Result<Checkpoint> load_checkpoint(FileSystem& files, const std::string& path, Device& device,
                                   Stream& stream, const ParameterTable& table,
                                   TrainingState& state) {
  TRY(const std::string directory, resolve(files, path));
  TRY(Checkpoint checkpoint, verify_checkpoint(files, directory));
  TRY_OK(load_parameters(files, directory, checkpoint.info.model, device, stream, table,
                         state.parameters()));
  TRY_OK(load_optimizer(files, directory + "/optimizer.safetensors", device, stream, table, state));
  state.set_step(checkpoint.info.step);
  TRY(const std::uint64_t digest, state.digest(device, stream));
  if (digest != checkpoint.info.state_digest)
    return damaged_checkpoint(directory, "its state has not the digest in run.json");
  return checkpoint;
}

}  // namespace rubato::worker
