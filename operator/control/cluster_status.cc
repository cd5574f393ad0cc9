#include "operator/control/cluster_status.h"

#include "common/log.h"
#include "operator/api/codec.h"
#include "operator/api/resources.h"

namespace rubato::control {

namespace {

void write(kube::Client& client, const kube::ResourceType& type, const std::string& name,
           const json::Value& seen, const json::Value& wanted) {
  const json::Value patch = api::diff(seen.is_object() ? seen : json::Value::object(), wanted);
  if (patch.size() == 0) return;
  const auto written =
      client.patch(type, {"", name}, kube::PatchType::kMerge,
                   json::Value::object({{"status", patch}}), {.subresource = "status"});
  if (written.ok() || written.error().code() == Code::kNotFound) return;
  LOG_WARNING("scheduler", "status of {} {} is not written: {}", type.kind, name,
              written.error().to_string());
}

}  // namespace

void write_queues(kube::Client& client, const World& world) {
  if (world.queues.empty()) return;
  auto usage = queue_usage(world);
  for (const auto& object : world.queues) {
    const api::TrainingQueueStatus wanted =
        queue_status(object->queue, std::move(usage[object->meta.name]), world.now);
    write(client, api::kTrainingQueue, object->meta.name, object->status, api::encode(wanted));
  }
}

void write_policies(kube::Client& client, const World& world, const Policy& in_force,
                    const std::string& refused) {
  for (const auto& object : world.policies) {
    const api::SchedulingPolicyStatus wanted =
        policy_status(object->policy, in_force, refused, world.now);
    write(client, api::kSchedulingPolicy, object->meta.name, object->status, api::encode(wanted));
  }
}

}  // namespace rubato::control
