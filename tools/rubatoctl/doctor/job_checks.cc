// One job: its state and why, its pods' images, where its data and its checkpoints lie.
#include "operator/api/resources.h"
#include "operator/api/training_job.h"
#include "tools/rubatoctl/doctor/doctor.h"
#include "tools/rubatoctl/explain.h"
#include "tools/rubatoctl/manifests.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include <fmt/core.h>

namespace rubato::ctl {

using json::Value;
namespace types = kube::types;

namespace {

constexpr const char* kRunbook = "docs/runbook.md";
// States in which nothing has to be done.
const std::set<std::string, std::less<>> kFine{"Running",   "Complete",   "Starting",   "Rescaling",
                                               "Suspended", "Suspending", "Terminating"};
// Conditions that warn while they are True.
constexpr std::string_view kWarnings[] = {"Degraded", "CheckpointNotShared", "CheckpointUnusable",
                                          "Diverged"};
// Reasons of a waiting container that do not go away by themselves.
const std::map<std::string, const char*, std::less<>> kStuck{
    {"ImagePullBackOff",
     "push the image, correct its name in the template, or add imagePullSecrets"},
    {"ErrImagePull", "push the image, correct its name in the template, or add imagePullSecrets"},
    {"ErrImageNeverPull", "load the image into the node, or set imagePullPolicy to IfNotPresent"},
    {"InvalidImageName", "correct the image's name in the template"},
    {"CreateContainerConfigError", "create the Secret or ConfigMap that the template names"},
    {"CrashLoopBackOff", "`kubectl logs --previous` of the pod says why it ended"}};

// The volume mounted where `path` lies: the longest mount that holds it. Null: the container's own
// disk.
const Value* volume_at(const Value& job, const std::string& path) {
  const Value* mount = nullptr;
  std::size_t longest = 0;
  for (const Value& each : worker_of(job)["volumeMounts"].items()) {
    const std::string place = each["mountPath"].string_or("");
    if (place.empty() || place.size() < longest) continue;
    if (path != place && !path.starts_with(place.ends_with('/') ? place : place + "/")) continue;
    mount = &each;
    longest = place.size();
  }
  if (mount == nullptr) return nullptr;
  for (const Value& volume : job["spec"]["template"]["spec"]["volumes"].items())
    if (volume["name"] == (*mount)["name"]) return &volume;
  return nullptr;
}

bool is_shared(const Value& claim) {
  for (const Value& mode : claim["spec"]["accessModes"].items()) {
    const std::string_view word = mode.string_view_or("");
    if (word == "ReadWriteMany") return true;
  }
  return false;
}

class JobCheck {
 public:
  JobCheck(Patient& patient, const Value& job, std::vector<Finding>& findings)
      : patient_(patient),
        job_(job),
        findings_(findings),
        ns_(kube::namespace_of(job)),
        subject_("job " + ns_ + "/" + kube::name_of(job)) {}

  void run() {
    state();
    const auto pods = list_all(patient_.client, types::kPod, ns_,
                               fmt::format("{}={}", api::kLabelJob, kube::name_of(job_)));
    if (pods.ok()) check_images(subject_, *pods, findings_);
    const Value& training = job_["spec"]["training"];
    place("data", training["data"]["path"].string_or(""), false);
    place("checkpoints", training["checkpoint"]["path"].string_or(""), true);
  }

 private:
  void say(Verdict verdict, const std::string& text, const std::string& mend) {
    findings_.push_back({verdict, subject_, text, mend});
  }

  std::string message_of(std::string_view reason) const {
    for (const Value& condition : job_["status"]["conditions"].items())
      if (condition["reason"].string_view_or("") == reason)
        return condition["message"].string_or("");
    return "";
  }

  void state() {
    const std::string state = job_["status"]["state"].string_or("");
    const std::string reason = job_["status"]["reason"].string_or("");
    if (state.empty()) {
      const std::string whose = job_["metadata"]["labels"][api::kLabelInstallation].string_or("");
      say(Verdict::kWarning,
          "no operator has looked at it yet" +
              (whose.empty() ? "" : fmt::format("; its label says that it is of \"{}\"", whose)),
          whose.empty() ? "see what this report says of the operator"
                        : "the operator's --installation (value `installation` of the chart) must "
                          "be that name");
    } else if (kFine.contains(state)) {
      say(Verdict::kOk, reason.empty() ? state : fmt::format("{} ({})", state, reason), "");
    } else {
      const std::string why = message_of(reason);
      say(state == "Failed" ? Verdict::kWrong : Verdict::kWarning,
          fmt::format("{} ({}){}{}", state, reason, why.empty() ? "" : ": ", why),
          fmt::format("{}: {}", kRunbook, reason));
    }
    for (const Value& condition : job_["status"]["conditions"].items()) {
      const std::string_view type = condition["type"].string_view_or("");
      if (condition["status"].string_view_or("") != "True") continue;
      if (std::ranges::find(kWarnings, type) == std::end(kWarnings)) continue;
      say(Verdict::kWarning, fmt::format("{}: {}", type, condition["message"].string_or("")),
          fmt::format("{}: {}", kRunbook, type));
    }
    const auto decoded = api::decode_training_job(job_);
    if (!decoded.ok()) return;  // of another build, which check_kinds() names
    for (const Avoidance& avoided : avoidances(decoded->status.avoided_nodes, patient_.now))
      say(Verdict::kWarning, "avoids " + avoided.text,
          fmt::format("{}: {}", kRunbook, avoided.reason));
  }

