#include "tests/sim/witness.h"

#include "operator/api/codec.h"
#include "operator/coordinator/coordinator.h"
#include "tests/sentences.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

namespace rubato::sim {
namespace {

int gpus_of(const json::Value& amounts) {
  const json::Value& value = amounts[kGpuResource];
  if (value.is_int()) return static_cast<int>(value.int_or(0));
  return std::atoi(value.string_or("0").c_str());
}

WorkerTuple tuple_of_member(const json::Value& member) {
  return {member["podUID"].string_or(""), static_cast<std::uint32_t>(member["slot"].int_or(0)),
          static_cast<std::uint64_t>(member["incarnation"].int_or(0))};
}

}  // namespace

void Witness::committed(const kube::StoreId& id, const json::Value* object) {
  ++changes_;
  if (object != nullptr) read(id, *object);
  if (id.kind == "pods") return pod_changed(id.key, object);
  if (id.kind == "trainingjobs.rubato.dev") return job_changed(id.key, object);
  if (id.kind == "nodes") {
    if (object == nullptr)
      nodes_.erase(id.key);
    else
      nodes_[id.key] = *object;
  } else if (id.kind == "trainingqueues.rubato.dev" && object != nullptr) {
    for (const json::Value& quota : (*object)["spec"]["quotas"].items())
      if (quota["limit"].is_int()) limits_[id.key] = static_cast<int>(quota["limit"].int_or(0));
    parents_[id.key] = (*object)["spec"]["parent"].string_or("");
  } else if (id.kind == "secrets") {
    if (object == nullptr)
      secrets_.erase(id.key);
    else
      secrets_.insert(id.key);
  } else if (id.kind == "events" && object != nullptr) {
    const json::Value& about = (*object)["involvedObject"];
    const auto job =
        jobs_.find(about["namespace"].string_or("") + "/" + about["name"].string_or(""));
    if (job != jobs_.end() && job->second.uid == about["uid"].string_view_or(""))
      job->second.told.insert((*object)["reason"].string_or(""));
  }
}

void Witness::store_went_back(const kube::ObjectStore::Backup& backup) {
  ++restores_;
  leaders_of_backup_ = highest_leader_;
  jobs_.clear();
  pods_.clear();
  nodes_.clear();
  secrets_.clear();
  std::map<std::string, SeenJob> restored;
  for (const auto& [id, object] : backup) {
    if (id.kind == "pods") pod_changed(id.key, &object);
    if (id.kind == "nodes") nodes_[id.key] = object;
    if (id.kind == "secrets") secrets_.insert(id.key);
    if (id.kind != "trainingjobs.rubato.dev") continue;
    SeenJob& seen = restored[id.key];
    seen.object = object;
    seen.uid = kube::uid_of(object);
    seen.queue = object["spec"]["queue"].string_or("default");
    seen.is_complete = object["status"]["state"].string_view_or("") == "Complete";
    if (const auto job = api::decode_training_job(object); job.ok())
      seen.allocation = job->status.allocation;
  }
  jobs_ = std::move(restored);
  for (const auto& [key, pod] : pods_)
    for (auto& [name, job] : jobs_)
      if (job.uid == pod.job_uid) job.made_pods.insert(pod.name);
}

// What people are told makes sense as a sentence.
void Witness::read(const kube::StoreId& id, const json::Value& object) {
  const auto look_at = [&](const json::Value& text) {
    if (const std::string wrong = wrong_number(text.string_view_or("")); !wrong.empty())
      story_.broken(fmt::format("{} {} says \"{}\"", id.kind, id.key, wrong));
  };
  look_at(object["note"]);
  const json::Value& status = object["status"];
  for (const json::Value& condition : status["conditions"].items()) look_at(condition["message"]);
  look_at(status["allocation"]["reason"]);
  look_at(status["rescales"]["last"]["reason"]);
}

// ---- Pods

void Witness::pod_changed(const std::string& key, const json::Value* object) {
  if (object == nullptr) {
    const auto found = pods_.find(key);
    if (found == pods_.end()) return;
    story_.say("pod {} is gone from the API", key);
    pods_.erase(found);
    return;
  }
  SeenPod& seen = pods_[key];
  const std::string node_before = seen.node;
  const bool is_new = seen.uid.empty();
  const json::Value& pod = *object;
  seen.object = pod;
  seen.ns = kube::namespace_of(pod);
  seen.name = kube::name_of(pod);
  seen.uid = kube::uid_of(pod);
  seen.node = pod["spec"]["nodeName"].string_or("");
  const std::string_view phase = pod["status"]["phase"].string_view_or("");
  seen.finished = phase == "Succeeded" || phase == "Failed";
  seen.deleting = !pod["metadata"]["deletionTimestamp"].is_null();
  seen.gpus = 0;
  for (const json::Value& container : pod["spec"]["containers"].items())
    seen.gpus += gpus_of(container["resources"]["requests"]);
  for (const json::Value& owner : pod["metadata"]["ownerReferences"].items())
    if (owner["kind"].string_view_or("") == "TrainingJob")
      seen.job_uid = owner["uid"].string_or("");
  if (is_new) {
    for (auto& [name, job] : jobs_)
      if (job.uid == seen.job_uid) job.made_pods.insert(seen.name);
  }
  if (node_before.empty() && !seen.node.empty()) {
    story_.say("pod {} is bound to {}", key, seen.node);
    check_node(seen.node, "pod " + key + " is bound to it");
  }
}

int Witness::used(const std::string& node) const {
  int sum = 0;
  for (const auto& [key, pod] : pods_)
    if (pod.node == node && !pod.finished) sum += pod.gpus;
  return sum;
}

// What allocations hold there for pods that are not bound yet. A pod that existed and is gone will
// not come again: ordinals are not reused.
int Witness::promised(const std::string& node) const {
  int sum = 0;
  for (const auto& [key, job] : jobs_) {
    if (!job.allocation) continue;
    for (const api::AllocatedPod& pod : job.allocation->pods) {
      if (pod.node != node) continue;
      const auto found = pods_.find(key.substr(0, key.find('/') + 1) + pod.name);
      if (found != pods_.end()) {
        if (found->second.node.empty() && !found->second.deleting) sum += pod.gpus;
      } else if (!job.made_pods.contains(pod.name)) {
        sum += pod.gpus;
      }
    }
  }
  return sum;
}

int Witness::capacity(const std::string& node) const {
  const auto found = nodes_.find(node);
  return found == nodes_.end() ? -1 : gpus_of(found->second["status"]["allocatable"]);
}

void Witness::check_node(const std::string& node, const std::string& why) {
  const int has = capacity(node);
  if (has < 0) return;  // its object is gone; nothing can start there
  const int taken = used(node) + promised(node);
  if (taken > has)
    story_.broken(
        fmt::format("node {} has {} GPUs and {} are promised or used: {}", node, has, taken, why));
}

// ---- Jobs

void Witness::job_changed(const std::string& key, const json::Value* object) {
  if (object == nullptr) {
    jobs_.erase(key);
    story_.say("job {} is gone from the API", key);
    return;
  }
  SeenJob& seen = jobs_[key];
  const std::string uid = kube::uid_of(*object);
  if (seen.uid != uid) {
    seen = SeenJob{};
    seen.uid = uid;
  }
  seen.queue = (*object)["spec"]["queue"].string_or("default");
  const json::Value before = seen.object["status"];
  seen.object = *object;
  const json::Value& status = (*object)["status"];
  if (!(before["allocation"] == status["allocation"])) {
    const auto job = api::decode_training_job(*object);
    if (!job.ok()) return story_.broken("a job that cannot be decoded: " + job.error().to_string());
    if (job->status.allocation)
      look_at_allocation(key, seen, *job->status.allocation);
    else
      story_.broken(key + ": the allocation is gone");
  }
  if (!(before["membership"] == status["membership"]))
    look_at_membership(seen, status["membership"]);
  if (!seen.is_complete && status["state"].string_view_or("") == "Complete") {
    seen.is_complete = true;
    seen.completed_by = ask_.writing_epoch();
  }
  if (before["state"].string_view_or("") != status["state"].string_view_or(""))
    story_.say("job {} is {} ({})", key, status["state"].string_or(""),
               status["reason"].string_or(""));
}

void Witness::look_at_allocation(const std::string& key, SeenJob& seen,
                                 const api::Allocation& now) {
  const api::Allocation before = seen.allocation.value_or(api::Allocation{});
  seen.allocation = now;
  story_.say("job {}: allocation {} of {} GPUs: {}", key, now.epoch, now.gpus, now.reason);
  if (now.epoch <= before.epoch)
    story_.broken(fmt::format("{}: the allocation changed and its epoch went from {} to {}", key,
                              before.epoch, now.epoch));
  if (now.next_ordinal < before.next_ordinal) story_.broken(key + ": ordinals went back");
  int sum = 0;
  bool more = false;
  for (const api::AllocatedPod& pod : now.pods) {
    sum += pod.gpus;
    const bool held = std::any_of(before.pods.begin(), before.pods.end(),
                                  [&](const auto& p) { return p.ordinal == pod.ordinal; });
    if (held) continue;
    more = true;
    if (!seen.ordinals.insert(pod.ordinal).second)
      story_.broken(fmt::format("{}: ordinal {} is used again", key, pod.ordinal));
    check_node(pod.node, fmt::format("{} is given {} of it", key, pod.gpus));
  }
  if (sum != now.gpus) story_.broken(key + ": the allocation's sum is wrong");
  for (std::string queue = seen.queue; more && !queue.empty(); queue = parents_[queue])
    check_queue(queue);
  if (more && seen.object["spec"]["topology"]["mode"].string_view_or("") == "required")
    check_zone(key, now);
  check_cells(key, seen);
  if (more) check_takeover(seen, now.leader_transition.value_or(0));
}

// Before a leader gives GPUs away, earlier ones can give no others away: a decision on any job that
// they wrote last, and the API server still works on, is refused.
void Witness::check_takeover(const SeenJob& given, std::int64_t leader) {
  highest_leader_ = std::max(highest_leader_, leader);
  if (leader <= leaders_of_backup_) return;
  if (given.object["status"]["membership"].is_null())
    story_.broken("GPUs are given to a job that does not say who leads");
  const auto installation = [](const SeenJob& job) { return job.object["status"]["installation"]; };
  for (const auto& [key, job] : jobs_) {
    const std::string_view state = job.object["status"]["state"].string_view_or("");
    const std::int64_t decided = job.allocation ? job.allocation->leader_transition.value_or(0) : 0;
    const auto last = std::max(decided, job.object["status"]["membership"]["leader"].int_or(0));
    if (last == 0 || last >= leader || state == "Complete" || state == "Failed" ||
        !(installation(job) == installation(given)))
      continue;
    story_.broken(fmt::format(
        "leader {} gives GPUs away, and an earlier one may still give {} some", leader, key));
  }
}

// What is lost may already be replaced: of each job by a write of its own.
bool Witness::is_held(const std::string& key, const SeenJob& job,
                      const api::AllocatedPod& pod) const {
  const auto found = pods_.find(key.substr(0, key.find('/') + 1) + pod.name);
  if (found == pods_.end()) return !job.made_pods.contains(pod.name) && nodes_.contains(pod.node);
  return !found->second.finished && !found->second.deleting &&
         ask_.is_well(found->second.uid, MonoTime::max());
}

// A node that is a cell of a queue has no pod that is inside the cells of another one.
void Witness::check_cells(const std::string& key, const SeenJob& seen) const {
  std::set<std::string> cells;
  for (const api::AllocatedPod& pod : seen.allocation->pods)
    if (!pod.cell.empty() && is_held(key, seen, pod)) cells.insert(pod.node);
  for (const auto& [other, job] : jobs_) {
    if (job.queue == seen.queue || !job.allocation) continue;
    for (const api::AllocatedPod& pod : job.allocation->pods)
      if (!pod.cell.empty() && cells.contains(pod.node) && is_held(other, job, pod))
        story_.broken(fmt::format("{} and {} of another queue are in the same cell, node {}", key,
                                  other, pod.node));
  }
}

// Of a job that must be in one.
void Witness::check_zone(const std::string& key, const api::Allocation& allocation) const {
  std::set<std::string> zones;
  for (const api::AllocatedPod& pod : allocation.pods)
    if (const auto node = nodes_.find(pod.node); node != nodes_.end())
      zones.insert(node->second["metadata"]["labels"]["topology.kubernetes.io/zone"].string_or(""));
  if (zones.size() > 1 || zones.contains(""))
    story_.broken(fmt::format("{}: its pods must be in one zone, and are in \"{}\"", key,
                              fmt::join(zones, "\", \"")));
}

// Two decisions on one state of the cluster may give a GPU twice: that the job's own epoch refuses
// the second one helps no other job.
void Witness::asked(const kube::Key& key, const json::Value& patch) {
  std::int64_t tested = 0;
  const json::Value* wanted = nullptr;
  for (const json::Value& operation : patch.items()) {
    const std::string_view path = operation["path"].string_view_or("");
    if (path == "/status/allocation/epoch") tested = operation["value"].int_or(0);
    if (path == "/status/allocation") wanted = &operation["value"];
  }
  const auto found = jobs_.find(key.ns + "/" + key.name);
  if (wanted == nullptr || found == jobs_.end() || !found->second.allocation) return;
  const api::Allocation& stands = *found->second.allocation;
  if (stands.epoch <= tested || stands.pods.empty() || (*wanted)["pods"].size() == 0 ||
      stands.leader_transition != (*wanted)["leaderTransition"].int_or(0))
    return;
  story_.broken(fmt::format("{}/{}: the leader that wrote allocation {} decides on number {}",
                            key.ns, key.name, stands.epoch, tested));
}

void Witness::check_queue(const std::string& queue) {
  const auto limit = limits_.find(queue);
  if (limit == limits_.end()) return;
  int sum = 0;
  for (const auto& [key, job] : jobs_) {
    const bool counts = job.queue == queue || parents_[job.queue] == queue;
    if (!counts || !job.allocation) continue;
    for (const api::AllocatedPod& pod : job.allocation->pods)
      if (is_held(key, job, pod)) sum += pod.gpus;
  }
  if (sum > limit->second)
    story_.broken(fmt::format("queue {} holds {} GPUs and may hold {}", queue, sum, limit->second));
}

// The pod may be well and its worker another one by now: restarted, with nothing of the job's
// state; or about to be, for its state is not that of the others. And who was to join by a change
// that a new leader finds unfinished may not have come to it: it was in no generation yet, and
// follows anew.
bool Witness::are_in_it(const SeenJob& seen, const std::set<WorkerTuple>& workers) const {
  World* world = ask_.world(seen.uid);
  return std::all_of(workers.begin(), workers.end(), [&](const WorkerTuple& id) {
    const Peer* peer = world == nullptr ? nullptr : world->find_peer(id);
    return peer != nullptr && peer->alive && !peer->diverged && peer->standing.generation() > 0;
  });
}

void Witness::look_at_membership(SeenJob& seen, const json::Value& record) {
  const auto generation = static_cast<std::uint64_t>(record["generation"].int_or(0));
  const auto leader = static_cast<std::uint64_t>(record["leader"].int_or(0));
  std::vector<WorkerTuple> all;
  std::map<std::string, std::set<WorkerTuple>> members;
  for (const json::Value& m : record["members"].items()) {
    all.push_back(tuple_of_member(m));
    members[m["podUID"].string_or("")].insert(tuple_of_member(m));
  }
  if (World* world = ask_.world(seen.uid))
    world->record_written(generation, leader, record["phase"].string_view_or(""), all);
  const std::string name = kube::name_of(seen.object);
  story_.say("job {}: membership {} of {} workers, {} (leader {})", name, generation, all.size(),
             record["phase"].string_or(""), leader);
  const auto writer = ask_.writing_epoch();
  if (writer && *writer != leader)
    story_.broken(fmt::format("{}: the leader of epoch {} writes membership of leader {}", name,
                              *writer, leader));
  const auto number = static_cast<std::uint64_t>(record["seq"].int_or(0));
  if (number < seen.membership_writes)
    story_.broken(fmt::format("{}: membership goes back from write {} to {}", name,
                              seen.membership_writes, number));
  seen.membership_writes = number;
  if (leader != seen.leader) {  // it has read what stands and knows no more than that
    seen.leader_since = story_.now();
    seen.known_until = seen.written;
  } else {
    seen.written = story_.now();
  }
  const bool early = story_.now() - seen.leader_since < coordinator::Timing{}.silence;
  if (generation != seen.generation && leader > 1 && early && seen.allocation) {
    for (const auto& [pod_uid, workers] : seen.members) {
      const bool allocated = std::any_of(pods_.begin(), pods_.end(), [&](const auto& entry) {
        return entry.second.uid == pod_uid && !entry.second.deleting &&
               std::any_of(seen.allocation->pods.begin(), seen.allocation->pods.end(),
                           [&](const auto& p) { return p.name == entry.second.name; });
      });
      if (members.contains(pod_uid) || !allocated || !ask_.is_well(pod_uid, seen.known_until) ||
          !are_in_it(seen, workers))
        continue;
      story_.broken(
          fmt::format("{}: a leader of {:.1f} s drops a pod that is well", name,
                      std::chrono::duration<double>(story_.now() - seen.leader_since).count()));
    }
  }
  seen.generation = generation;
  seen.leader = leader;
  seen.members = std::move(members);
}

}  // namespace rubato::sim
