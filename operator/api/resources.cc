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

std::optional<std::int64_t> ordinal_of(std::string_view job, std::string_view pod_name) {
  const std::string start = std::string(job) + "-w";
  if (!pod_name.starts_with(start)) return std::nullopt;
  const std::string_view digits = pod_name.substr(start.size());
  constexpr std::size_t kDigitsMax = 12;  // one less than the names have room for
  if (digits.empty() || digits.size() > kDigitsMax) return std::nullopt;
  std::int64_t ordinal = 0;
  for (const char c : digits) {
    if (c < '0' || c > '9') return std::nullopt;
    ordinal = 10 * ordinal + (c - '0');
  }
  return ordinal;
}

std::string secret_name(std::string_view job) { return std::string(job) + "-rubato"; }

}  // namespace rubato::api
