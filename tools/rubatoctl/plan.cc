#include "tools/rubatoctl/plan.h"

#include "common/files.h"
#include "common/words.h"
#include "scheduler/certificate/feasible.h"
#include "scheduler/forecast.h"
#include "tools/rubatoctl/view/text_table.h"

#include <istream>
#include <map>
#include <optional>
#include <ostream>

#include <fmt/format.h>

namespace rubato::ctl {
namespace {

constexpr std::size_t kShownBytes = 40;  // of a line that is not understood

struct Line {
  std::int64_t number = 0;  // from 1
  std::string text;         // without its end
  bool is_too_long = false;
};

// What is beyond `most` bytes is read and dropped. None: the input is at its end.
std::optional<Line> next_line(std::istream& in, std::int64_t number, std::size_t most) {
  Line line{.number = number};
  std::streambuf& bytes = *in.rdbuf();
  constexpr auto kEnd = std::char_traits<char>::eof();
  int c = bytes.sbumpc();
  if (c == kEnd) return std::nullopt;
  for (; c != kEnd && c != '\n'; c = bytes.sbumpc()) {
    if (line.text.size() < most)
      line.text += static_cast<char>(c);
    else
      line.is_too_long = true;
  }
  return line;
}

std::string is_not_json(const Line& line, const std::string& why) {
  const std::string_view text = line.text;
  const std::string found =
      text.empty() ? "is empty"
                   : fmt::format("{} {}; {}", text.size() > kShownBytes ? "begins with" : "is",
                                 clipped(text, kShownBytes), why);
  return fmt::format(
      "line {} cannot be read as JSON: it {}; expected a whole snapshot (docs/snapshot.md) as one "
      "JSON object without line breaks in it; go on with the next line, each is answered by itself",
      line.number, found);
}

std::string answer_to(const Line& line, std::size_t most) {
  const auto answer = [](const std::string& error) {
    return json::dump(json::Value::object({{"error", error}})) + "\n";
  };
  if (line.is_too_long)
    return answer(
        fmt::format("line {} is longer than a snapshot may be, {} bytes, and was passed over; go "
                    "on with the next line",
                    line.number, most));
  const auto text = plan_text(line.text, "json");
  if (text.ok()) return *text;
  const Error& error = text.error();
  return answer(error.reason() == sched::kNotJson ? is_not_json(line, error.what()) : error.what());
}

// "+4 on n1, +1 on n2, less pods 2, 3"
std::string change_of(const sched::Action& action) {
  std::map<sched::NodeId, sched::Gpus> taken;
  for (const sched::Placement& placement : action.add) taken[placement.node] += placement.gpus;
  std::string text;
  for (const auto& [node, gpus] : taken)
    text += fmt::format("{}+{} on {}", text.empty() ? "" : ", ", gpus, node);
  if (action.remove.empty()) return text;
  return text + fmt::format("{}less pod{} {}", text.empty() ? "" : ", ",
                            action.remove.size() == 1 ? "" : "s", fmt::join(action.remove, ", "));
}

std::string table_of(const sched::Snapshot& snapshot, const sched::Plan& plan,
                     const std::vector<sched::Fix>& fixes) {
  std::map<sched::JobId, std::string> names;
  for (const sched::Job& job : snapshot.state.jobs)
    names[job.id] = job.name.empty() ? job.id : job.name;
  const auto starts = sched::expected_starts(snapshot.state, snapshot.policy);
  TextTable actions{{"ACTION", "JOB", "CHANGE", "REASON"}, {}};
  for (const sched::Action& action : plan.actions)
    actions.rows.push_back(
        {name_of(action.kind), names[action.job], change_of(action), to_text(action.cause)});
  TextTable waiting{{"WAITS", "OUTCOME", "REASON", "EXPECTED", "MESSAGE"}, {}};
  TextTable with_fix{{"NEVER", "FIX"}, {}};
  for (std::size_t i = 0; i < plan.verdicts.size(); ++i) {
    const sched::Verdict& verdict = plan.verdicts[i];
    if (verdict.outcome == sched::Outcome::kPlaced) continue;
    sched::Explanation told = explain(verdict, snapshot.state.jobs[i]);
    waiting.rows.push_back({names[snapshot.state.jobs[i].id],
                            verdict.outcome == sched::Outcome::kNever ? "never" : "not now",
                            std::move(told.reason), starts[i] ? sched::in_about(*starts[i]) : "",
                            std::move(told.message)});
    if (!fixes[i].empty())
      with_fix.rows.push_back({names[snapshot.state.jobs[i].id], to_text(fixes[i])});
  }
  return (actions.rows.empty() ? "Nothing to do.\n" : render(actions)) + "\n" +
         (waiting.rows.empty() ? "Nobody waits.\n" : render(waiting)) +
         (with_fix.rows.empty() ? "" : "\n" + render(with_fix));
}

std::string to_sentence(const sched::Certificate& certificate) {
  return fmt::format(
      "At most {:.1f} % below the best plan if queues shared all: worth {:.2f} GPUs of {:.2f}.\n"
      "Of what is above the minimums of its jobs: at most {:.1f} %.\n",
      100 * certificate.gap(), sched::amount_of(certificate.value),
      sched::amount_of(certificate.bound), 100 * certificate.gap_above_minimums());
}

Result<std::string> all_of(std::istream& in) {
  std::string text;
  char part[1 << 16];
  while (in.read(part, sizeof part) || in.gcount() > 0) {
    text.append(part, static_cast<std::size_t>(in.gcount()));
    if (text.size() > sched::kSnapshotBytesMost)
      return Error(Code::kInvalid, fmt::format("the input is longer than a snapshot may be, {} "
                                               "bytes; for many, one a line, use --stream",
                                               sched::kSnapshotBytesMost));
  }
  return text;
}

}  // namespace

Result<sched::Snapshot> load_snapshot(const std::string& file) {
  TRY(const std::string text, read_input(file, sched::kSnapshotBytesMost));
  auto snapshot = sched::read_snapshot(text);
  if (!snapshot.ok()) return snapshot.error().in(file == "-" ? "the input" : file);
  return snapshot;
}

PlanCheck check_plan(const sched::Snapshot& snapshot, const sched::Plan& plan) {
  const std::string why = why_infeasible(snapshot.state, plan);
  if (why.empty())
    return {.error = "", .certificate = certify(snapshot.state, snapshot.policy, plan)};
  return {.error = fmt::format("the plan cannot be done, for {}: a bug of policy \"{}\"; report it "
                               "with this snapshot",
                               why, snapshot.policy.policy),
          .certificate = std::nullopt};
}

Result<std::string> plan_text(std::string_view text, const std::string& output) {
  TRY(const sched::Snapshot snapshot, sched::read_snapshot(text));
  return text_of_plan(snapshot, sched::make_plan(snapshot.state, snapshot.policy), output);
}

std::string text_of_plan(const sched::Snapshot& snapshot, const sched::Plan& plan,
                         const std::string& output) {
  const auto [error, certificate] = check_plan(snapshot, plan);
  const std::vector<sched::Fix> fixes = fixes_of(snapshot.state, plan);
  if (output == "table")
    return table_of(snapshot, plan, fixes) + (certificate ? "\n" + to_sentence(*certificate) : "") +
           (error.empty() ? "" : "\nerror: " + readable(error) + "\n");
  json::Value document = to_json(plan, snapshot.state, fixes);
  if (certificate) document.set("certificate", to_json(*certificate));
  if (!error.empty()) document.set("error", error);
  return json::dump(document) + "\n";
}

Status plan_stream(std::istream& in, std::ostream& out, std::size_t line_bytes_most) {
  for (std::int64_t number = 1; const auto line = next_line(in, number, line_bytes_most); ++number)
    if (!(out << answer_to(*line, line_bytes_most) << std::flush))
      return Error(Code::kUnavailable, "the answers are not read any more");
  return ok();
}

Status plan(const PlanChoice& choice, std::istream& in, std::ostream& out) {
  if (choice.stream) {
    if (choice.file != "-" || choice.output != "json")
      return Error(Code::kInvalid,
                   "--stream reads its input and writes JSON: leave FILE and -o out");
    return plan_stream(in, out);
  }
  TRY(const std::string snapshot,
      choice.file == "-" ? all_of(in) : read_input(choice.file, sched::kSnapshotBytesMost));
  auto text = plan_text(snapshot, choice.output);
  if (!text.ok()) return text.error().in(choice.file == "-" ? "the input" : choice.file);
  out << *text << std::flush;
  if (!out) return Error(Code::kUnavailable, "the plan could not be written");
  return ok();
}

}  // namespace rubato::ctl
