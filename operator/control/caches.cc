#include "operator/control/caches.h"

#include <algorithm>

namespace rubato::control {

namespace {
constexpr const char* kByOwner = "owner";
constexpr const char* kByClaim = "claim";  // "namespace/name"
}  // namespace

Result<std::optional<json::Value>> live_pod(kube::Client& client, const kube::Key& key) {
  kube::ListOptions by_name;
  by_name.field_selector = "metadata.name=" + key.name;
  TRY(kube::ObjectList live, client.list(kube::types::kPod, key.ns, by_name));
  std::optional<json::Value> pod;
  if (!live.items.empty()) pod = std::move(live.items.front());
  return pod;
}

void add_unseen(const std::vector<std::shared_ptr<const kube::Pod>>& unseen,
                std::vector<std::shared_ptr<const kube::Pod>>& pods) {
  for (const auto& bound : unseen) {
    const auto at = std::lower_bound(
        pods.begin(), pods.end(), bound->meta.key(),
        [](const auto& pod, const kube::Key& key) { return pod->meta.key() < key; });
    if (at == pods.end() || (*at)->meta.key() != bound->meta.key()) {
      pods.insert(at, bound);
    } else if ((*at)->meta.uid == bound->meta.uid && (*at)->node_name.empty()) {
      *at = bound;
    }
  }
}

Caches::Caches(kube::Client& client, Executor& executor, Metrics& metrics,
               const Installation& installation)
    : jobs(client, executor, metrics,
           {.namespaces = installation.namespaces, .while_denied = kube::WhileDenied::kForget}),
      pods(client, executor, metrics),
      nodes(client, executor, metrics),
      queues(client, executor, metrics),
      policies(client, executor, metrics),
      profiles(client, executor, metrics),
      priorities(client, executor, metrics),
      leases(client, executor, metrics, {.namespaces = {std::string(kNodeLeases)}}),
      claims(client, executor, metrics,
             {.namespaces = installation.namespaces, .while_denied = kube::WhileDenied::kKeep}),
      volumes(client, executor, metrics),
      storage_classes(client, executor, metrics) {
  const auto is_seen = [installation](const auto& object) {
    return installation.may_see(object.meta);
  };
  jobs.keep_only([installation](const JobObject& object) {
    return installation.may_see(object.meta, object.job.status.installation);
  });
  queues.keep_only(is_seen);
  policies.keep_only(is_seen);
  jobs.store().add_index(kByClaim, [](const JobObject& job) {
    std::vector<std::string> keys;
    for (const auto& volume : job.job.spec.pod_template["spec"]["volumes"].items()) {
      const auto& claim = volume["persistentVolumeClaim"]["claimName"];
      const std::string key = to_string(kube::Key{job.meta.ns, claim.string_or("")});
      if (claim.is_string() && std::find(keys.begin(), keys.end(), key) == keys.end())
        keys.push_back(key);
    }
    return keys;
  });
  pods.store().add_index(kByOwner, [](const kube::Pod& pod) -> std::vector<std::string> {
    if (!pod.meta.owner || pod.meta.owner->kind != "TrainingJob") return {};
    return {pod.meta.owner->uid};
  });
}

void Caches::start() {
  for_each([](auto& informer) { informer.start(); });
}

void Caches::stop() {
  for_each([](auto& informer) { informer.stop(); });
}

bool Caches::has_synced() const {
  bool all = true;
  for_each([&](const auto& informer) { all = all && informer.has_synced(); });
  return all;
}

bool Caches::wait_for_sync(MonoTime deadline) {
  bool all = true;
  for_each([&](auto& informer) { all = all && informer.wait_for_sync(deadline); });
  return all;
}

World Caches::snapshot(const Memory& memory, const PlacementGate& gate,
                       const coordinator::Coordinator& coordinator, MonoTime now,
                       WallTime wall) const {
  World world;
  world.jobs = jobs.store().list();
  const auto unseen = gate.unseen();  // before the cache is read: it may show them meanwhile
  world.pods = pods.store().list();
  add_unseen(unseen, world.pods);
  world.nodes = nodes.store().list();
  world.queues = queues.store().list();
  world.policies = policies.store().list();
  world.profiles = profiles.store().list();
  world.priorities = priorities.store().list();
  world.claims_denied = claims.denied();  // before its first claims are stored
  world.claims = claims.store().list();
  world.volumes = volumes.store().list();
  world.storage_classes = storage_classes.store().list();
  for (const auto& lease : leases.store().list())
    world.renewals[lease->meta.name] = memory.renewal(*lease, now, wall);
  world.view_of = [&coordinator](const std::string& uid) { return coordinator.view(uid); };
  world.admitted_of = [&memory](const std::string& uid) { return memory.admitted(uid); };
  world.suspects = memory.suspects();
  world.lost_pods = memory.lost_pods();
  world.given_up = memory.given_up();
  world.held_back = memory.held_back();
  world.failed_starts = memory.failed_starts();
  world.growth_limits = memory.growth_limits();
  world.now = now;
  world.wall = wall;
  return world;
}

std::vector<std::shared_ptr<const kube::Pod>> Caches::pods_of(const std::string& job_uid) const {
  return pods.store().by_index(kByOwner, job_uid);
}

StorageView Caches::storage() const {
  return {[this](const kube::Key& key) { return claims.store().get(key); },
          [this](const std::string& name) { return volumes.store().get({"", name}); },
          [this](const std::string& name) { return storage_classes.store().get({"", name}); },
          [this] { return default_class(storage_classes.store().list()); },
          [this] { return volumes.store().list(); },
          [this](const std::string& ns) { return claims.denied().contains(ns); }};
}

std::vector<kube::Key> Caches::jobs_using(const kube::Key& claim) const {
  std::vector<kube::Key> keys;
  for (const auto& job : jobs.store().by_index(kByClaim, to_string(claim)))
    keys.push_back(job->meta.key());
  return keys;
}

std::vector<kube::Key> Caches::jobs_using(const kube::Claim& claim) const {
  std::vector<kube::Key> keys = jobs_using(claim.meta.key());
  if (!claim.meta.owner || claim.meta.owner->kind != "Pod") return keys;
  const auto pod = pods.store().get({claim.meta.ns, claim.meta.owner->name});
  if (pod && pod->meta.owner && pod->meta.owner->kind == "TrainingJob")
    keys.push_back({pod->meta.ns, pod->meta.owner->name});
  return keys;
}

}  // namespace rubato::control
