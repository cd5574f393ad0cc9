#include "operator/control/cluster_status.h"

#include "common/log.h"
#include "operator/api/codec.h"
#include "operator/api/resources.h"
#include "scheduler/policy/registry.h"

namespace rubato::control {

namespace {

void write(kube::Client& client, StatusDiff& diff, const kube::ResourceType& type,
           const std::string& name, const json::Value& seen, const json::Value& wanted,
           MonoTime now) {
  const json::Value patch = diff.patch(type, seen, wanted, now);
  if (patch.size() == 0 || diff.rests(type, name, now)) return;
  const auto written =
      client.patch(type, {"", name}, kube::PatchType::kMerge,
                   json::Value::object({{"status", patch}}), {.subresource = "status"});
  if (written.ok()) return diff.note_written(type, patch, wanted, (*written)["status"], now);
  if (written.error().code() == Code::kNotFound) return;
  diff.note_unwritten(type, name, now);
  LOG_WARNING("scheduler", "status of {} {} is not written: {}", type.kind, name,
              written.error().to_string());
}

bool is_of_another(const kube::Meta& meta, const std::string& writer,
                   const Installation& installation) {
  return !writer.empty() && writer != installation.name && !installation.owns(meta);
}

}  // namespace

void write_queues(kube::Client& client, StatusDiff& diff, const World& world,
                  const sched::Snapshot& decided_on, const sched::Plan& plan,
                  const Installation& installation) {
  if (world.queues.empty()) return;
  auto usage = queue_usage(world);
  const sched::Queues tree = queue_tree(world);
  const sched::PolicyConfig& in_force = decided_on.policy;
  const bool weights_count =
      in_force.queue_weights || sched::descriptor_of(in_force.policy).uses_weights;
  for (const auto& object : world.queues) {
    if (is_of_another(object->meta, object->queue.status.installation, installation)) continue;
    const std::string& name = object->meta.name;
    const auto refused = plan.refused_cells.find(name);
    api::TrainingQueueStatus wanted =
        queue_status(object->queue, std::move(usage[name]),
                     {.cells = refused == plan.refused_cells.end() ? "" : refused->second,
                      .parent = sched::why_no_parent(tree, tree.at(name)),
                      .weight = !weights_count,
                      .guarantees = missing_guarantees(object->queue.spec, decided_on.state.nodes)},
                     world.wall);
    if (const auto share = plan.queue_shares.find(name); share != plan.queue_shares.end())
      wanted.share = static_cast<std::int32_t>(share->second);
    wanted.installation = installation.name;
    write(client, diff, api::kTrainingQueue, object->meta.name, object->status, api::encode(wanted),
          world.now);
  }
}

void write_policies(kube::Client& client, StatusDiff& diff, const World& world,
                    const Policy& in_force, const std::string& refused,
                    const Installation& installation) {
  for (const auto& object : world.policies) {
    if (is_of_another(object->meta, object->policy.status.installation, installation)) continue;
    api::SchedulingPolicyStatus wanted =
        policy_status(object->policy, in_force, refused, world.wall);
    wanted.installation = installation.name;
    write(client, diff, api::kSchedulingPolicy, object->meta.name, object->status,
          api::encode(wanted), world.now);
  }
}

}  // namespace rubato::control
