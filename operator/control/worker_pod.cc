#include "operator/control/worker_pod.h"

#include "operator/api/resources.h"
#include "operator/api/worker_container.h"
#include "operator/control/pod_security.h"

#include <fmt/core.h>

namespace rubato::control {

namespace {

using json::Value;

constexpr const char* kSecretVolume = "rubato-job";

constexpr const char* kMetricsPort = "rubato-metrics";

constexpr const char* kSharedMemoryVolume = "rubato-shm";
constexpr const char* kSharedMemory = "/dev/shm";

Value plain_env(const char* name, std::string value) {
  return Value::object({{"name", name}, {"value", std::move(value)}});
}

Value field_env(const char* name, const char* path) {
  return Value::object(
      {{"name", name},
       {"valueFrom", Value::object({{"fieldRef", Value::object({{"fieldPath", path}})}})}});
}

// Sets the item of `list` whose "name" equals the new item's.
void put_named(Value& list, Value item) {
  const std::string name = item["name"].string_or("");
  if (list.is_null()) list = Value::array();
  for (Value& old : list.mutable_items()) {
    if (old["name"].string_view_or("") == name) {
      old = std::move(item);
      return;
    }
  }
  list.push_back(std::move(item));
}

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ",") + part;
  return text;
}

// What the person's container would run; the agent has it started.
std::string program_text(const Value& container) {
  Value words = Value::array();
  for (const char* part : {"command", "args"})
    for (const Value& word : container[part].items()) words.push_back(word);
  return json::dump(words);
}

void complete_container(Value& container, const api::TrainingJob& job, const Config& config) {
  const bool runs_program = job.spec.runtime != api::Runtime::kBuiltin;
  const std::string program = runs_program ? program_text(container) : "";
  if (runs_program) container.erase("args");
  if (runs_program || container["command"].is_null()) {
    container.set("command", Value::array({config.agent_command}));
  }
  Value& env = container.at("env");
  if (runs_program) {
    put_named(env, plain_env("RUBATO_COMMAND", program));
    put_named(env, plain_env("RUBATO_RUNTIME", std::string(api::name_of(job.spec.runtime))));
    put_named(env, plain_env("RUBATO_MAX_RESTARTS",
                             std::to_string(job.spec.fault_tolerance.max_restarts)));
  }
  put_named(env, plain_env("RUBATO_JOB", job.meta.ns + "/" + job.meta.name));
  put_named(env, plain_env("RUBATO_JOB_UID", job.meta.uid));
  put_named(env, plain_env("RUBATO_GRACE_SECONDS", std::to_string(job.spec.grace_period_seconds)));
  put_named(env, plain_env("RUBATO_SLOTS", std::to_string(job.spec.gpus.per_pod)));
  put_named(env, plain_env("RUBATO_COORDINATORS", joined(config.coordinator_addresses)));
  put_named(env, plain_env("RUBATO_SECRET_DIR", config.secret_mount));
  if (config.worker_metrics_port > 0)
    put_named(env, plain_env("RUBATO_METRICS_PORT", std::to_string(config.worker_metrics_port)));
  put_named(env, field_env("RUBATO_POD_NAME", "metadata.name"));
  put_named(env, field_env("RUBATO_POD_UID", "metadata.uid"));
  put_named(env, field_env("RUBATO_POD_IP", "status.podIP"));
  put_named(env, field_env("RUBATO_NODE", "spec.nodeName"));
  put_named(container.at("volumeMounts"),
            Value::object(
                {{"name", kSecretVolume}, {"mountPath", config.secret_mount}, {"readOnly", true}}));
  // From here on `env` is no more: another member may have moved it.
  if (config.worker_metrics_port > 0)
    put_named(container.at("ports"), Value::object({{"name", kMetricsPort},
                                                    {"containerPort", config.worker_metrics_port},
                                                    {"protocol", "TCP"}}));
  const std::string gpus = std::to_string(job.spec.gpus.per_pod);
  Value& resources = container.at("resources");
  resources.at("requests").set(config.gpu_resource, gpus);
  resources.at("limits").set(config.gpu_resource, gpus);
}

void set_priority_class(Value& spec, const std::string& name) {
  if (name.empty())
    spec.erase("priorityClassName");
  else
    spec.set("priorityClassName", name);
}

