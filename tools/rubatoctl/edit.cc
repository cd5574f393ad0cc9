// Small changes: suspend, resume, scale, cordon, drain; and waiting for a job.
#include "operator/api/conditions.h"
#include "operator/api/resources.h"
#include "operator/api/training_job.h"
#include "tools/rubatoctl/objects.h"
#include "tools/rubatoctl/resources.h"

#include <algorithm>
#include <cctype>

#include <fmt/core.h>

namespace rubato::ctl {

using json::Value;

namespace {

constexpr auto kChangePoll = 200ms;
constexpr auto kEvictionPoll = 1s;

}  // namespace

Result<std::string> job_named(const std::string& text) {
  const auto slash = text.find('/');
  if (slash == std::string::npos) return text;
  const ReadPath no_server = [](const std::string&) {
    return Result<std::string>(Error(Code::kUnavailable, "nobody is asked"));
  };
  const auto type = resource_named(no_server, text.substr(0, slash));
  const bool is_named = slash + 1 < text.size();
  if (!type.ok() || !(*type == api::kTrainingJob) || !is_named)
    return Error(Code::kInvalid,
                 "\"" + text + "\" is no TrainingJob: name one, as NAME or as tj/NAME");
  return text.substr(slash + 1);
}

Status patch_job(Session& session, const std::string& job, const Value& spec) {
  const auto patched =
      session.client().patch(api::kTrainingJob, {session.ns(), job}, kube::PatchType::kMerge,
                             Value::object({{"spec", spec}}),
                             {.field_manager = "rubatoctl", .field_validation = "Strict"});
  return patched.ok() ? ok() : Status(advised(patched.error()));
}

Status set_suspended(Session& session, const std::string& job, bool suspended) {
  TRY_OK(patch_job(session, job, Value::object({{"suspend", suspended}})));
  fmt::print("trainingjob.rubato.dev/{} {}\n", job, suspended ? "suspended" : "resumed");
  return ok();
}

Status scale(Session& session, const std::string& job, int max, int min) {
  Value gpus = Value::object();
  if (max >= 0) gpus.set("max", max);
  if (min >= 0) gpus.set("min", min);
  if (gpus.size() == 0)
    return Error(Code::kInvalid, "say how many: `rubatoctl scale " + job + " --max 4`");
  TRY_OK(patch_job(session, job, Value::object({{"gpus", std::move(gpus)}})));
  fmt::print("trainingjob.rubato.dev/{} scaled\n", job);
  return ok();
}

Result<std::string> condition_named(std::string_view text) {
  const auto is_same = [](std::string_view a, std::string_view b) {
    return std::ranges::equal(
        a, b, [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
  };
  constexpr std::string_view kPrefix = "condition=";
  constexpr std::string_view kSuffix = "=true";
  std::string_view name = text;
  if (is_same(name.substr(0, kPrefix.size()), kPrefix)) name.remove_prefix(kPrefix.size());
  if (name.size() > kSuffix.size() && is_same(name.substr(name.size() - kSuffix.size()), kSuffix))
    name.remove_suffix(kSuffix.size());
  std::string known;
  for (const api::ConditionAbout& condition : api::condition_types()) {
    if (is_same(condition.type, name)) return std::string(condition.type);
    known += (known.empty() ? "" : ", ") + std::string(condition.type);
  }
  return Error(Code::kInvalid,
               fmt::format("a job has no condition \"{}\"; it has {}", text, known));
}

namespace {

// Whether the condition is True; an error where it never will be.
Result<bool> is_met(const Value& job, std::string_view condition) {
  const Value* end = nullptr;
  for (const Value& item : job["status"]["conditions"].items()) {
    if (item["status"].string_view_or("") != "True") continue;
    const std::string_view type = item["type"].string_view_or("");
    if (type == condition) return true;
    if (type == api::condition::kFailed || type == api::condition::kComplete) end = &item;
  }
  if (end == nullptr) return false;
  if ((*end)["type"].string_view_or("") == api::condition::kFailed)
    return Error(Code::kInvalid, "the job failed: " + (*end)["message"].string_or(""));
  return Error(Code::kInvalid, fmt::format("the job is Complete: {} will not be met", condition));
}

}  // namespace

Status wait_for(kube::Client& client, Executor& executor, const kube::Key& job,
                const std::string& wanted, std::chrono::seconds timeout) {
  TRY(const std::string condition, condition_named(wanted));
  const MonoTime deadline = executor.now() + timeout;
  while (true) {
    const auto object = client.get(api::kTrainingJob, job);
    if (object.ok()) {
      TRY(const bool met, is_met(*object, condition));
      if (met) {
        fmt::print("trainingjob.rubato.dev/{} condition met\n", job.name);
        return ok();
      }
    } else if (retry_class(object.error().code()) == Retry::kNever) {
      return advised(object.error());
    }
    if (executor.now() >= deadline) {
      if (!object.ok()) return advised(object.error());
      return Error(Code::kTimeout, fmt::format("condition {} is not met after {} s\n  What to do: "
                                               "`rubatoctl describe tj {}` says why",
                                               condition, timeout.count(), job.name));
    }
    executor.sleep_for(kChangePoll);
  }
}

Status cordon(kube::Client& client, const std::string& node, bool unschedulable) {
  Value spec = Value::object({{"unschedulable", nullptr}});
  if (unschedulable) spec.set("unschedulable", true);
  const auto patched =
      client.patch(kube::types::kNode, {"", node}, kube::PatchType::kMerge,
                   Value::object({{"spec", spec}}), {.field_manager = "rubatoctl"});
  if (!patched.ok()) return advised(patched.error());
  fmt::print("node/{} {}\n", node, unschedulable ? "cordoned" : "uncordoned");
  return ok();
}

namespace {

// Why a drain leaves the pod where it is; empty: it has to go.
std::string stays_because(const Value& pod) {
  const std::string_view phase = pod["status"]["phase"].string_view_or("");
  if (phase == "Succeeded" || phase == "Failed") return "it has ended";
  // Its kubelet runs it from a file, whatever the API server says.
  if (pod["metadata"]["annotations"].has("kubernetes.io/config.mirror")) return "static pod";
  for (const Value& owner : pod["metadata"]["ownerReferences"].items()) {
    // Its controller takes no notice of a cordon, and would make it again at once.
    if (owner["controller"].bool_or(false) && owner["kind"].string_view_or("") == "DaemonSet")
      return "DaemonSet";
  }
  return "";
}

Status evict(kube::Client& client, Executor& executor, const kube::Key& pod, MonoTime deadline) {
  const Value eviction =
      Value::object({{"apiVersion", "policy/v1"},
                     {"kind", "Eviction"},
                     {"metadata", Value::object({{"name", pod.name}, {"namespace", pod.ns}})}});
  while (true) {
    const auto evicted = client.create(kube::types::kPod, pod.ns, eviction,
                                       {.subresource = "eviction", .field_manager = "rubatoctl"});
    if (evicted.ok() || evicted.error().code() == Code::kNotFound) return ok();
    // A disruption budget that asks to wait (429) may give in; two budgets for one pod (500) never.
    const Code code = evicted.error().code();
    const bool may_wait = retry_class(code) != Retry::kNever && code != Code::kInternal;
    if (!may_wait || executor.now() >= deadline) return advised(evicted.error());
    executor.sleep_for(kEvictionPoll);
  }
}

}  // namespace

Status drain(kube::Client& client, Executor& executor, const std::string& node,
             std::chrono::seconds timeout) {
  TRY_OK(cordon(client, node, true));
  const MonoTime deadline = executor.now() + timeout;
  const auto pods = client.list(kube::types::kPod, "", {.field_selector = "spec.nodeName=" + node});
  if (!pods.ok()) return advised(pods.error());
  std::vector<ObjectRef> leaving;
  for (const Value& pod : pods->items) {
    const kube::Key key = kube::key_of(pod);
    if (const std::string why = stays_because(pod); !why.empty()) {
      fmt::print("pod/{} stays ({})\n", key.name, why);
      continue;
    }
    TRY_OK(evict(client, executor, key, deadline));
    fmt::print("pod/{} evicted\n", key.name);
    leaving.push_back({kube::types::kPod, key, kube::uid_of(pod)});
  }
  for (const ObjectRef& pod : leaving) {
    TRY_OK(wait_until_gone(client, executor, pod, deadline,
                           "it has its grace period to write a checkpoint; wait, or look at its "
                           "logs"));
    fmt::print("pod/{} gone\n", pod.key.name);
  }
  fmt::print("node/{} drained\n", node);
  return ok();
}

}  // namespace rubato::ctl
