// What all jobs need: kinds, rights, an operator that leads, nodes with GPUs, clocks that agree.
#include "common/clock.h"
#include "common/version.h"
#include "common/words.h"
#include "kube/quantity.h"
#include "operator/api/conditions.h"
#include "operator/api/crd.h"
#include "operator/api/kinds.h"
#include "operator/api/resources.h"
#include "tools/rubatoctl/doctor/doctor.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <span>
#include <utility>

#include <fmt/core.h>
#include <fmt/ranges.h>

namespace rubato::ctl {

using json::Value;
namespace types = kube::types;

namespace {

constexpr const char* kInstall =
    "`helm upgrade --install rubato helm/rubato -n rubato-system` (docs/install.md); on this "
    "machine: `rubatoctl local up`";
constexpr const char* kOperatorName = "rubato-operator";
constexpr const char* kOperatorLabel = "rubato.dev/component=operator";  // of the chart's pods
constexpr const char* kOperatorLabelBefore = "app.kubernetes.io/name=rubato-operator";
constexpr const char* kNodeLeases = "kube-node-lease";
constexpr std::string_view kGpuResources[] = {"nvidia.com/gpu", "amd.com/gpu", "rubato.dev/slot"};
// NVIDIA's own label of a node that holds GPUs, whether or not a device plugin offers them.
constexpr const char* kGpuPresent = "nvidia.com/gpu.present";
constexpr const char* kMaintenanceAt = "rubato.dev/maintenance-at";  // as in docs/install.md

constexpr Duration kLeaseGrace = 5s;         // beyond a Lease's own duration
constexpr Duration kLeaseLook = 1s;          // a leader writes its Lease every two seconds
constexpr Duration kSkewNoticed = 5s;        // a date has whole seconds, an answer takes its time
constexpr Duration kSkewWrong = 60s;         // certificates and tokens begin to be refused
constexpr Duration kNodeLeaseOverdue = 60s;  // a kubelet renews every ten seconds

const kube::ResourceType kSelfReview{"authorization.k8s.io", "v1", "selfsubjectaccessreviews",
                                     "SelfSubjectAccessReview", false};
const kube::ResourceType kReview{"authorization.k8s.io", "v1", "subjectaccessreviews",
                                 "SubjectAccessReview", false};

struct Right {
  const char* verb;
  const char* group;
  const char* resource;
  const char* subresource;
};
// Of a person who trains, in the namespace of the jobs.
constexpr Right kOfPeople[] = {{"create", "rubato.dev", "trainingjobs", ""},
                               {"get", "rubato.dev", "trainingjobs", ""},
                               {"list", "rubato.dev", "trainingjobs", ""},
                               {"watch", "rubato.dev", "trainingjobs", ""},
                               {"patch", "rubato.dev", "trainingjobs", ""},
                               {"delete", "rubato.dev", "trainingjobs", ""},
                               {"list", "", "pods", ""},
                               {"get", "", "pods", "log"}};
// Of the operator, in a namespace of jobs (helm/rubato/templates/rbac.yaml).
constexpr Right kOfOperator[] = {{"list", "rubato.dev", "trainingjobs", ""},
                                 {"watch", "rubato.dev", "trainingjobs", ""},
                                 {"patch", "rubato.dev", "trainingjobs", ""},
                                 {"delete", "rubato.dev", "trainingjobs", ""},
                                 {"patch", "rubato.dev", "trainingjobs", "status"},
                                 {"list", "rubato.dev", "trainingqueues", ""},
                                 {"list", "rubato.dev", "schedulingpolicies", ""},
                                 {"list", "", "pods", ""},
                                 {"create", "", "pods", ""},
                                 {"delete", "", "pods", ""},
                                 {"create", "", "pods", "binding"},
                                 {"list", "", "nodes", ""},
                                 {"create", "", "secrets", ""},
                                 {"update", "", "secrets", ""},
                                 {"list", "scheduling.k8s.io", "priorityclasses", ""},
                                 {"create", "events.k8s.io", "events", ""}};

std::string name_of(const Right& right) {
  return fmt::format("{} {}{}{}", right.verb, right.resource, *right.subresource ? "/" : "",
                     right.subresource);
}

// Which of these are not granted; `user` empty: to the one who asks.
Result<std::vector<std::string>> refused(kube::Client& client, std::span<const Right> rights,
                                         const std::string& ns, const std::string& user) {
  std::vector<std::string> missing;
  const kube::ResourceType& type = user.empty() ? kSelfReview : kReview;
  for (const Right& right : rights) {
    Value what = Value::object({{"verb", right.verb},
                                {"group", right.group},
                                {"resource", right.resource},
                                {"subresource", right.subresource},
                                {"namespace", ns}});
    Value spec = Value::object({{"resourceAttributes", std::move(what)}});
    if (!user.empty()) spec.set("user", user);
    const Value review = Value::object(
        {{"apiVersion", type.api_version()}, {"kind", type.kind}, {"spec", std::move(spec)}});
    TRY(const Value answer, client.create(type, "", review));
    if (!answer["status"]["allowed"].bool_or(false)) missing.push_back(name_of(right));
  }
  return missing;
}

// None where the operator runs on this machine. Charts of before 2026-11-29 lack the first label,
// and have another name in the second where they were told so (nameOverride).
Result<std::vector<Value>> operator_pods(kube::Client& client, const std::string& ns) {
  auto pods = list_all(client, types::kPod, ns, kOperatorLabel);
  if (!pods.ok() || !pods->empty()) return pods;
  return list_all(client, types::kPod, ns, kOperatorLabelBefore);
}

// An operator that runs in pods has an account; one on this machine uses a kubeconfig.
std::string account_of(const std::vector<Value>& pods) {
  for (const Value& pod : pods) {
    const std::string account = pod["spec"]["serviceAccountName"].string_or("");
    if (!account.empty()) return "system:serviceaccount:" + kube::namespace_of(pod) + ":" + account;
  }
  return "";
}

bool is_true(const Value& object, std::string_view condition) {
  for (const Value& each : object["status"]["conditions"].items())
    if (each["type"].string_view_or("") == condition)
      return each["status"].string_view_or("") == "True";
  return false;
}

// As a server stores it: 1.0 comes back as 1.
bool is_same(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return a.double_or(0) == b.double_or(0);
  if (a.is_array() && b.is_array()) return std::ranges::equal(a.items(), b.items(), is_same);
  if (!a.is_object() || !b.is_object()) return a == b;
  return a.members().size() == b.members().size() &&
         std::ranges::all_of(a.members(), [&](const auto& member) {
           return b.has(member.first) && is_same(member.second, b[member.first]);
         });
}

std::int64_t amount(const Value& quantities, std::string_view resource) {
  const auto parsed = kube::parse_quantity(quantities[resource].string_view_or("0"));
  return parsed.ok() ? *parsed : 0;
}

Duration distance(WallTime a, WallTime b) { return a < b ? b - a : a - b; }

// Whether its holder writes this Lease anew; the time in it is of the holder's clock.
bool is_renewed(Patient& patient, const kube::Key& key, const Value& lease, Duration within) {
  for (Duration waited{0}; waited < within; waited += kLeaseLook) {
    patient.pause(kLeaseLook);
    const auto now = patient.client.get(types::kLease, key);
    if (now.ok() && !is_same((*now)["spec"], lease["spec"])) return true;
  }
  return false;
}

}  // namespace

void check_kinds(Patient& patient, std::vector<Finding>& findings) {
  const std::string apply = "`kubectl apply --server-side -f crds/` of this build (" +
                            std::string(version()) + "), or upgrade the chart";
  std::vector<std::string> names;
  for (const api::Kind& kind : api::kinds()) {
    const std::string name = kind.type.plural + "." + kind.type.group;
    const std::string subject = "kind " + kind.type.kind;
    const auto found = patient.client.get(types::kCustomResourceDefinition, {"", name});
    if (!found.ok()) {
      findings.push_back(found.error().code() == Code::kNotFound
                             ? Finding{Verdict::kWrong, subject, "its CRD is not installed", apply}
                             : unread(subject, found.error()));
      continue;
    }
    const Value& stored = (*found)["spec"]["versions"][std::size_t{0}];
    if (!is_true(*found, "Established")) {
      findings.push_back({Verdict::kWrong, subject, "its CRD is not established",
                          "`kubectl describe crd " + name + "` says why"});
    } else if (stored["name"].string_view_or("") != kind.type.version ||
               !is_same(stored["schema"],
                        api::crd(kind)["spec"]["versions"][std::size_t{0}]["schema"])) {
      findings.push_back(
          {Verdict::kWarning, subject, "its CRD is of another build than this rubatoctl", apply});
    } else {
      names.push_back(kind.type.kind);
    }
  }
  if (!names.empty())
    findings.push_back(
        {Verdict::kOk, "kinds", fmt::format("{} of this build", fmt::join(names, ", ")), ""});
}

void check_rights(Patient& patient, const DoctorChoice& choice, std::vector<Finding>& findings) {
  const std::string subject = "your rights in " + choice.ns;
  const auto missing = refused(patient.client, kOfPeople, choice.ns, "");
  if (!missing.ok()) {  // the API server of `rubatoctl local` asks nobody who he is
    if (missing.error().code() != Code::kNotFound)
      findings.push_back(unread(subject, missing.error()));
  } else if (missing->empty()) {
    findings.push_back({Verdict::kOk, subject, "all that jobs need", ""});
  } else {
    findings.push_back({Verdict::kWrong, subject,
                        fmt::format("you may not {}", fmt::join(*missing, ", ")),
                        "let an administrator bind your user to the chart's role rubato-edit, or "
                        "to `edit`, in this namespace"});
  }
  const auto pods = operator_pods(patient.client, choice.operator_ns);
  const std::string account = pods.ok() ? account_of(*pods) : "";
  if (account.empty()) return;
  const auto lacking = refused(patient.client, kOfOperator, choice.ns, account);
  if (!lacking.ok()) {
    findings.push_back(unread("the operator's rights", lacking.error()));
  } else if (lacking->empty()) {
    findings.push_back({Verdict::kOk, "the operator's rights", "those of the chart", ""});
  } else {
    findings.push_back({Verdict::kWrong, "the operator's rights",
                        fmt::format("{} may not {} in namespace {}", account,
                                    fmt::join(*lacking, ", "), choice.ns),
                        "install the chart with rbac.create=true, with this namespace among "
                        "`namespaces` where that is set; or bind the rules of "
                        "helm/rubato/templates/rbac.yaml to that account"});
  }
}

void check_operator(Patient& patient, const DoctorChoice& choice, std::vector<Finding>& findings) {
  const auto pods = operator_pods(patient.client, choice.operator_ns);
  if (pods.ok()) check_images("operator", *pods, findings);
  const kube::Key key{choice.operator_ns, kOperatorName};
  const auto lease = patient.client.get(types::kLease, key);
  if (!lease.ok()) {
    if (lease.error().code() != Code::kNotFound)
      return findings.push_back(unread("operator", lease.error()));
    return findings.push_back({Verdict::kWrong, "operator",
                               "none has led in namespace " + choice.operator_ns +
                                   ": jobs wait there, and nobody looks at them",
                               std::string(kInstall) + "; --operator-namespace names another one"});
  }
  const Value& spec = (*lease)["spec"];
  const std::string holder = spec["holderIdentity"].string_or("");
  const auto renewed = parse_rfc3339(spec["renewTime"].string_or(""));
  const auto server = patient.server_time();
  const WallTime now = server.ok() ? *server : patient.now;
  const Duration length = std::chrono::seconds(spec["leaseDurationSeconds"].int_or(15));
  const bool is_held = !holder.empty() && renewed.ok();
  const bool is_fresh = is_held && distance(now, *renewed) <= length + kLeaseGrace;
  if (is_fresh) {
    findings.push_back({Verdict::kOk, "operator", holder + " leads", ""});
  } else if (is_held && is_renewed(patient, key, *lease, length)) {
    findings.push_back({Verdict::kWarning, "operator",
                        fmt::format("{} leads; its clock is {} {} the API server's", holder,
                                    human_duration(distance(now, *renewed)),
                                    now < *renewed ? "ahead of" : "behind"),
                        "set the clock of its node by NTP: certificates and tokens are refused "
                        "outside their times"});
  } else {
    findings.push_back(
        {Verdict::kWrong, "operator",
         (!is_held ? std::string("nobody leads")
                   : fmt::format("nobody leads: {} last said so {}", holder,
                                 now < *renewed ? "at " + to_rfc3339(*renewed)
                                                : human_duration(now - *renewed) + " ago")) +
             "; jobs train on, but nothing is started or mended",
         fmt::format("`kubectl -n {} get pods` and the operator's logs; on this machine: "
                     "`rubatoctl local up`",
                     choice.operator_ns)});
  }
}

void check_nodes(Patient& patient, const DoctorChoice& choice, std::vector<Finding>& findings) {
  const auto nodes = list_all(patient.client, types::kNode, "");
  if (!nodes.ok()) return findings.push_back(unread("nodes", nodes.error()));
  std::vector<std::string> resources;
  for (const std::string_view known : kGpuResources) resources.emplace_back(known);
  if (!choice.gpu_resource.empty()) resources = {choice.gpu_resource};
  std::int64_t ready = 0;
  std::map<std::string, std::int64_t> offered;
  for (const Value& node : *nodes) {
    const std::string subject = "node " + kube::name_of(node);
    const bool is_ready = is_true(node, "Ready");
    ready += is_ready ? 1 : 0;
    if (!is_ready)
      findings.push_back({Verdict::kWarning, subject, "is not Ready",
                          "`kubectl describe node " + kube::name_of(node) + "`"});
    const Value& maintenance = node["metadata"]["annotations"][kMaintenanceAt];
    if (maintenance.is_string() && !parse_rfc3339(maintenance.string_view_or("")).ok())
      findings.push_back(
          {Verdict::kWarning, subject,
           fmt::format("its annotation {} is no time: no job leaves it before", kMaintenanceAt),
           "give it one as 2026-12-01T10:00:00Z is (docs/install.md)"});
    std::int64_t here = 0;
    for (const std::string& resource : resources) {
      const std::int64_t usable = amount(node["status"]["allocatable"], resource);
      const std::int64_t built_in = amount(node["status"]["capacity"], resource);
      if (is_ready) offered[resource] += usable;
      here += usable;
      if (usable < built_in)
        findings.push_back({Verdict::kWarning, subject,
                            fmt::format("{} of {} {} {} healthy", usable, built_in, resource,
                                        agreeing(usable, "is", "are")),
                            "look at the node's GPUs and at the log of its device plugin"});
    }
    if (here == 0 && node["metadata"]["labels"][kGpuPresent].string_view_or("") == "true")
      findings.push_back(
          {Verdict::kWrong, subject, "holds GPUs, and offers none",
           "install the device plugin of the GPUs, or see why it does not run there"});
  }
  std::erase_if(offered, [](const auto& each) { return each.second == 0; });
  if (nodes->empty())
    return findings.push_back({Verdict::kWrong, "GPUs", "the cluster has no nodes",
                               "add some; on this machine: `rubatoctl node add`"});
  if (offered.empty())
    return findings.push_back(
        {Verdict::kWrong, "GPUs",
         fmt::format("of {} Ready none offers {}", counted(ready, "node", "that is", "that are"),
                     fmt::join(resources, " or ")),
         "install the device plugin of your GPUs; --gpu-resource names another resource, which "
         "the operator must know too (chart: scheduler.gpuResource)"});
  std::vector<std::string> words;
  words.reserve(offered.size());
  for (const auto& [resource, number] : offered)
    words.push_back(fmt::format("{} {}", number, resource));
  findings.push_back({Verdict::kOk, "GPUs",
                      fmt::format("{} on {}", fmt::join(words, ", "), counted(ready, "node")), ""});
}

void check_policies(Patient& patient, std::vector<Finding>& findings) {
  const std::pair<const kube::ResourceType&, std::string_view> looked_at[] = {
      {api::kSchedulingPolicy, api::condition::kActive},
      {api::kTrainingQueue, api::condition::kEnforced}};
  for (const auto& [type, condition] : looked_at) {
    const auto objects = list_all(patient.client, type, "");
    if (!objects.ok()) {
      if (objects.error().code() != Code::kNotFound)  // of a kind that is not installed
        findings.push_back(unread(type.plural, objects.error()));
      continue;
    }
    for (const Value& object : *objects) {
      for (const Value& seen : object["status"]["conditions"].items()) {
        if (seen["type"].string_view_or("") != condition ||
            seen["status"].string_view_or("") != "False")
          continue;
        const std::string reason = seen["reason"].string_or("");
        findings.push_back({Verdict::kWarning, type.kind + " " + kube::name_of(object),
                            fmt::format("{}: {}", reason, seen["message"].string_or("")),
                            "docs/runbook.md: " + reason});
      }
    }
  }
}

void check_clocks(Patient& patient, std::vector<Finding>& findings) {
  const auto server = patient.server_time();
  if (!server.ok()) return;
  const Duration skew = patient.now - *server;
  const Duration apart = distance(patient.now, *server);
  bool agree = true;
  if (apart > kSkewNoticed) {
    agree = false;
    findings.push_back({apart > kSkewWrong ? Verdict::kWrong : Verdict::kWarning,
                        "clock of this machine",
                        fmt::format("is {} {} the API server's", human_duration(apart),
                                    skew > Duration{0} ? "ahead of" : "behind"),
                        "set it by NTP (chrony, systemd-timesyncd): certificates and tokens are "
                        "refused outside their times"});
  }
  const auto leases = list_all(patient.client, types::kLease, kNodeLeases);
  const auto nodes = list_all(patient.client, types::kNode, "");
  if (!leases.ok() || !nodes.ok()) return;
  for (const Value& lease : *leases) {
    const auto renewed = parse_rfc3339(lease["spec"]["renewTime"].string_or(""));
    const auto node = std::ranges::find_if(
        *nodes, [&](const Value& each) { return kube::name_of(each) == kube::name_of(lease); });
    if (!renewed.ok() || node == nodes->end()) continue;
    const std::string subject = "clock of node " + kube::name_of(lease);
    if (*renewed - *server > kSkewNoticed) {
      agree = false;
      findings.push_back({Verdict::kWarning, subject,
                          human_duration(*renewed - *server) + " ahead of the API server's",
                          "set it by NTP"});
    } else if (is_true(*node, "Ready") && *server - *renewed > kNodeLeaseOverdue) {
      agree = false;
      findings.push_back({Verdict::kWarning, subject,
                          "its Lease is " + human_duration(*server - *renewed) +
                              " old though it is Ready: its clock is behind, or it has just died",
                          "set it by NTP; `kubectl describe node " + kube::name_of(lease) + "`"});
    }
  }
  if (agree) findings.push_back({Verdict::kOk, "clocks", "agree", ""});
}

}  // namespace rubato::ctl
