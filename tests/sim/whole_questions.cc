// What a WholeCluster knows of its jobs and pods, and what must be true when all is mended.
#include "operator/api/resources.h"
#include "tests/sim/sim_host.h"
#include "tests/sim/whole_cluster.h"

#include <algorithm>

namespace rubato::sim {
namespace {

constexpr Duration kIdleGlance = 1s;
constexpr Duration kCalmAfter = 5s;   // a host is heard again: silence, and a new connection
constexpr Duration kJoin = 12s;       // a pod that could train does; below follow_deadline
constexpr Duration kHungJoin = 90s;   // … when its worker hangs, which others must find out
constexpr Duration kAskedAgain = 5s;  // docs/protocol.md
constexpr Duration kAskedAgainMost = 2min;

}  // namespace

using json::Value;

World* WholeCluster::world_of(const std::string& uid) const {
  for (const Job& job : jobs_)
    if (job.uid == uid && job.world) return job.world.get();
  const auto before = retired_.find(uid);
  return before == retired_.end() ? nullptr : before->second.get();
}

ModelNode* WholeCluster::node_of_pod(const std::string& pod_uid) const {
  for (const auto& node : nodes_)
    if (node->find(pod_uid) != nullptr) return node.get();
  return nullptr;
}

bool WholeCluster::is_allocated(const std::string& pod_uid) const {
  for (const auto& [key, pod] : witness_.pods()) {
    if (pod.uid != pod_uid) continue;
    for (const auto& [job_key, job] : witness_.jobs())
      if (job.uid == pod.job_uid)
        return !pod.deleting && job.allocation &&
               std::any_of(job.allocation->pods.begin(), job.allocation->pods.end(),
                           [&](const auto& p) { return p.name == pod.name; });
  }
  return false;
}

bool WholeCluster::is_heard(const std::string& pod_uid) {
  ModelNode* node = node_of_pod(pod_uid);
  const Replica* leading = leader();
  if (node == nullptr || leading == nullptr || !is_allocated(pod_uid)) return false;
  const Container& container = *node->find(pod_uid);
  return !container.exit_status && !container.terminating &&
         links_.is_calm(node->name(), kCalmAfter) && links_.is_calm(leading->host(), kCalmAfter);
}

// Its job trains without it, and nothing is in its way.
bool WholeCluster::waits_to_train(const SeenPod& pod) {
  for (const auto& [key, seen] : witness_.jobs()) {
    if (seen.uid != pod.job_uid) continue;
    const World* world = world_of(seen.uid);
    return seen.object["status"]["state"].string_view_or("") == "Running" &&
           !seen.members.empty() && !seen.members.contains(pod.uid) &&
           world->highest_step() < world->shape().last_step() && is_heard(pod.uid) &&
           links_.are_pairs_whole() && node_of_pod(pod.uid)->plan().illness == Illness::kNone &&
           node_of_pod(pod.uid)->is_well(pod.uid, MonoTime::max());
  }
  return false;
}

// A worker of the job stands still: who would join waits until it is given up.
bool WholeCluster::is_held_up(const std::string& job_uid) const {
  for (const auto& [key, pod] : witness_.pods()) {
    if (pod.job_uid != job_uid) continue;
    ModelNode* node = node_of_pod(pod.uid);
    const SimHost* host = node == nullptr ? nullptr : node->find(pod.uid)->workers;
    if (host != nullptr && host->hangs()) return true;
  }
  return false;
}

// Who was left out for its links is asked for them again after 5 s, 10 s … 2 min: never later than
// all the time that had gone by since they broke first, and 5 s.
Duration WholeCluster::links_wait(const std::string& node) const {
  const auto found = parted_.find(node);
  if (found == parted_.end()) return 0s;
  return std::min<Duration>(found->second.last - found->second.first + kAskedAgain,
                            kAskedAgainMost);
}

void WholeCluster::look_for_idle_pods() {
  if (over_) return;
  std::map<std::string, Idle> idle;
  for (const auto& [key, pod] : witness_.pods()) {
    if (!waits_to_train(pod)) continue;
    const bool hangs = is_held_up(pod.job_uid);
    const auto before = idle_.find(pod.uid);
    const bool goes_on = before != idle_.end() && before->second.hangs == hangs;
    const Idle now{goes_on ? before->second.since : executor_.now(), hangs};
    idle.emplace(pod.uid, now);
    const Duration so_long = executor_.now() - now.since;
    const Duration links = links_wait(node_of_pod(pod.uid)->name());
    if (so_long > (hangs ? kHungJoin : kJoin) + links)
      story_.broken(fmt::format("pod {} has its GPUs and does not train for {:.0f} s", key,
                                std::chrono::duration<double>(so_long).count()));
  }
  idle_ = std::move(idle);
  later(kIdleGlance, [this] { look_for_idle_pods(); });
}

const Value* WholeCluster::status_of(const Job& job) const {
  const auto found = witness_.jobs().find("default/" + job.plan.shape.name);
  return found == witness_.jobs().end() ? nullptr : &found->second.object["status"];
}

bool WholeCluster::is_true(const Job& job, const char* condition) const {
  const Value* status = status_of(job);
  if (status == nullptr) return false;
  for (const Value& c : (*status)["conditions"].items())
    if (c["type"].string_view_or("") == condition) return c["status"].string_view_or("") == "True";
  return false;
}

World& WholeCluster::world(const std::string& job) {
  const auto found = std::ranges::find_if(
      jobs_, [&](const Job& each) { return each.plan.shape.name == job && each.world; });
  CHECK(found != jobs_.end());
  return *found->world;
}

ModelNode& WholeCluster::node(const std::string& name) {
  const auto found =
      std::ranges::find_if(nodes_, [&](const auto& each) { return each->name() == name; });
  CHECK(found != nodes_.end());
  return **found;
}

std::string WholeCluster::isa_of(const Job& job) const {
  const Value* status = status_of(job);
  if (status == nullptr) return "";
  return sim::isa_of((*status)["membership"]["fingerprint"].string_or(""));
}

// Who cannot says why. A job that began on nodes of other bits than all others goes on there only.
bool WholeCluster::can_finish(const Job& job) const {
  const std::string isa = isa_of(job);
  if (!job.plan.can_finish || isa.empty()) return job.plan.can_finish;
  int gpus = 0;
  for (const auto& node : nodes_)
    if (node->plan().isa == isa) gpus += node->plan().gpus;
  return job.plan.min <= gpus;
}

bool WholeCluster::all_finished() const {
  return std::all_of(jobs_.begin(), jobs_.end(), [&](const Job& job) {
    if (!job.submitted) return false;
    if (job.deleted) return status_of(job) == nullptr;
    return !can_finish(job) || is_true(job, "Complete") || is_true(job, "Failed");
  });
}

std::string WholeCluster::why_not_over() const {
  std::string text;
  for (const Job& job : jobs_) {
    const Value* status = status_of(job);
    if (job.deleted && status != nullptr)
      text += fmt::format(" {} is deleted and still there;", job.plan.shape.name);
    if (job.deleted || !can_finish(job) || is_true(job, "Complete")) continue;
    text += fmt::format(" {} is {} ({}), step {} of {};", job.plan.shape.name,
                        status == nullptr ? "gone" : (*status)["state"].string_or("?"),
                        status == nullptr ? "" : (*status)["reason"].string_or(""),
                        job.world ? job.world->highest_step() : 0, job.plan.shape.last_step());
  }
  return text;
}

// The newest on any of the volumes. None may be another than an undisturbed run writes.
Result<LastCheckpoint> WholeCluster::last_checkpoint(const Job& job) {
  const auto on = [&](testing::SimVolume& volume) {
    testing::SimDisk disk(server_process_, "judge");
    disk.mount("/", data_);
    disk.mount("/ckpt", volume);
    return read_last_checkpoint(disk, job.plan.shape, isa_of(job));
  };
  auto last = on(checkpoints_);
  for (const auto& node : nodes_) {
    if (!node->plan().has_own_checkpoints) continue;
    auto other = on(node->checkpoints());
    if (other.ok() && (!last.ok() || other->step > last->step)) last = std::move(other);
  }
  return last;
}

// What is wrong with the end of a job that is complete; "": nothing.
std::string WholeCluster::unexplained_end(const Job& job, const Value& status) {
  const auto last = last_checkpoint(job);
  if (!last.ok()) return " left no checkpoint that loads: " + last.error().what();
  const std::uint64_t last_step = job.plan.shape.last_step();
  if (last->step != last_step) return " left no last checkpoint";
  if (last->digest != job.world->undisturbed(last_step))
    return " ended with another state than an undisturbed run";
  const auto counted = status["rescales"]["count"].int_or(0);
  if (counted < static_cast<std::int64_t>(job.world->rescales()))
    return fmt::format(" was rescaled {} times, and its status says {}", job.world->rescales(),
                       counted);
  // What a leader has not told when it loses its Lease is lost with it.
  const SeenJob& seen = witness_.jobs().at("default/" + job.plan.shape.name);
  const Replica* leading = leader();
  if (leading != nullptr && seen.completed_by && seen.completed_by == leading->epoch() &&
      !seen.told.contains(last_step < job.plan.shape.steps ? "EndedByScript" : "StepsReached"))
    return " is complete, and no event says so";
  return "";
}

// What the end of a story must look like, beyond "all have finished"; "" when it does.
std::string WholeCluster::unexplained() {
  for (const auto& node : nodes_)
    if (node->gpus_in_use() > 0) return "processes are left on " + node->name();
  for (const Job& job : jobs_) {
    const std::string& name = job.plan.shape.name;
    if (job.deleted) continue;
    const Value* status = status_of(job);
    if (is_true(job, "Failed"))
      return fmt::format("{} failed: {}", name, (*status)["reason"].string_or(""));
    if (is_true(job, "Complete")) {
      if (std::string wrong = unexplained_end(job, *status); !wrong.empty()) return name + wrong;
      continue;
    }
    bool explained = false;
    for (const Value& c : (*status)["conditions"].items())
      explained =
          explained ||
          (c["type"].string_view_or("") == "Queued" && c["status"].string_view_or("") == "True" &&
           !c["reason"].string_view_or("").empty() && !c["message"].string_view_or("").empty() &&
           c["reason"].string_view_or("") != "WaitingForGPUs");
    if (!explained) return name + " cannot run, and no condition says why";
  }
  return "";
}

}  // namespace rubato::sim
