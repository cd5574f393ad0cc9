#include "tools/localnode/claim_binder.h"

namespace rubato::localnode {

namespace {

using json::Value;

constexpr auto kRetry = 1s;
constexpr const char* kLabel = "rubato.dev/localnode";

bool is_ours(const Value& claim) {
  return claim["spec"]["storageClassName"].string_view_or("").empty() &&
         claim["spec"]["volumeName"].string_view_or("").empty() &&
         claim["metadata"]["deletionTimestamp"].is_null();
}

// Its folder is there, and it has what the claim was bound to; only the word is missing.
bool is_half_bound(const Value& claim) {
  return claim["spec"]["volumeName"].string_view_or("").starts_with("local-") &&
         claim["status"]["phase"].string_view_or("") != "Bound";
}

std::string volume_name(const kube::Object& claim) { return "local-" + claim.meta.uid; }

Value volume_for(const kube::Object& claim, const std::string& folder) {
  const Value& spec = claim.value["spec"];
  return Value::object(
      {{"apiVersion", "v1"},
       {"kind", "PersistentVolume"},
       {"metadata", Value::object({{"name", volume_name(claim)},
                                   {"labels", Value::object({{kLabel, "true"}})}})},
       {"spec", Value::object({{"capacity", spec["resources"]["requests"]},
                               {"accessModes", spec["accessModes"]},
                               {"persistentVolumeReclaimPolicy", "Retain"},
                               {"storageClassName", ""},
                               {"claimRef", Value::object({{"apiVersion", "v1"},
                                                           {"kind", "PersistentVolumeClaim"},
                                                           {"namespace", claim.meta.ns},
                                                           {"name", claim.meta.name},
                                                           {"uid", claim.meta.uid}})},
                               {"hostPath", Value::object({{"path", folder}})}})}});
}

}  // namespace

ClaimBinder::ClaimBinder(Executor& executor, kube::Client& client, Metrics& metrics,
                         std::string folder)
    : executor_(executor),
      client_(client),
      folder_(std::move(folder)),
      claims_(client, executor, metrics, {.type = kube::types::kPersistentVolumeClaim}),
      changed_(executor.make_condition()) {
  claims_.on_change([this](const kube::Change<kube::Object>& change) {
    std::lock_guard lock(mutex_);
    if (!change.after) gone_.push_back(volume_name(*change.before));
    dirty_ = true;
    changed_->notify_all();
  });
}

ClaimBinder::~ClaimBinder() { stop(); }

void ClaimBinder::start() {
  claims_.start();
  task_ = executor_.spawn("claims", [this](const std::stop_token& stop) { run(stop); });
}

void ClaimBinder::stop() {
  task_.request_stop();
  {
    std::lock_guard lock(mutex_);
    changed_->notify_all();
  }
  task_.join();
  claims_.stop();
}

void ClaimBinder::run(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    {
      std::unique_lock lock(mutex_);
      changed_->wait_until(lock, executor_.now() + kRetry,
                           [&] { return dirty_ || stop.stop_requested(); });
      dirty_ = false;
    }
    if (stop.stop_requested() || !claims_.has_synced()) continue;
    remove_volumes();
    bind_all();
  }
}

// Of claims that were deleted; what is in their folders stays.
void ClaimBinder::remove_volumes() {
  std::vector<std::string> gone;
  {
    std::lock_guard lock(mutex_);
    gone.swap(gone_);
  }
  for (const std::string& name : gone)
    (void)client_.remove(kube::types::kPersistentVolume, {"", name});  // another may have done so
}

void ClaimBinder::bind_all() {
  for (const auto& claim : claims_.store().list()) {
    if (!is_ours(claim->value) && !is_half_bound(claim->value)) continue;
    const Status bound = bind(*claim);
    // Conflicts are of another localnode that was faster.
    if (!bound.ok() && bound.error().code() != Code::kConflict)
      LOG_WARNING("localnode", "claim {}: {}", to_string(claim->meta.key()),
                  bound.error().to_string());
  }
}

Status ClaimBinder::bind(const kube::Object& claim) {
  const std::string folder = folder_ + "/" + claim.meta.ns + "/" + claim.meta.name;
  const auto made = client_.create(kube::types::kPersistentVolume, "", volume_for(claim, folder));
  if (!made.ok() && made.error().code() != Code::kAlreadyExists) return made.error();
  const Value bound = Value::object({{"status", Value::object({{"phase", "Bound"}})}});
  (void)client_.patch(kube::types::kPersistentVolume, {"", volume_name(claim)},
                      kube::PatchType::kMerge, bound, {.subresource = "status"});
  if (is_ours(claim.value)) {
    const Value annotations = Value::object({{"pv.kubernetes.io/bind-completed", "yes"},
                                             {"pv.kubernetes.io/bound-by-controller", "yes"}});
    const Value patch = Value::object(
        {{"metadata", Value::object({{"uid", claim.meta.uid}, {"annotations", annotations}})},
         {"spec", Value::object({{"volumeName", volume_name(claim)}})}});
    const auto written = client_.patch(kube::types::kPersistentVolumeClaim, claim.meta.key(),
                                       kube::PatchType::kMerge, patch);
    if (!written.ok()) return written.error();
  }
  const Value& spec = claim.value["spec"];
  const Value status =
      Value::object({{"status", Value::object({{"phase", "Bound"},
                                               {"accessModes", spec["accessModes"]},
                                               {"capacity", spec["resources"]["requests"]}})}});
  const auto written = client_.patch(kube::types::kPersistentVolumeClaim, claim.meta.key(),
                                     kube::PatchType::kMerge, status, {.subresource = "status"});
  return written.ok() ? ok() : Status(written.error());
}

}  // namespace rubato::localnode