  // What lies at `path`: of a job that is over it does not matter any more.
  void place(const std::string& what, const std::string& path, bool must_last) {
    const std::string state = job_["status"]["state"].string_or("");
    if (path.empty() || state == "Complete" || state == "Failed") return;
    const Value* volume = volume_at(job_, path);
    const std::string at = fmt::format("{} at {}", what, path);
    if (volume == nullptr) {
      if (must_last)
        say(Verdict::kWrong, at + " lie on no volume: they are gone with the pod",
            "mount a PersistentVolumeClaim that all nodes share (ReadWriteMany) there");
      return;  // data may be part of the image
    }
    if (!(*volume)["emptyDir"].is_null()) {
      say(Verdict::kWrong,
          at + (must_last ? " lie" : " lies") +
              " in an emptyDir, which begins empty and goes with its pod",
          "mount a PersistentVolumeClaim there");
    } else if (!(*volume)["hostPath"].is_null()) {
      if (many_nodes())
        say(Verdict::kWarning,
            fmt::format("{} {} in {} of each node: does every node see the same?", at,
                        must_last ? "lie" : "lies", (*volume)["hostPath"]["path"].string_or("")),
            "a directory that is the same everywhere (NFS), or a PersistentVolumeClaim with "
            "ReadWriteMany; or keep the job on one node");
    } else if ((*volume)["persistentVolumeClaim"].is_object()) {
      claim(at, (*volume)["persistentVolumeClaim"]["claimName"].string_or(""), must_last);
    }
  }

  void claim(const std::string& at, const std::string& name, bool must_last) {
    const auto found = patient_.client.get(types::kPersistentVolumeClaim, {ns_, name});
    if (!found.ok()) {
      if (found.error().code() != Code::kNotFound)
        return findings_.push_back(unread("claim " + ns_ + "/" + name, found.error()));
      return say(
          Verdict::kWrong, fmt::format("{}: PersistentVolumeClaim {} does not exist", at, name),
          fmt::format("create it in namespace {}; `rubatoctl local data` does on this machine",
                      ns_));
    }
    const std::string phase = (*found)["status"]["phase"].string_or("");
    if (phase == "Lost")
      say(Verdict::kWrong, fmt::format("{}: the volume of claim {} is lost", at, name),
          "restore the PersistentVolume, or make the claim anew");
    else if (phase == "Pending" && job_["status"]["state"].string_view_or("") != "Running")
      say(Verdict::kWarning, fmt::format("{}: claim {} is not bound yet", at, name),
          fmt::format("`kubectl -n {} describe pvc {}` says what it waits for: a StorageClass, a "
                      "volume, or the first pod",
                      ns_, name));
    if (must_last && many_nodes() && !is_shared(*found))
      say(Verdict::kWarning,
          fmt::format("{}: claim {} is not ReadWriteMany: pods of other nodes cannot mount it", at,
                      name),
          "a StorageClass that shares (NFS, CephFS), or no more gpus.max than gpus.perPod");
  }

  bool many_nodes() const {
    const Value& gpus = job_["spec"]["gpus"];
    return gpus["max"].int_or(1) > gpus["perPod"].int_or(1);  // more than one pod
  }

  Patient& patient_;
  const Value& job_;
  std::vector<Finding>& findings_;
  std::string ns_;
  std::string subject_;
};

}  // namespace

void check_images(const std::string& subject, const std::vector<Value>& pods,
                  std::vector<Finding>& findings) {
  std::set<std::string> said;
  for (const Value& pod : pods) {
    for (const char* list : {"initContainerStatuses", "containerStatuses"}) {
      for (const Value& container : pod["status"][list].items()) {
        const Value& waiting = container["state"]["waiting"];
        const auto stuck = kStuck.find(waiting["reason"].string_view_or(""));
        if (stuck == kStuck.end()) continue;
        const std::string image = container["image"].string_or("");
        if (!said.insert(stuck->first + image).second) continue;
        findings.push_back(
            {Verdict::kWrong, subject,
             fmt::format("pod {} on node {}: {} ({})", kube::name_of(pod),
                         pod["spec"]["nodeName"].string_or("?"), stuck->first, image),
             stuck->second});
      }
    }
  }
}

void check_jobs(Patient& patient, const DoctorChoice& choice, std::vector<Finding>& findings) {
  if (!choice.job.empty()) {
    const auto job = patient.client.get(api::kTrainingJob, {choice.ns, choice.job});
    if (!job.ok())
      return findings.push_back(
          {Verdict::kWrong, "job " + choice.ns + "/" + choice.job,
           job.error().code() == Code::kNotFound ? "does not exist" : job.error().what(),
           "`rubatoctl get tj -A` lists all jobs"});
    return JobCheck(patient, *job, findings).run();
  }
  const auto jobs = list_all(patient.client, api::kTrainingJob, choice.ns);
  if (!jobs.ok()) return findings.push_back(unread("jobs of " + choice.ns, jobs.error()));
  for (const Value& job : *jobs) JobCheck(patient, job, findings).run();
  if (jobs->empty())
    findings.push_back({Verdict::kOk, "jobs", "none in namespace " + choice.ns, ""});
}

}  // namespace rubato::ctl
