#include "tools/rubatoctl/demo/story.h"

#include "operator/api/worker_container.h"
#include "tools/rubatoctl/manifests.h"

#include <fmt/core.h>

namespace rubato::ctl {

using json::Value;

namespace {

constexpr const char* kAlone = "-alone";
constexpr std::int64_t kOpenEnd = 50;  // times as many steps as are wanted

// The claim mounted where `path` lies, and the rest of the path.
Result<std::pair<std::string, std::string>> claim_at(const Value& job, const std::string& path) {
  for (const Value& mount : worker_of(job)["volumeMounts"].items()) {
    const std::string place = mount["mountPath"].string_or("");
    if (path != place && !path.starts_with(place + "/")) continue;
    for (const Value& volume : job["spec"]["template"]["spec"]["volumes"].items())
      if (volume["name"] == mount["name"] && volume["persistentVolumeClaim"].is_object())
        return std::pair(volume["persistentVolumeClaim"]["claimName"].string_or(""),
                         path.size() > place.size() ? path.substr(place.size() + 1) : "");
  }
  return Error(Code::kInvalid, path + " is on no volume of a PersistentVolumeClaim");
}

void rename_claim(Value& job, const std::string& from, const std::string& to) {
  for (Value& volume : job.at("spec").at("template").at("spec").at("volumes").mutable_items())
    if (volume["persistentVolumeClaim"]["claimName"].string_view_or("") == from)
      volume.at("persistentVolumeClaim").set("claimName", to);
}

void set_stop(Value& job, std::int64_t steps) {
  job.at("spec").at("training").at("stop").set("steps", steps);
}

void set_gpus(Value& job, int min, int max) {
  job.at("spec").at("gpus").set("min", min).set("max", max);
}

// The one that worker_of() names, to be changed.
Value& container_of(Value& job) {
  Value& pod = job.at("spec").at("template").at("spec");
  return pod.at("containers").at(api::worker_container(pod));
}

void set_variable(Value& container, const std::string& name, const std::string& value) {
  for (Value& variable : container.at("env").mutable_items())
    if (variable["name"] == name) {
      variable.set("value", value);
      return;
    }
  container.at("env").push_back(Value::object({{"name", name}, {"value", value}}));
}

}  // namespace

Result<DemoStory> DemoStory::make(std::vector<Value> manifests, std::int64_t steps) {
  DemoStory story;
  story.manifests_ = std::move(manifests);
  bool found = false;
  for (std::size_t i = 0; i < story.manifests_.size(); ++i) {
    if (story.manifests_[i]["kind"].string_view_or("") != "TrainingJob") continue;
    story.at_ = i;
    found = true;
  }
  if (!found) return Error(Code::kInvalid, "no TrainingJob in the manifest");
  Value& job = story.manifests_[story.at_];
  if (steps > 0) set_stop(job, steps);
  const Value& training = job["spec"]["training"];
  DemoJob& about = story.job_;
  about.name = job["metadata"]["name"].string_or("");
  about.ns = job["metadata"]["namespace"].string_or("default");
  about.steps = training["stop"]["steps"].int_or(0);
  about.is_pytorch = job["spec"]["runtime"].string_view_or("") == "pytorch";
  about.tokens_per_step =
      training["batch"]["global"].int_or(0) * training["batch"]["sequenceLength"].int_or(1);
  const Value& worker = worker_of(job);
  const Value& data_path = about.is_pytorch ? worker["args"][0] : training["data"]["path"];
  TRY(const auto data, claim_at(job, data_path.string_or("")));
  TRY(const auto checkpoints, claim_at(job, training["checkpoint"]["path"].string_or("")));
  std::tie(about.data_claim, about.data_file) = data;
  std::tie(about.checkpoint_claim, about.checkpoint_folder) = checkpoints;
  if (about.is_pytorch) {
    TRY(const auto script, claim_at(job, worker["command"][1].string_or("")));
    if (script.first != about.data_claim)
      return Error(Code::kInvalid, "the demo wants the script and its data in one claim");
    about.script_file = script.second;
    about.model = "a PyTorch script, " + about.script_file;
  } else {
    about.model =
        fmt::format("{}, {} layers of {}", training["model"]["family"].string_or(""),
                    training["model"]["layers"].int_or(0), training["model"]["hidden"].int_or(0));
  }
  if (about.steps <= 0) return Error(Code::kInvalid, "spec.training.stop.steps is not set");
  // Of both runs the same, wherever they end.
  if (!about.is_pytorch && training["optimizer"]["schedule"]["decaySteps"].is_null())
    job.at("spec").at("training").at("optimizer").at("schedule").set("decaySteps", about.steps);
  return story;
}

void DemoStory::set_python(const PythonPlace& place) {
  Value& container = container_of(manifests_[at_]);
  container.at("command").at(std::size_t{0}) = place.interpreter;
  set_variable(container, "PYTHONPATH", place.package);
  set_variable(container, "RUBATO_LIBRARY", place.library);
}

std::vector<Value> DemoStory::disturbed(const std::string& testing_worker) const {
  std::vector<Value> out = manifests_;
  set_gpus(out[at_], 2, 4);
  set_stop(out[at_], kOpenEnd * job_.steps);
  if (testing_worker.empty()) return out;
  const std::string folder =
      manifests_[at_]["spec"]["training"]["checkpoint"]["path"].string_or("") + "/faults/";
  Value& container = container_of(out[at_]);
  Value node = Value::object(
      {{"name", "DEMO_NODE"},
       {"valueFrom",
        Value::object({{"fieldRef", Value::object({{"fieldPath", "spec.nodeName"}})}})}});
  container.at("env").push_back(std::move(node));
  set_variable(container, job_.is_pytorch ? "RUBATO_LIBRARY" : "RUBATO_WORKER", testing_worker);
  set_variable(container, "RUBATO_FAULT_FILE", folder + "$(DEMO_NODE)");
  return out;
}

DemoJob DemoStory::undisturbed_job() const {
  DemoJob job = job_;
  job.name += kAlone;
  if (job.data_claim == job.checkpoint_claim) job.data_claim += kAlone;
  job.checkpoint_claim += kAlone;
  return job;
}

std::vector<Value> DemoStory::undisturbed() const {
  std::vector<Value> out;
  const DemoJob alone = undisturbed_job();
  for (const Value& manifest : manifests_) {
    if (manifest["kind"].string_view_or("") != "PersistentVolumeClaim" ||
        manifest["metadata"]["name"].string_view_or("") != job_.checkpoint_claim)
      continue;
    Value claim = manifest;
    claim.at("metadata").set("name", alone.checkpoint_claim);
    out.push_back(std::move(claim));
  }
  Value job = manifests_[at_];
  job.at("metadata").set("name", alone.name);
  set_gpus(job, 1, 1);
  set_stop(job, job_.steps);
  rename_claim(job, job_.checkpoint_claim, alone.checkpoint_claim);
  out.push_back(std::move(job));
  return out;
}

}  // namespace rubato::ctl
