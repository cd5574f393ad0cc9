#include "tools/rubatoctl/doctor/doctor.h"

#include "common/words.h"
#include "tools/rubatoctl/session.h"

#include <algorithm>
#include <cstdio>

#include <fmt/core.h>

namespace rubato::ctl {

using json::Value;

namespace {

const char* word_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk:
      return "ok";
    case Verdict::kWarning:
      return "warning";
    case Verdict::kWrong:
      return "WRONG";
  }
  return "";
}

std::int64_t count(const std::vector<Finding>& findings, Verdict verdict) {
  return std::ranges::count(findings, verdict, &Finding::verdict);
}

}  // namespace

Result<std::vector<Value>> list_all(kube::Client& client, const kube::ResourceType& type,
                                    const std::string& ns, const std::string& labels) {
  std::vector<Value> all;
  kube::ListOptions page;
  page.limit = kPage;
  page.label_selector = labels;
  do {
    TRY(kube::ObjectList part, client.list(type, ns, page));
    for (Value& item : part.items) all.push_back(std::move(item));
    page.continue_token = part.continue_token;
  } while (!page.continue_token.empty());
  return all;
}

Finding unread(const std::string& subject, const Error& error) {
  return {Verdict::kWarning, subject, "cannot be looked at: " + error.what(),
          error.code() == Code::kDenied ? "ask with a user who may read it" : ""};
}

std::vector<Finding> examine(Patient& patient, const DoctorChoice& choice) {
  std::vector<Finding> findings;
  const auto reached =
      patient.client.list(kube::types::kCustomResourceDefinition, "", {.limit = 1});
  if (!reached.ok() && reached.error().code() != Code::kDenied) {
    findings.push_back({Verdict::kWrong, "API server", reached.error().what(),
                        "see whether it runs, and whether the kubeconfig names it and a user it "
                        "knows; on this machine: `rubatoctl local status`"});
    return findings;
  }
  findings.push_back({Verdict::kOk, "API server", "answers", ""});
  check_kinds(patient, findings);
  check_rights(patient, choice, findings);
  check_operator(patient, choice, findings);
  check_nodes(patient, choice, findings);
  check_policies(patient, findings);
  check_clocks(patient, findings);
  check_jobs(patient, choice, findings);
  return findings;
}

std::string report(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& finding : findings) {
    text += fmt::format("{:<8} {}: {}\n", word_of(finding.verdict), finding.subject, finding.text);
    if (!finding.mend.empty() && finding.verdict != Verdict::kOk)
      text += "         What to do: " + finding.mend + "\n";
  }
  return text;
}

Status doctor(Session& session, const DoctorChoice& choice) {
  Patient patient{session.client(), session.wall(), [&] { return session.rest().server_time(); },
                  [&](Duration time) { session.executor().sleep_for(time, {}); }};
  return tell(examine(patient, choice));
}

Status tell(const std::vector<Finding>& findings) {
  std::fputs(report(findings).c_str(), stdout);
  const std::int64_t wrong = count(findings, Verdict::kWrong);
  if (wrong == 0) return ok();
  return Error(Code::kInvalid, fmt::format("{} wrong, {}", wrong,
                                           counted(count(findings, Verdict::kWarning), "warning")));
}

}  // namespace rubato::ctl
