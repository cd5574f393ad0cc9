#include "worker/checkpoint/checkpoint.h"

#include "common/json.h"
#include "worker/checkpoint/files.h"
#include "worker/checkpoint/run_info.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/model/fingerprint.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

namespace rubato::worker {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kJsonBytesMax = 1u << 20;

std::string directory_name(std::int64_t step) {
  char text[32];
  std::snprintf(text, sizeof text, "step-%08lld", static_cast<long long>(step));
  return text;
}

// -1 for any other name.
std::int64_t step_of(const std::string& name) {
  if (!name.starts_with("step-") || name.size() > 24) return -1;
  std::int64_t step = 0;
  for (const char c : name.substr(5)) {
    if (c < '0' || c > '9') return -1;
    step = step * 10 + (c - '0');
  }
  return name.size() == 5 ? -1 : step;
}

// Drafts: .draft-step-00000500-x7Gh2k, made anew by each writer, so that one that comes back from a
// freeze and the one that took its place do not write into the same.
constexpr std::string_view kDraft = ".draft-";
constexpr const char* kContents = "/checkpoint";

// -1 for any other name.
std::int64_t step_of_draft(const std::string& name) {
  if (!name.starts_with(kDraft)) return -1;
  const std::string rest = name.substr(kDraft.size());
  return step_of(rest.substr(0, rest.find('-', rest.find('-') + 1)));
}

Result<std::string> make_draft(const std::string& directory, std::int64_t step) {
  std::string path = directory + "/" + std::string(kDraft) + directory_name(step) + "-XXXXXX";
  if (::mkdtemp(path.data()) == nullptr)
    return Error(Code::kUnavailable, "creating " + path + ": " + std::strerror(errno));
  std::error_code error;
  fs::create_directory(path + kContents, error);
  if (error) return Error(Code::kUnavailable, "creating " + path + ": " + error.message());
  return path;
}

// The state on the host: its own memory where the device shares it, else copies.
class HostState {
 public:
  static Result<HostState> read(Device& device, Stream& stream, const TrainingState& state) {
    HostState host;
    TRY_OK(stream.synchronize());
    for (const StateSection& section : state.sections()) {
      const ConstBuffer buffer = section.buffer;
      if (const void* view = device.host_view(buffer)) {
        host.sections_.push_back(static_cast<const std::byte*>(view));
        continue;
      }
      auto& copy = host.copies_.emplace_back(buffer.bytes());
      device.copy_to_host(stream, copy.data(), buffer);
      host.sections_.push_back(copy.data());
    }
    TRY_OK(stream.synchronize());
    return host;
  }
  // Section i in the order of TrainingState::sections().
  const std::byte* section(std::size_t i) const { return sections_[i]; }

