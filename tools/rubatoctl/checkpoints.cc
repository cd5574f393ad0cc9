#include "tools/rubatoctl/checkpoints.h"

#include "common/json.h"
#include "common/words.h"
#include "tools/rubatoctl/view/text_table.h"
#include "worker/checkpoint/checkpoint_folder.h"

#include <algorithm>
#include <vector>

#include <fmt/core.h>

namespace rubato::ctl {

using json::Value;
using worker::CheckpointFolder;
using worker::CheckpointSummary;

namespace {

struct Row {
  std::string name;
  std::string step;
  std::string bytes;
  std::string job;
  std::string state;
  std::uint64_t size = 0;
};

bool is_damage(const Error& error) { return error.reason() == worker::kCheckpointDamaged; }

Row row_of(const CheckpointFolder& folder, std::int64_t step, const Result<CheckpointSummary>& is) {
  Row row;
  row.name = folder.path_of(step).substr(folder.directory().size() + 1);
  row.step = std::to_string(step);
  row.state = is.ok() ? "complete" : "damaged: " + is.error().what();
  if (!is.ok()) return row;
  row.size = is->bytes;
  row.bytes = human_bytes(is->bytes);
  row.job = is->job_uid.empty() ? "none" : is->job_uid;
  return row;
}

Result<std::vector<Row>> rows_of(FileSystem& files, const CheckpointFolder& folder) {
  TRY(const FileStat about, files.stat(folder.directory()));
  if (!about.is_directory) return Error(Code::kInvalid, folder.directory() + " is not a folder");
  std::vector<Row> rows;
  TRY(const auto steps, folder.steps());
  for (const std::int64_t step : steps) {
    const auto summary = folder.summary(step);
    if (!summary.ok() && !is_damage(summary.error())) return summary.error();
    rows.push_back(row_of(folder, step, summary));
  }
  TRY(const auto damaged, folder.damaged());
  for (const std::string& name : damaged)
    rows.push_back({.name = name, .state = "set aside: it was damaged"});
  TRY(const auto drafts, folder.drafts());
  for (const std::string& name : drafts)
    rows.push_back({.name = name, .state = "draft: being written, or left by a crash"});
  return rows;
}

}  // namespace

Result<std::string> list_checkpoints(FileSystem& files, const std::string& path,
                                     const std::string& output) {
  const CheckpointFolder folder(files, path);
  TRY(const std::vector<Row> rows, rows_of(files, folder));
  if (output == "json") {
    Value items = Value::array();
    for (const Row& row : rows) {
      Value item = Value::object({{"name", row.name}, {"state", row.state}});
      if (!row.step.empty()) item.set("step", std::stoll(row.step));
      if (!row.job.empty()) item.set("jobUid", row.job == "none" ? "" : row.job);
      if (row.size > 0) item.set("bytes", row.size);
      items.push_back(std::move(item));
    }
    return json::dump(Value::object({{"path", path}, {"checkpoints", items}}), 2) + "\n";
  }
  if (rows.empty()) return "no checkpoints in " + path + "\n";
  TextTable table{{"NAME", "STEP", "SIZE", "JOB", "STATE"}, {}};
  for (const Row& row : rows)
    table.rows.push_back({row.name, row.step.empty() ? "-" : row.step,
                          row.bytes.empty() ? "-" : row.bytes, row.job.empty() ? "-" : row.job,
                          row.state});
  return render(table);
}

Result<CheckReport> verify_checkpoints(FileSystem& files, const std::string& path,
                                       std::int64_t step) {
  const CheckpointFolder folder(files, path);
  TRY(std::vector<std::int64_t> steps, folder.steps());
  if (step >= 0) std::erase_if(steps, [&](std::int64_t other) { return other != step; });
  if (steps.empty())
    return Error(Code::kNotFound, (step < 0 ? "no checkpoints in " : "no such checkpoint in ") +
                                      path + "; `rubatoctl checkpoint list` shows what is there");
  CheckReport report;
  TextTable table{{"NAME", "STEP", "SIZE", "STATE"}, {}};
  for (const std::int64_t each : steps) {
    const auto verified = folder.verify(each);
    if (!verified.ok() && !is_damage(verified.error())) return verified.error();
    report.damaged += verified.ok() ? 0 : 1;
    const Row row = row_of(folder, each, verified);
    const bool has_digests = verified.ok() && !verified->files.empty();
    table.rows.push_back(
        {row.name, row.step, row.bytes.empty() ? "-" : row.bytes,
         !verified.ok() ? row.state
         : has_digests  ? "whole"
                        : "complete; an older version wrote it without digests of its files"});
  }
  report.text = render(table);
  return report;
}

Result<std::string> prune_checkpoints(FileSystem& files, const std::string& path,
                                      const PruneOptions& options) {
  const CheckpointFolder folder(files, path);
  TRY(std::vector<std::int64_t> steps, folder.steps());
  const std::size_t stay = std::min(steps.size(), static_cast<std::size_t>(options.keep));
  // A draft that is newer than all may be of a job that runs.
  const std::int64_t newest = steps.empty() || options.keep == 0 ? INT64_MAX : steps.back();
  steps.resize(steps.size() - stay);
  std::string text;
  const char* does = options.dry_run ? "would remove" : "removes";
  for (const std::int64_t step : steps) text += fmt::format("{} {}\n", does, folder.path_of(step));
  if (!options.dry_run) TRY_OK(folder.remove(steps));
  TRY(std::vector<std::string> entries, folder.drafts());
  std::erase_if(entries, [&](const std::string& name) {
    return CheckpointFolder::step_of_draft(name) > newest;
  });
  if (options.damaged) {
    TRY(const auto damaged, folder.damaged());
    entries.insert(entries.end(), damaged.begin(), damaged.end());
  }
  for (const std::string& name : entries) {
    text += fmt::format("{} {}/{}\n", does, path, name);
    if (!options.dry_run) TRY_OK(folder.remove_entry(name));
  }
  return text.empty() ? "nothing to remove in " + path + "\n" : text;
}

Result<std::string> release_checkpoints(FileSystem& files, const std::string& path) {
  const CheckpointFolder folder(files, path);
  TRY(const std::vector<std::int64_t> steps, folder.steps());
  std::string text;
  for (const std::int64_t step : steps) {
    TRY(const CheckpointSummary about, folder.summary(step));
    if (about.job_uid.empty()) continue;
    TRY_OK(folder.release(step));
    text +=
        fmt::format("{} belonged to job {}; it is free now\n", folder.path_of(step), about.job_uid);
  }
  return text.empty() ? "nothing in " + path + " belongs to a job\n" : text;
}

}  // namespace rubato::ctl