// What the installation says of all worker pods, where a template is silent.
void apply_defaults(Value& spec, std::size_t worker, const Config& config) {
  if (!config.worker_runtime_class.empty() && spec["runtimeClassName"].is_null())
    spec.set("runtimeClassName", config.worker_runtime_class);
  if (config.worker_shared_memory.empty()) return;
  for (const Value& mount : spec["containers"][worker]["volumeMounts"].items())
    if (mount["mountPath"].string_view_or("") == kSharedMemory) return;
  put_named(
      spec.at("volumes"),
      Value::object({{"name", kSharedMemoryVolume},
                     {"emptyDir", Value::object({{"medium", "Memory"},
                                                 {"sizeLimit", config.worker_shared_memory}})}}));
  put_named(spec.at("containers").at(worker).at("volumeMounts"),
            Value::object({{"name", kSharedMemoryVolume}, {"mountPath", kSharedMemory}}));
}

}  // namespace

std::string job_secret_name(const api::TrainingJob& job) {
  return api::secret_name(job.meta.name) + "-" + job.meta.uid.substr(0, 8);
}

json::Value worker_pod(const api::TrainingJob& job, const api::AllocatedPod& allocated,
                       const Config& config) {
  const Value& pod_template = job.spec.pod_template;
  Value metadata = Value::object();
  if (pod_template["metadata"]["labels"].is_object()) {
    metadata.set("labels", pod_template["metadata"]["labels"]);
  }
  if (pod_template["metadata"]["annotations"].is_object()) {
    metadata.set("annotations", pod_template["metadata"]["annotations"]);
  }
  metadata.set("name", allocated.name);
  metadata.set("namespace", job.meta.ns);
  Value& labels = metadata.at("labels");
  labels.set(api::kLabelJob, job.meta.name);
  labels.set(api::kLabelOrdinal, std::to_string(allocated.ordinal));
  labels.set("app.kubernetes.io/name", "rubato-worker");
  labels.set("app.kubernetes.io/instance", job.meta.name);
  labels.set("app.kubernetes.io/managed-by", "rubato");
  metadata.set("ownerReferences", Value::array({Value::object({{"apiVersion", api::kApiVersion},
                                                               {"kind", "TrainingJob"},
                                                               {"name", job.meta.name},
                                                               {"uid", job.meta.uid},
                                                               {"controller", true},
                                                               {"blockOwnerDeletion", true}})}));

  Value spec = pod_template["spec"].is_object() ? pod_template["spec"] : Value::object();
  spec.set("schedulerName", config.scheduler_name);
  spec.set("restartPolicy", "Never");  // the agent repairs its workers; a pod has one life
  spec.set("terminationGracePeriodSeconds", job.spec.grace_period_seconds);
  spec.set("enableServiceLinks", false);
  spec.set("automountServiceAccountToken", false);  // no API token in a worker
  const auto& tried = job.status.priority;
  set_priority_class(spec, tried ? tried->class_name : job.spec.priority_class_name);
  put_named(spec.at("volumes"),
            Value::object({{"name", kSecretVolume},
                           {"secret", Value::object({{"secretName", job_secret_name(job)},
                                                     {"defaultMode", 0440}})}}));
  if (spec["containers"].size() > 0) {
    const std::size_t worker = api::worker_container(spec);
    complete_container(spec.at("containers").at(worker), job, config);
    apply_defaults(spec, worker, config);
    apply_pod_security(spec, worker);
  }
  return Value::object({{"apiVersion", "v1"},
                        {"kind", "Pod"},
                        {"metadata", std::move(metadata)},
                        {"spec", std::move(spec)}});
}

json::Value sample_pod(const api::TrainingJob& job, const Config& config) {
  api::AllocatedPod first;
  first.name = api::pod_name(job.meta.name, 0);
  json::Value pod = worker_pod(job, first, config);
  set_priority_class(pod.at("spec"), job.spec.priority_class_name);
  return pod;
}

std::string worker_image(const api::TrainingJob& job) {
  const Value& spec = job.spec.pod_template["spec"];
  return spec["containers"][api::worker_container(spec)]["image"].string_or("");
}

std::string start_problem(const kube::Pod& pod) {
  if (pod.phase != kube::PodPhase::kPending) return "";
  for (const auto& container : pod.containers) {
    const bool as_usual = container.reason.empty() || container.reason == "ContainerCreating" ||
                          container.reason == "PodInitializing";
    if (container.state == kube::ContainerStatus::State::kWaiting && !as_usual)
      return container.reason;
  }
  return "";
}

}  // namespace rubato::control
