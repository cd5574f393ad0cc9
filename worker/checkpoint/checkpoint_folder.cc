#include "worker/checkpoint/checkpoint_folder.h"

#include "common/json.h"
#include "common/log.h"
#include "worker/checkpoint/file_writer.h"
#include "worker/checkpoint/safetensors.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace rubato::worker {

namespace {

constexpr std::size_t kJsonBytesMax = 1u << 20;
constexpr std::string_view kDraft = ".draft-";
constexpr std::string_view kDamaged = ".damaged-";
constexpr const char* kContents = "/checkpoint";
constexpr char kGone = '~';  // ends the name of a draft that is being removed
constexpr std::string_view kSeal = "\"digest\": \"";
constexpr std::size_t kSealDigits = 16;
constexpr int kAsideMax = 1000;  // names tried for one that is set aside
constexpr int kListsMost = 8;    // of a directory in which checkpoints go meanwhile
constexpr std::string_view kStep = "step-";
constexpr std::size_t kStepDigitsMax = 18;  // an int64 holds any number of so many

std::string directory_name(std::int64_t step) {
  char text[32];
  std::snprintf(text, sizeof text, "step-%08lld", static_cast<long long>(step));
  return text;
}

// -1 for any other name than directory_name() gives.
std::int64_t step_of(std::string_view name) {
  if (!name.starts_with(kStep)) return -1;
  const std::string_view digits = name.substr(kStep.size());
  if (digits.empty() || digits.size() > kStepDigitsMax) return -1;
  std::int64_t step = 0;
  for (const char c : digits) {
    if (c < '0' || c > '9') return -1;
    step = step * 10 + (c - '0');
  }
  return directory_name(step) == name ? step : -1;
}

// Of ".draft-step-00000500-x7Gh2k" and the like; -1 for any other name.
std::int64_t step_behind(std::string_view prefix, std::string_view name) {
  if (!name.starts_with(prefix)) return -1;
  const std::string_view rest = name.substr(prefix.size());
  return step_of(rest.substr(0, rest.find('-', rest.find('-') + 1)));
}

// A file that a checkpoint should have and has not is damage, too, unless all of it went meanwhile.
Error as_damage(FileSystem& files, const Error& error, const std::string& path) {
  if (error.code() != Code::kNotFound && error.code() != Code::kInvalid) return error;
  const auto about = files.stat(path);
  return about.ok() ? damaged_checkpoint(path, error.what()) : about.error();
}

// Where the sixteen digits stand; npos: nowhere.
std::size_t seal_place(std::string_view text) {
  const std::size_t at = text.rfind(kSeal);
  if (at == std::string_view::npos || at + kSeal.size() + kSealDigits > text.size())
    return std::string_view::npos;
  return at + kSeal.size();
}

}  // namespace

Error damaged_checkpoint(const std::string& path, const std::string& why) {
  return Error(Code::kInvalid, path + " is damaged: " + why).set_reason(kCheckpointDamaged);
}

std::string sealed(std::string text) {
  const std::size_t at = seal_place(text);
  CHECK(at != std::string::npos);
  text.replace(at, kSealDigits, kBlankDigest);
  const std::string digest = to_hex(digest_of(text.data(), text.size()));
  return text.replace(at, kSealDigits, digest);
}

CheckpointFolder::CheckpointFolder(FileSystem& files, std::string directory)
    : files_(files), directory_(std::move(directory)) {}

std::string CheckpointFolder::path_of(std::int64_t step) const {
  return directory_ + "/" + directory_name(step);
}

Result<std::vector<std::string>> CheckpointFolder::names_with(std::string_view prefix) const {
  auto names = files_.list(directory_);
  if (!names.ok() && names.error().code() == Code::kNotFound) return std::vector<std::string>();
  if (!names.ok()) return names.error();
  std::erase_if(*names, [&](const std::string& name) { return !name.starts_with(prefix); });
  return names;
}

Result<std::vector<std::string>> CheckpointFolder::drafts() const { return names_with(kDraft); }
Result<std::vector<std::string>> CheckpointFolder::damaged() const { return names_with(kDamaged); }

std::int64_t CheckpointFolder::step_of_draft(std::string_view name) {
  return step_behind(kDraft, name);
}

