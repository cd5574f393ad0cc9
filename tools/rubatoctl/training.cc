#include "tools/rubatoctl/training.h"

#include "common/words.h"
#include "operator/api/resources.h"
#include "tools/rubatoctl/job_logs.h"
#include "tools/rubatoctl/view/loss_lines.h"
#include "tools/rubatoctl/view/plot.h"
#include "tools/rubatoctl/view/text_table.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace rubato::ctl {

using json::Value;

namespace {

constexpr std::size_t kBarWidth = 20;

Result<LossStory> story_of(Session& session, const std::string& job) {
  TRY(const std::vector<PodLine> lines, read_job_logs(session, session.ns(), job));
  LossStory story;
  for (const PodLine& line : lines) story.take(line.pod, line.line);
  return story;
}

Status told(const LossStory& story) {
  if (story.conflicts() == 0) return ok();
  return Error(Code::kInternal,
               fmt::format("{} different loss bits on different workers: this must never happen, "
                           "please report it",
                           counted(story.conflicts(), "step", "has", "have")));
}

void print_loss_table(const LossStory& story) {
  TextTable table{{"STEP", "LOSS", "BITS", "LR", "TOKENS/S", "GPUS", "GENERATION"}, {}};
  for (const auto& [step, line] : story.steps())
    table.rows.push_back({std::to_string(step), fmt::format("{:.6f}", line.loss), line.bits,
                          line.learning_rate,
                          line.replay ? "" : short_number(line.tokens_per_second),
                          line.replay ? "" : std::to_string(line.gpus),
                          line.replay ? "" : std::to_string(line.generation)});
  std::fputs(render(table).c_str(), stdout);
}

std::size_t terminal_rows() {
  winsize size{};
  const bool is_known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 0;
  return is_known ? size.ws_row : 24;
}

std::string last_rescale(const Value& status, WallTime now) {
  const Value& last = status["rescales"]["last"];
  if (!last.is_object()) return "-";
  const auto time = parse_rfc3339(last["time"].string_view_or(""));
  return fmt::format("{} to {}, {:.2f}s{}", last["from"].int_or(0), last["to"].int_or(0),
                     last["stallSeconds"].double_or(0),
                     time.ok() ? ", " + human_duration(now - *time) + " ago" : "");
}

}  // namespace

std::string waits_for_pods(const Value& job) {
  const std::string state = job["status"]["state"].string_or("");
  if (state.empty()) return "no operator has looked at the job yet; waiting for its pods";
  if (state != "Queued" && state != "Suspended" && state != "Pending") return "";
  const std::string reason = job["status"]["reason"].string_or("");
  std::string message;
  for (const Value& condition : job["status"]["conditions"].items())
    if (condition["type"].string_view_or("") == state) message = condition["message"].string_or("");
  return fmt::format("job is {}{}{}; waiting for its pods", state,
                     reason.empty() ? "" : " (" + reason + ")",
                     message.empty() ? "" : ": " + message);
}

Status logs(Session& session, const std::string& job, bool follow) {
  LossStory story;
  const auto print = [&](const PodLine& line) {
    if (const auto text = story.take(line.pod, line.line)) fmt::print("{}\n", *text);
  };
  if (!follow) {
    TRY(const std::vector<PodLine> lines, read_job_logs(session, session.ns(), job));
    for (const PodLine& line : lines) print(line);
    return told(story);
  }
  const auto exists = session.client().get(api::kTrainingJob, {session.ns(), job});
  if (!exists.ok()) return advised(exists.error());
  JobLogs live(log_source(session), session.ns(), job,
               [](const std::string& text) { fmt::print(stderr, "{}\n", text); });
  bool has_lines = false;
  std::string waited;  // as it was said
  while (true) {
    const auto line = live.next(session.executor().now() + 1s);
    if (line.ok()) {
      has_lines = true;
      print(*line);
      continue;
    }
    std::fflush(stdout);
    if (line.error().code() == Code::kCancelled) return told(story);
    if (line.error().code() != Code::kTimeout) return advised(line.error());
    if (has_lines) continue;
    const auto seen = session.client().get(api::kTrainingJob, {session.ns(), job});
    const std::string waits = seen.ok() ? waits_for_pods(*seen) : waited;
    if (!waits.empty() && waits != waited) fmt::print(stderr, "{}\n", waits);
    waited = waits;
  }
}

