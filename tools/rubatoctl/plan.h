// rubatoctl plan: what the scheduler does with a snapshot (docs/snapshot.md). No cluster is asked:
// the same make_plan that decides in the operator decides here.
#pragma once

#include "common/result.h"
#include "scheduler/snapshot/snapshot.h"

#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>

namespace rubato::ctl {

struct PlanChoice {
  std::string file = "-";       // "-": what comes in
  std::string output = "json";  // or "table", for people
  bool stream = false;          // a snapshot a line, a plan a line
};

// Of a file, or "-": standard input. Errors name it.
Result<sched::Snapshot> load_snapshot(const std::string& file);

// What is known of a plan of a snapshot.
struct PlanCheck {
  std::string error;  // why it cannot be done (scheduler/certificate/feasible.h); "": it can
  std::optional<sched::Certificate>
      certificate;  // none: it cannot, or the policy maximises nothing
};
PlanCheck check_plan(const sched::Snapshot& snapshot, const sched::Plan& plan);

// The plan, with a newline at its end. kInvalid: the snapshot, with the field that is wrong.
Result<std::string> plan_text(std::string_view snapshot, const std::string& output);
// The same of a plan that was made of it. Where it cannot be done there is an `error` beside it,
// and no certificate.
std::string text_of_plan(const sched::Snapshot& snapshot, const sched::Plan& plan,
                         const std::string& output);

// Answers each line with one line: the plan, or {"error": "…"} where the line is no snapshot, or is
// longer than one may be; each answer is out before the next line is read. Ends with its input, or
// kUnavailable when nobody reads the answers any more.
Status plan_stream(std::istream& in, std::ostream& out,
                   std::size_t line_bytes_most = sched::kSnapshotBytesMost);

Status plan(const PlanChoice& choice, std::istream& in, std::ostream& out);

}  // namespace rubato::ctl