Result<std::vector<std::int64_t>> CheckpointFolder::steps() const {
  std::vector<std::string> nowhere;  // names that led there when they were listed before
  for (int i = 0; i < kListsMost; ++i) {
    TRY(const auto names, names_with(kStep));
    std::vector<std::int64_t> steps;
    bool has_gone = false;  // a name that is there twice and leads nowhere is a link to nothing
    for (const std::string& name : names) {
      if (step_of(name) < 0) continue;
      const auto about = files_.stat(directory_ + "/" + name);
      if (about.ok() && about->is_directory) steps.push_back(step_of(name));
      if (about.ok() || about.error().code() == Code::kInvalid) continue;
      if (about.error().code() != Code::kNotFound) return about.error();
      if (std::ranges::find(nowhere, name) != nowhere.end()) continue;
      nowhere.push_back(name);
      has_gone = true;
    }
    std::ranges::sort(steps);
    if (!has_gone) return steps;
  }
  return Error(Code::kUnavailable, directory_ + ": checkpoints go while they are listed");
}

// ---- What they say -----------------------------------------------------------------------------

Result<CheckpointSummary> checkpoint_summary(FileSystem& files, const std::string& path) {
  const auto about = files.stat(path);
  if (!about.ok()) return about.error();
  const Result<std::string> text = read_text(files, path + "/run.json", kJsonBytesMax);
  if (!text.ok()) return as_damage(files, text.error(), path);
  const Result<json::Value> run = json::parse(*text);
  if (!run.ok()) return damaged_checkpoint(path, "run.json: " + run.error().what());
  CheckpointSummary summary;
  summary.step = (*run)["step"].int_or(-1);
  summary.job_uid = (*run)["jobUid"].string_or("");
  summary.fingerprint = (*run)["fingerprint"].string_or("");
  summary.state_digest = from_hex((*run)["stateDigest"].string_or(""));
  summary.redo_attempts = static_cast<std::uint32_t>((*run)["redoAttempts"].int_or(0));
  const std::int64_t named = step_of(std::string_view(path).substr(path.rfind('/') + 1));
  if (named >= 0 && summary.step != named)
    return damaged_checkpoint(path, "run.json is of another step");
  const std::size_t seal = seal_place(*text);
  const bool has_files = (*run)["files"].is_object();
  if (seal != std::string::npos ? sealed(*text) != *text : has_files)
    return damaged_checkpoint(path, "run.json is not what was written");
  if (seal != std::string::npos && !has_files)
    return damaged_checkpoint(path, "run.json names no files");
  if (seal == std::string::npos && !summary.job_uid.empty())
    return damaged_checkpoint(path, "run.json names a job and has no digest of its own");
  if (has_files)
    for (const auto& [name, digest] : (*run)["files"].members())
      summary.files[name] = from_hex(digest.string_or(""));
  TRY(const auto names, files.list(path));
  for (const std::string& name : names) {
    TRY(const FileStat file, files.stat(path + "/" + name));
    summary.bytes += file.size;
  }
  return summary;
}

Result<CheckpointSummary> verify_checkpoint_files(
    FileSystem& files, const std::string& path,
    const std::function<bool(std::string_view)>& asked) {
  TRY(CheckpointSummary summary, checkpoint_summary(files, path));
  for (const auto& [name, written] : summary.files) {
    if (!asked(name)) continue;
    const Result<std::uint64_t> digest = digest_of_file(files, path + "/" + name);
    if (!digest.ok()) return as_damage(files, digest.error(), path);
    if (*digest != written)
      return damaged_checkpoint(path, name + " has the digest " + to_hex(*digest) +
                                          ", it was written with " + to_hex(written));
  }
  return summary;
}

Result<CheckpointSummary> CheckpointFolder::summary(std::int64_t step) const {
  return checkpoint_summary(files_, path_of(step));
}

Result<CheckpointSummary> CheckpointFolder::verify(std::int64_t step) const {
  return verify_checkpoint_files(files_, path_of(step));
}

Result<CheckpointSummary> CheckpointFolder::inspect(std::int64_t step) const {
  const std::string path = path_of(step);
  const auto has_tensors = [](std::string_view name) { return name.ends_with(".safetensors"); };
  TRY(CheckpointSummary summary, verify_checkpoint_files(files_, path, std::not_fn(has_tensors)));
  for (const auto& [name, digest] : summary.files) {
    if (!has_tensors(name)) continue;
    const auto opened = Safetensors::open(files_, path + "/" + name);
    if (!opened.ok()) return as_damage(files_, opened.error(), path);
  }
  return summary;
}

// ---- What changes them -------------------------------------------------------------------------

Status CheckpointFolder::point_latest() const {
  TRY(const std::vector<std::int64_t> present, steps());
  if (present.empty()) {
    TRY_OK(files_.remove_all(directory_ + "/LATEST"));
  } else {
    TRY_OK(replace_file(files_, directory_ + "/LATEST", directory_name(present.back()) + "\n"));
  }
  return files_.sync_directory(directory_);
}

