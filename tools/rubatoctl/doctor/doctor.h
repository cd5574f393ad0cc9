// `rubatoctl doctor`: looks at a cluster and at the jobs of a namespace, and says what is wrong and
// how it is mended. Reads only; the one thing it creates are access reviews, which the server does
// not keep.
#pragma once

#include "kube/client.h"

#include <functional>
#include <string>
#include <vector>

namespace rubato::ctl {

enum class Verdict { kOk, kWarning, kWrong };

// One line of the report.
struct Finding {
  Verdict verdict = Verdict::kOk;
  std::string subject;  // "operator", "job default/gpt" …
  std::string text;     // what was seen
  std::string mend;     // what to do; empty when nothing is
};

struct DoctorChoice {
  std::string ns;                             // whose jobs
  std::string job;                            // this one only; empty: all of the namespace
  std::string operator_ns = "rubato-system";  // where the operator is installed
  std::string gpu_resource;  // that nodes offer; empty: any that is known (kGpuResources)
};

// All that a check may ask. `server_time` may fail: then clocks are not compared.
struct Patient {
  kube::Client& client;
  WallTime now;
  std::function<Result<WallTime>()> server_time;
  std::function<void(Duration)> pause;  // waits, to see whether something moves
};

// Each appends its findings. What the user may not read is a warning, never an error of the check.
void check_kinds(Patient& patient, std::vector<Finding>& findings);
void check_rights(Patient& patient, const DoctorChoice& choice, std::vector<Finding>& findings);
void check_operator(Patient& patient, const DoctorChoice& choice, std::vector<Finding>& findings);
void check_nodes(Patient& patient, const DoctorChoice& choice, std::vector<Finding>& findings);
// SchedulingPolicies that are not in force, and queues of whose spec not all is acted on.
void check_policies(Patient& patient, std::vector<Finding>& findings);
void check_clocks(Patient& patient, std::vector<Finding>& findings);
void check_jobs(Patient& patient, const DoctorChoice& choice, std::vector<Finding>& findings);
// Why the kubelet does not start these pods, each reason once an image.
void check_images(const std::string& subject, const std::vector<json::Value>& pods,
                  std::vector<Finding>& findings);

// All of them, in that order; the first that the server does not answer at all ends it.
std::vector<Finding> examine(Patient& patient, const DoctorChoice& choice);
// One line a finding, the way out below it.
std::string report(const std::vector<Finding>& findings);

// Prints the report. kInvalid: something is wrong; warnings are none.
Status tell(const std::vector<Finding>& findings);

class Session;
Status doctor(Session& session, const DoctorChoice& choice);  // tells what it finds

// Lists all pages; for the checks.
Result<std::vector<json::Value>> list_all(kube::Client& client, const kube::ResourceType& type,
                                          const std::string& ns, const std::string& labels = "");
// "may not be read": for an error that is no finding about the thing itself.
Finding unread(const std::string& subject, const Error& error);

}  // namespace rubato::ctl