 private:
  std::vector<std::vector<std::byte>> copies_;
  std::vector<const std::byte*> sections_;
};

void add_tensors(const ParameterTable& table, const std::byte* flat, const std::string& prefix,
                 std::vector<TensorView>& out) {
  for (const Parameter& entry : table.entries())
    out.push_back({prefix + entry.name, "F32", entry.shape,
                   flat + static_cast<std::size_t>(entry.offset) * sizeof(float),
                   static_cast<std::uint64_t>(entry.count) * sizeof(float)});
}

Status write_tensors(const std::string& directory, const ParameterTable& table,
                     const HostState& host) {
  std::vector<TensorView> model;
  add_tensors(table, host.section(0), "", model);
  TRY_OK(write_safetensors(directory + "/model.safetensors", model, {{"format", "pt"}}));

  std::vector<TensorView> optimizer;
  add_tensors(table, host.section(1), "exp_avg.", optimizer);
  add_tensors(table, host.section(2), "exp_avg_sq.", optimizer);
  optimizer.push_back({"exponents",
                       "I32",
                       {table.block_count()},
                       host.section(3),
                       static_cast<std::uint64_t>(table.block_count()) * 4});
  return write_safetensors(directory + "/optimizer.safetensors", optimizer, {});
}

Status write_files(const std::string& directory, const ParameterTable& table, const HostState& host,
                   const CheckpointInfo& info, std::span<const StepRecord> records) {
  TRY_OK(write_tensors(directory, table, host));
  TRY_OK(replace_file(directory + "/config.json",
                      json::dump(to_huggingface_config(info.model), 2) + "\n"));
  TRY_OK(export_step_records(directory + "/steps.bin", records));
  TRY_OK(replace_file(directory + "/run.json", dump_run_info(info)));
  return sync_directory(directory);
}

// Fills `flat` with the tensors of the table, padding zero. Names are tried with `prefix`, and
// without GPT-2's "transformer.".
Status read_flat(const Safetensors& file, const ParameterTable& table, const std::string& prefix,
                 std::vector<float>& flat) {
  flat.assign(static_cast<std::size_t>(table.flat_count()), 0.0f);
  constexpr std::string_view kRoot = "transformer.";
  for (const Parameter& entry : table.entries()) {
    const TensorView* tensor = file.find(prefix + entry.name);
    if (tensor == nullptr && entry.name.starts_with(kRoot))
      tensor = file.find(prefix + entry.name.substr(kRoot.size()));
    if (tensor == nullptr)
      return Error(Code::kInvalid, "tensor " + prefix + entry.name + " is missing");
    if (tensor->dtype != "F32")
      return Error(Code::kInvalid, "tensor " + tensor->name + " is " + tensor->dtype + ", not F32");
    if (tensor->shape != entry.shape)
      return Error(Code::kInvalid,
                   "tensor " + tensor->name + " has another shape than this model's");
    std::memcpy(flat.data() + entry.offset, tensor->bytes, tensor->size);
  }
  return ok();
}

Result<std::string> resolve(const std::string& path) {
  if (fs::exists(path + "/run.json")) return path;
  return CheckpointStore(path, 1).latest();
}

Status check_finished(const std::error_code& error, const std::string& what) {
  if (!error) return ok();
  return Error(Code::kUnavailable, what + ": " + error.message());
}

}  // namespace

CheckpointStore::CheckpointStore(std::string directory, int keep)
    : directory_(std::move(directory)), keep_(std::max(keep, 1)) {}

std::vector<std::int64_t> CheckpointStore::steps() const {
  std::vector<std::int64_t> steps;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory_, error)) {
    const std::int64_t step = step_of(entry.path().filename().string());
    if (step >= 0 && fs::exists(entry.path() / "run.json")) steps.push_back(step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

Result<std::string> CheckpointStore::latest() const {
  const std::vector<std::int64_t> present = steps();
  if (present.empty()) return Error(Code::kNotFound, "no checkpoint in " + directory_);
  return directory_ + "/" + directory_name(present.back());
}

Status CheckpointStore::save(Device& device, Stream& stream, const ParameterTable& table,
                             const TrainingState& state, CheckpointInfo info,
                             std::span<const StepRecord> records) const {
  CHECK_EQ(static_cast<std::int64_t>(records.size()), state.step());
  info.step = state.step();
  info.numerics_version = kNumericsVersion;
  TRY(info.state_digest, state.digest(device, stream));
  TRY(const HostState host, HostState::read(device, stream, state));

  std::error_code error;
  fs::create_directories(directory_, error);
  TRY_OK(check_finished(error, "creating " + directory_));
  TRY(const std::string draft, make_draft(directory_, info.step));
  Status done = write_files(draft + kContents, table, host, info, records);
  if (done.ok()) done = publish(draft, info);
  fs::remove_all(draft, error);
  return done;
}

Status CheckpointStore::publish(const std::string& draft, const CheckpointInfo& info) const {
  const std::string target = directory_ + "/" + directory_name(info.step);
  const Result<CheckpointInfo> stands = read_checkpoint_info(target);
  if (!stands.ok() || stands->state_digest != info.state_digest) {
    if (fs::exists(target)) TRY_OK(rename_path(target, draft + "/old"));
    TRY_OK(rename_path(draft + kContents, target));
    TRY_OK(sync_directory(directory_));
  }
  std::vector<std::int64_t> present = steps();
  if (present.empty()) return Error(Code::kUnavailable, target + " was taken away");
  TRY_OK(replace_file(directory_ + "/LATEST", directory_name(present.back()) + "\n"));
  TRY_OK(sync_directory(directory_));

  // Only now may older ones go, and what a crash left behind.
  std::error_code error;
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep_) < present.size(); ++i)
    fs::remove_all(directory_ + "/" + directory_name(present[i]), error);
  std::vector<fs::path> left;
  for (const auto& entry : fs::directory_iterator(directory_, error)) {
    const std::int64_t step = step_of_draft(entry.path().filename().string());
    if (step >= 0 && step <= info.step) left.push_back(entry.path());
  }
  for (const fs::path& path : left) fs::remove_all(path, error);
  return ok();
}