Result<std::string> CheckpointFolder::set_aside(std::int64_t step) const {
  std::string name;
  for (int i = 1; i <= kAsideMax; ++i) {
    name = std::string(kDamaged) + directory_name(step) + "-" + std::to_string(i);
    const auto taken = files_.stat(directory_ + "/" + name);
    if (!taken.ok() && taken.error().code() == Code::kNotFound) break;
  }
  TRY_OK(files_.rename(path_of(step), directory_ + "/" + name));
  TRY_OK(point_latest());
  const auto remove_older = [&]() -> Status {
    TRY(std::vector<std::string> kept, damaged());
    std::erase(kept, name);  // the last to go
    for (std::size_t i = 0; i + kDamagedKept <= kept.size(); ++i)
      TRY_OK(files_.remove_all(directory_ + "/" + kept[i]));
    return ok();
  };
  if (const Status removed = remove_older(); !removed.ok())
    LOG_WARNING("checkpoint", "older damaged ones stay: {}", removed.error().what());
  return name;
}

Status CheckpointFolder::remove(std::span<const std::int64_t> steps) const {
  std::vector<std::string> nameless;
  for (const std::int64_t step : steps) {
    const std::string gone = directory_ + "/" + std::string(kDraft) + directory_name(step) + "-old";
    TRY_OK(files_.remove_all(gone));
    const Status renamed = files_.rename(path_of(step), gone);
    if (!renamed.ok() && renamed.error().code() == Code::kNotFound) continue;
    if (!renamed.ok()) return renamed;
    nameless.push_back(gone);
  }
  if (nameless.empty()) return ok();
  TRY_OK(point_latest());
  for (const std::string& path : nameless) TRY_OK(files_.remove_all(path));
  return ok();
}

Status CheckpointFolder::remove_entry(const std::string& name) const {
  CHECK(name.starts_with(kDraft) || name.starts_with(kDamaged));
  const std::string path = directory_ + "/" + name;
  if (!name.starts_with(kDraft) || name.ends_with(kGone)) return files_.remove_all(path);
  // Its writer may be about to publish it: it has all of it or nothing.
  const Status renamed = files_.rename(path, path + kGone);
  if (!renamed.ok() && renamed.error().code() == Code::kNotFound) return ok();
  if (!renamed.ok()) return renamed;
  return files_.remove_all(path + kGone);
}

Status CheckpointFolder::remove_drafts(std::int64_t step) const {
  TRY(const auto names, drafts());
  Status first_failed = ok();
  for (const std::string& name : names) {
    const std::int64_t of = step_of_draft(name);
    if (of < 0 || of > step) continue;
    const Status removed = remove_entry(name);
    if (first_failed.ok()) first_failed = removed;
  }
  return first_failed;
}

Status CheckpointFolder::release(std::int64_t step) const {
  const std::string file = path_of(step) + "/run.json";
  TRY(const CheckpointSummary about, summary(step));
  if (about.job_uid.empty()) return ok();
  TRY(const std::string text, read_text(files_, file, kJsonBytesMax));
  TRY(json::Value run, json::parse(text));
  run.set("jobUid", "");
  const std::string freed = json::dump(run, 2) + "\n";
  if (seal_place(freed) == std::string::npos)  // it was whole a moment ago
    return damaged_checkpoint(path_of(step), "run.json has no digest of its own");
  TRY_OK(replace_file(files_, file, sealed(freed)));
  return files_.sync_directory(path_of(step));
}

std::string CheckpointFolder::path_in_draft(const std::string& name) const {
  return directory_ + "/" + name + kContents;
}

Result<std::string> CheckpointFolder::make_draft(std::int64_t step) const {
  TRY_OK(make_lasting_directories(files_, directory_));
  TRY(const std::string draft, files_.make_unique_directory(directory_ + "/" + std::string(kDraft) +
                                                            directory_name(step) + "-"));
  TRY_OK(files_.make_directories(draft + kContents));
  return draft + kContents;
}

Status CheckpointFolder::publish(const std::string& draft, std::int64_t step) const {
  TRY_OK(files_.sync_directory(parent_of(draft)));
  TRY_OK(files_.sync_directory(directory_));
  TRY_OK(files_.rename(draft, path_of(step)));
  return make_names_durable();
}

Status CheckpointFolder::make_names_durable() const {
  TRY_OK(files_.sync_directory(directory_));
  return point_latest();
}

}  // namespace rubato::worker
