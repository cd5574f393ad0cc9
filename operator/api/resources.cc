#include "operator/api/resources.h"

namespace rubato::api {

namespace {
kube::ResourceType resource(const char* plural, const char* kind, bool namespaced) {
  return {std::string(kGroup), std::string(kVersion), plural, kind, namespaced};
}
}  // namespace

const kube::ResourceType kTrainingJob = resource("trainingjobs", "TrainingJob", true);
const kube::ResourceType kTrainingQueue = resource("trainingqueues", "TrainingQueue", false);
const kube::ResourceType kSchedulingPolicy =
    resource("schedulingpolicies", "SchedulingPolicy", false);
const kube::ResourceType kThroughputProfile =
    resource("throughputprofiles", "ThroughputProfile", false);

std::string pod_name(std::string_view job, std::int64_t ordinal) {
  return std::string(job) + "-w" + std::to_string(ordinal);
}

std::string secret_name(std::string_view job) { return std::string(job) + "-rubato"; }

}  // namespace rubato::api
