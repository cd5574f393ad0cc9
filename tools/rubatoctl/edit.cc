// Small changes: suspend, resume, scale, cordon, drain; and waiting for a job.
#include "operator/api/conditions.h"
#include "operator/api/resources.h"
#include "operator/api/training_job.h"
#include "tools/rubatoctl/objects.h"

#include <algorithm>
#include <cctype>

#include <fmt/core.h>

namespace rubato::ctl {

using json::Value;

namespace {

constexpr auto kChangePoll = 200ms;
constexpr auto kEvictionPoll = 1s;

}  // namespace

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

Status wait_for(Session& session, const std::string& job, const std::string& wanted,
                std::chrono::seconds timeout) {
  TRY(const std::string condition, condition_named(wanted));
  const MonoTime deadline = session.executor().now() + timeout;
  while (true) {
    const auto object = session.client().get(api::kTrainingJob, {session.ns(), job});
    if (!object.ok()) return advised(object.error());
    for (const auto& item : (*object)["status"]["conditions"].items()) {
      if (item["status"].string_view_or("") != "True") continue;
      const std::string type = item["type"].string_or("");
      if (type == condition) {
        fmt::print("trainingjob.rubato.dev/{} condition met\n", job);
        return ok();
      }
      if (type == api::condition::kFailed)
        return Error(Code::kInvalid, "the job failed: " + item["message"].string_or(""));
    }
    if (session.executor().now() >= deadline)
      return Error(Code::kTimeout, fmt::format("condition {} is not met after {} s\n  What to do: "
                                               "`rubatoctl describe tj {}` says why",
                                               condition, timeout.count(), job));
    session.executor().sleep_for(kChangePoll);
  }
}

Status cordon(Session& session, const std::string& node, bool unschedulable) {
  Value spec = Value::object({{"unschedulable", nullptr}});
  if (unschedulable) spec.set("unschedulable", true);
  const auto patched =
      session.client().patch(kube::types::kNode, {"", node}, kube::PatchType::kMerge,
                             Value::object({{"spec", spec}}), {.field_manager = "rubatoctl"});
  if (!patched.ok()) return advised(patched.error());
  fmt::print("node/{} {}\n", node, unschedulable ? "cordoned" : "uncordoned");
  return ok();
}

Status drain(Session& session, const std::string& node, std::chrono::seconds timeout) {
  TRY_OK(cordon(session, node, true));
  const MonoTime deadline = session.executor().now() + timeout;
  TRY(const std::vector<Value> pods,
      session.list(kube::types::kPod, "", {.field_selector = "spec.nodeName=" + node}));
  std::vector<ObjectRef> leaving;
  for (const Value& pod : pods) {
    const kube::Key key = kube::key_of(pod);
    const Value eviction =
        Value::object({{"apiVersion", "policy/v1"},
                       {"kind", "Eviction"},
                       {"metadata", Value::object({{"name", key.name}, {"namespace", key.ns}})}});
    while (true) {
      const auto evicted =
          session.client().create(kube::types::kPod, key.ns, eviction,
                                  {.subresource = "eviction", .field_manager = "rubatoctl"});
      if (evicted.ok() || evicted.error().code() == Code::kNotFound) break;
      // 429: a disruption budget asks to wait.
      const bool may_wait = evicted.error().code() == Code::kExhausted;
      if (!may_wait || session.executor().now() >= deadline) return advised(evicted.error());
      session.executor().sleep_for(kEvictionPoll);
    }
    fmt::print("pod/{} evicted\n", key.name);
    leaving.push_back({kube::types::kPod, key, kube::uid_of(pod)});
  }
  for (const ObjectRef& pod : leaving) {
    TRY_OK(wait_until_gone(session.client(), session.executor(), pod, deadline,
                           "it has its grace period to write a checkpoint; wait, or look at its "
                           "logs"));
    fmt::print("pod/{} gone\n", pod.key.name);
  }
  fmt::print("node/{} drained\n", node);
  return ok();
}

}  // namespace rubato::ctl
