#include "operator/control/objects.h"

#include "kube/objects/object.h"
#include "operator/api/resources.h"
#include "operator/api/rules.h"
#include "operator/control/throughput_profiles.h"

namespace rubato::control {

kube::ResourceType JobObject::type() { return api::kTrainingJob; }

Result<JobObject> JobObject::decode(const json::Value& value) {
  TRY(kube::Object object, kube::Object::decode(value));
  TRY(api::TrainingJob job, api::decode_training_job(value));
  std::string problem = job.unreadable;
  if (!problem.empty())
    problem += " (this release cannot read it; change it, or run the release that wrote it)";
  for (const api::Violation& violation :
       api::validate(api::kTrainingJob.kind, json::Value(), value)) {
    problem += (problem.empty() ? "" : "; ") + violation.field + ": " + violation.message;
  }
  return JobObject{std::move(object.meta), std::move(job), value["status"], std::move(problem),
                   profile_of(value["spec"])};
}

kube::ResourceType ProfileObject::type() { return api::kThroughputProfile; }

Result<ProfileObject> ProfileObject::decode(const json::Value& value) {
  TRY(kube::Object object, kube::Object::decode(value));
  TRY(api::ThroughputProfile profile, api::decode_throughput_profile(value));
  return ProfileObject{std::move(object.meta), std::move(profile)};
}

kube::ResourceType QueueObject::type() { return api::kTrainingQueue; }

Result<QueueObject> QueueObject::decode(const json::Value& value) {
  TRY(kube::Object object, kube::Object::decode(value));
  TRY(api::TrainingQueue queue, api::decode_training_queue(value));
  return QueueObject{std::move(object.meta), std::move(queue), value["status"]};
}

kube::ResourceType PolicyObject::type() { return api::kSchedulingPolicy; }

Result<PolicyObject> PolicyObject::decode(const json::Value& value) {
  TRY(kube::Object object, kube::Object::decode(value));
  TRY(api::SchedulingPolicy policy, api::decode_scheduling_policy(value));
  return PolicyObject{std::move(object.meta), std::move(policy), value["status"]};
}

kube::ResourceType PriorityClassObject::type() { return kube::types::kPriorityClass; }

Result<PriorityClassObject> PriorityClassObject::decode(const json::Value& value) {
  TRY(kube::Object object, kube::Object::decode(value));
  return PriorityClassObject{std::move(object.meta), value["value"].int_or(0),
                             value["globalDefault"].bool_or(false),
                             value["preemptionPolicy"].string_view_or("") != "Never"};
}

kube::ResourceType NodeLease::type() { return kube::types::kLease; }

Result<NodeLease> NodeLease::decode(const json::Value& value) {
  TRY(kube::Object object, kube::Object::decode(value));
  const json::Value& spec = value["spec"];
  NodeLease lease{
      std::move(object.meta), {}, std::chrono::seconds(spec["leaseDurationSeconds"].int_or(40))};
  const auto renewed = parse_rfc3339(spec["renewTime"].string_view_or(""));
  if (renewed.ok()) lease.renewed = *renewed;
  return lease;
}

}  // namespace rubato::control