Result<CheckpointInfo> read_checkpoint_info(const std::string& path) {
  TRY(const std::string directory, resolve(path));
  TRY(const std::string text, read_text(directory + "/run.json", kJsonBytesMax));
  Result<CheckpointInfo> info = parse_run_info(text);
  if (!info.ok()) return info.error().in(directory);
  return info;
}

Status load_parameters(const std::string& path, Device& device, Stream& stream,
                       const ParameterTable& table, Buffer parameters) {
  std::string file = path;
  if (fs::is_directory(path)) {
    const Result<std::string> directory = resolve(path);
    file = (directory.ok() ? *directory : path) + "/model.safetensors";
  }
  TRY(const Safetensors model, Safetensors::open(file));
  std::vector<float> flat;
  const Status read = read_flat(model, table, "", flat);
  if (!read.ok()) return read.error().in(file);
  device.copy_to_device(stream, parameters, flat.data());
  return stream.synchronize();
}

Result<Checkpoint> load_checkpoint(const std::string& path, Device& device, Stream& stream,
                                   const ParameterTable& table, TrainingState& state) {
  TRY(const std::string directory, resolve(path));
  Checkpoint checkpoint;
  TRY(checkpoint.info, read_checkpoint_info(directory));
  TRY(checkpoint.records, read_step_records(directory + "/steps.bin"));
  if (static_cast<std::int64_t>(checkpoint.records.size()) != checkpoint.info.step)
    return Error(Code::kInvalid, directory + ": steps.bin has " +
                                     std::to_string(checkpoint.records.size()) + " records for " +
                                     std::to_string(checkpoint.info.step) + " steps");
  TRY_OK(load_parameters(directory, device, stream, table, state.parameters()));

  const std::string file = directory + "/optimizer.safetensors";
  TRY(const Safetensors optimizer, Safetensors::open(file));
  std::vector<float> flat;
  TRY_OK(read_flat(optimizer, table, "exp_avg.", flat));
  device.copy_to_device(stream, state.exp_avg(), flat.data());
  TRY_OK(stream.synchronize());
  TRY_OK(read_flat(optimizer, table, "exp_avg_sq.", flat));
  device.copy_to_device(stream, state.exp_avg_sq(), flat.data());
  TRY_OK(stream.synchronize());
  const TensorView* exponents = optimizer.find("exponents");
  if (exponents == nullptr || exponents->dtype != "I32" ||
      exponents->size != state.exponents().bytes())
    return Error(Code::kInvalid, file + " has no exponents that fit");
  device.copy_to_device(stream, state.exponents(), exponents->bytes);
  TRY_OK(stream.synchronize());

  state.set_step(checkpoint.info.step);
  TRY(const std::uint64_t digest, state.digest(device, stream));
  if (digest != checkpoint.info.state_digest)
    return Error(Code::kInvalid, directory + " is damaged: its digest is not the one in run.json");
  return checkpoint;
}

}  // namespace rubato::worker
