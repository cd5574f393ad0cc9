#include "operator/control/caches.h"

#include <algorithm>

namespace rubato::control {

namespace {
constexpr const char* kByOwner = "owner";
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

Caches::Caches(kube::Client& client, Executor& executor, Metrics& metrics)
    : jobs(client, executor, metrics),
      pods(client, executor, metrics),
      nodes(client, executor, metrics),
      queues(client, executor, metrics),
      policies(client, executor, metrics),
      priorities(client, executor, metrics),
      leases(client, executor, metrics, {.ns = std::string(kNodeLeases)}) {
  pods.store().add_index(kByOwner, [](const kube::Pod& pod) -> std::vector<std::string> {
    if (!pod.meta.owner || pod.meta.owner->kind != "TrainingJob") return {};
    return {pod.meta.owner->uid};
  });
}

void Caches::start() {
  jobs.start();
  pods.start();
  nodes.start();
  queues.start();
  policies.start();
  priorities.start();
  leases.start();
}

bool Caches::has_synced() const {
  return jobs.has_synced() && pods.has_synced() && nodes.has_synced() && queues.has_synced() &&
         policies.has_synced() && priorities.has_synced() && leases.has_synced();
}

bool Caches::wait_for_sync(MonoTime deadline) {
  return jobs.wait_for_sync(deadline) && pods.wait_for_sync(deadline) &&
         nodes.wait_for_sync(deadline) && queues.wait_for_sync(deadline) &&
         policies.wait_for_sync(deadline) && priorities.wait_for_sync(deadline) &&
         leases.wait_for_sync(deadline);
}

World Caches::snapshot(const Memory& memory, const PlacementGate& gate,
                       const coordinator::Coordinator& coordinator, WallTime now) const {
  World world;
  world.jobs = jobs.store().list();
  const auto unseen = gate.unseen();  // before the cache is read: it may show them meanwhile
  world.pods = pods.store().list();
  add_unseen(unseen, world.pods);
  world.nodes = nodes.store().list();
  world.queues = queues.store().list();
  world.policies = policies.store().list();
  world.priorities = priorities.store().list();
  for (const auto& lease : leases.store().list())
    world.leases.push_back(std::make_shared<const NodeLease>(memory.by_our_clock(*lease, now)));
  world.view_of = [&coordinator](const std::string& uid) { return coordinator.view(uid); };
  world.suspects = memory.suspects();
  world.lost_pods = memory.lost_pods();
  world.given_up = memory.given_up();
  world.held_back = memory.held_back();
  world.now = now;
  return world;
}

std::vector<std::shared_ptr<const kube::Pod>> Caches::pods_of(const std::string& job_uid) const {
  return pods.store().by_index(kByOwner, job_uid);
}

}  // namespace rubato::control