Status loss(Session& session, const std::string& job, const std::string& output) {
  TRY(const LossStory story, story_of(session, job));
  if (output == "csv") std::fputs(to_csv(story.steps()).c_str(), stdout);
  if (output == "table") print_loss_table(story);
  if (output == "plot") {
    std::vector<Point> points;
    for (const auto& [step, line] : story.steps())
      points.push_back({static_cast<double>(step), line.loss});
    std::fputs(plot(points).c_str(), stdout);
  }
  return told(story);
}

std::string top_text(const std::vector<Value>& jobs, WallTime now, bool with_namespace) {
  TextTable table{{"NAME", "STATE", "GPUS", "PROGRESS", "LOSS", "TOKENS/S", "ETA", "LAST RESCALE"},
                  {}};
  if (with_namespace) table.head.insert(table.head.begin(), "NAMESPACE");
  for (const Value& job : jobs) {
    const Value& status = job["status"];
    const Value& progress = status["progress"];
    const Value& remaining = progress["estimatedRemainingSeconds"];
    const auto steps = progress["steps"].int_or(0);
    const double fraction =
        steps > 0 ? static_cast<double>(progress["step"].int_or(0)) / static_cast<double>(steps)
                  : 0;
    std::vector<std::string> row{
        kube::name_of(job),
        status["state"].string_or("Pending"),
        status["display"]["gpus"].string_or("-"),
        fmt::format("{} {:3.0f}%", bar(fraction, kBarWidth), fraction * 100),
        progress["loss"].is_null() ? "-" : fmt::format("{:.4f}", progress["loss"].double_or(0)),
        status["display"]["tokensPerSecond"].string_or("-"),
        remaining.is_null() ? "-" : short_time(remaining.double_or(0)),
        last_rescale(status, now)};
    if (with_namespace) row.insert(row.begin(), kube::namespace_of(job));
    table.rows.push_back(std::move(row));
  }
  return table.rows.empty() ? "No training jobs.\n" : render(table);
}

std::string drawn(const std::string& text, std::size_t rows) {
  // Lines that are too long are cut, and the cursor stays out of the last row: either would scroll.
  std::string out = "\x1b[?7l\x1b[H";
  std::size_t left = rows > 1 ? rows - 1 : 1;
  for (std::size_t begin = 0; begin < text.size() && left > 0; --left) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    out += text.substr(begin, end - begin) + "\x1b[K\n";
    begin = end + 1;
  }
  return out + "\x1b[J\x1b[?7h";
}

Status top(Session& session, bool all_namespaces, bool once) {
  const bool live = !once && ::isatty(STDOUT_FILENO) != 0;
  std::string text;
  while (true) {
    const auto jobs = session.list(api::kTrainingJob, all_namespaces ? "" : session.ns());
    if (jobs.ok()) text = top_text(*jobs, session.wall(), all_namespaces);
    const bool may_pass = !jobs.ok() && retry_class(jobs.error().code()) != Retry::kNever;
    if (!jobs.ok() && (text.empty() || !may_pass)) return jobs.error();
    if (!live) {
      std::fputs(text.c_str(), stdout);
      return ok();
    }
    // The last table stays, below why it is an old one.
    const std::string why = jobs.ok() ? "" : jobs.error().what();
    const std::string note = why.empty() ? "" : why.substr(0, why.find('\n')) + "; trying again\n";
    std::fputs(drawn(note + text, terminal_rows()).c_str(), stdout);
    std::fflush(stdout);
    session.executor().sleep_for(1s);
  }
}

Status become(const std::string& program, const std::vector<std::string>& arguments) {
  std::vector<std::string> words{program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> raw;
  raw.reserve(words.size() + 1);
  for (std::string& word : words) raw.push_back(word.data());
  raw.push_back(nullptr);
  ::execv(program.c_str(), raw.data());
  return Error(Code::kNotFound, "cannot run " + program + ": " + std::strerror(errno) +
                                    "\n  What to do: build it (`make release`)");
}

}  // namespace rubato::ctl
