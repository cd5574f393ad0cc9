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
// A job removed it meanwhile.
template <class T>
bool is_gone(const Result<T>& read) {
  return !read.ok() && read.error().code() == Code::kNotFound;
}
bool is_unread(const Result<CheckpointSummary>& read) {
  return !read.ok() && !is_damage(read.error());
}

Row row_of(const CheckpointFolder& folder, std::int64_t step, const Result<CheckpointSummary>& is) {
  Row row;
  row.name = folder.path_of(step).substr(folder.directory().size() + 1);
  row.step = std::to_string(step);
  row.state = is.ok()         ? "complete"
              : is_unread(is) ? "cannot be read: " + is.error().what()
                              : "damaged: " + is.error().what();
  if (!is.ok()) return row;
  row.size = is->bytes;
  row.bytes = human_bytes(is->bytes);
  row.job = is->job_uid.empty() ? "none" : is->job_uid;
  return row;
}

Status check_is_there(FileSystem& files, const CheckpointFolder& folder) {
  TRY(const FileStat about, files.stat(folder.directory()));
  if (!about.is_directory) return Error(Code::kInvalid, folder.directory() + " is not a folder");
  return ok();
}

// Of the checkpoints, counting those that cannot be read, then of what else is there.
Result<std::vector<Row>> rows_of(const CheckpointFolder& folder, int& unread) {
  std::vector<Row> rows;
  TRY(const auto steps, folder.steps());
  for (const std::int64_t step : steps) {
    const auto summary = folder.inspect(step);
    if (is_gone(summary)) continue;
    unread += is_unread(summary) ? 1 : 0;
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

std::string listing(const std::string& path, const std::vector<Row>& rows,
                    const std::string& output) {
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

}  // namespace

Status verdict(const CheckReport& report) {
  std::string text;
  if (report.damaged > 0)
    text = fmt::format("{} damaged; a job sets them aside and takes an older one", report.damaged);
  if (report.unread > 0)
    text += fmt::format("{}{} cannot be read; look at the disk, and at the rights of this user",
                        text.empty() ? "" : "; ", report.unread);
  return text.empty() ? ok() : Status(Error(Code::kInvalid, text));
}

Result<CheckReport> list_checkpoints(FileSystem& files, const std::string& path,
                                     const std::string& output) {
  const CheckpointFolder folder(files, path);
  TRY_OK(check_is_there(files, folder));
  CheckReport report;
  TRY(const std::vector<Row> rows, rows_of(folder, report.unread));
  report.text = listing(path, rows, output);
  return report;
}

Result<CheckReport> verify_checkpoints(FileSystem& files, const std::string& path,
                                       std::int64_t step) {
  const CheckpointFolder folder(files, path);
  TRY(std::vector<std::int64_t> steps, folder.steps());
  if (step >= 0) std::erase_if(steps, [&](std::int64_t other) { return other != step; });
  CheckReport report;
  TextTable table{{"NAME", "STEP", "SIZE", "STATE"}, {}};
  for (const std::int64_t each : steps) {
    const auto verified = folder.verify(each);
    if (is_gone(verified)) continue;
    report.unread += is_unread(verified) ? 1 : 0;
    report.damaged += verified.ok() || is_unread(verified) ? 0 : 1;
    const Row row = row_of(folder, each, verified);
    const bool has_digests = verified.ok() && !verified->files.empty();
    table.rows.push_back(
        {row.name, row.step, row.bytes.empty() ? "-" : row.bytes,
         !verified.ok() ? row.state
         : has_digests  ? "whole"
                        : "complete; an older version wrote it without digests of its files"});
  }
  if (table.rows.empty())
    return Error(Code::kNotFound, (step < 0 ? "no checkpoints in " : "no such checkpoint in ") +
                                      path + "; `rubatoctl checkpoint list` shows what is there");
  report.text = render(table);
  return report;
}

namespace {

struct PruneChoice {
  std::vector<std::int64_t> removed;  // ascending
  std::string remarks;                // on damaged ones that stay
};

// From the newest backwards, until so many whole ones are found.
Result<PruneChoice> choose_pruned(const CheckpointFolder& folder, std::vector<std::int64_t> steps,
                                  const PruneOptions& options) {
  PruneChoice choice;
  for (int whole = 0; whole < options.keep && !steps.empty(); steps.pop_back()) {
    const auto verified = folder.verify(steps.back());
    whole += verified.ok() ? 1 : 0;
    if (verified.ok() || is_gone(verified)) continue;
    if (!is_damage(verified.error())) return verified.error();
    if (options.damaged)
      choice.removed.push_back(steps.back());
    else
      choice.remarks += fmt::format("{}: it stays, and does not count; --damaged removes it\n",
                                    verified.error().what());
  }
  choice.removed.insert(choice.removed.end(), steps.begin(), steps.end());
  std::ranges::sort(choice.removed);
  return choice;
}

}  // namespace

Result<std::string> prune_checkpoints(FileSystem& files, const std::string& path,
                                      const PruneOptions& options) {
  const CheckpointFolder folder(files, path);
  TRY_OK(check_is_there(files, folder));
  TRY(std::vector<std::int64_t> steps, folder.steps());
  // A draft that is newer than all may be of a job that runs.
  const std::int64_t newest = steps.empty() || options.keep == 0 ? INT64_MAX : steps.back();
  TRY(const PruneChoice choice, choose_pruned(folder, std::move(steps), options));
  std::string text = choice.remarks;
  const char* does = options.dry_run ? "would remove" : "removes";
  for (const std::int64_t step : choice.removed)
    text += fmt::format("{} {}\n", does, folder.path_of(step));
  if (!options.dry_run) TRY_OK(folder.remove(choice.removed));
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
  TRY_OK(check_is_there(files, folder));
  TRY(const std::vector<std::int64_t> steps, folder.steps());
  std::string text;
  for (const std::int64_t step : steps) {
    const auto about = folder.summary(step);
    if (is_gone(about)) continue;
    if (!about.ok()) return about.error();
    if (about->job_uid.empty()) continue;
    TRY_OK(folder.release(step));
    text += fmt::format("{} belonged to job {}; it is free now\n", folder.path_of(step),
                        about->job_uid);
  }
  return text.empty() ? "nothing in " + path + " belongs to a job\n" : text;
}

}  // namespace rubato::ctl
