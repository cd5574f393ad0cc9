// The resources of rubato.dev/v1alpha1, and the names that its objects carry.
#pragma once

#include "kube/client.h"

#include <string>
#include <string_view>
#include <vector>

namespace rubato::api {

inline constexpr std::string_view kGroup = "rubato.dev";
inline constexpr std::string_view kVersion = "v1alpha1";
inline constexpr std::string_view kApiVersion = "rubato.dev/v1alpha1";

extern const kube::ResourceType kTrainingJob, kTrainingQueue, kSchedulingPolicy, kThroughputProfile;

// Keys in metadata of objects that the operator makes.
inline constexpr std::string_view kFinalizer = "rubato.dev/teardown";
// Jobs, queues, policies: whose they are (control/installation.h).
inline constexpr std::string_view kLabelInstallation = "rubato.dev/installation";
inline constexpr std::string_view kLabelJob = "rubato.dev/job-name";     // pods, secrets, services
inline constexpr std::string_view kLabelOrdinal = "rubato.dev/ordinal";  // pods
inline constexpr std::string_view kLabelEpoch = "rubato.dev/epoch";  // pods: the epoch they came in

// Names of objects derived from a job are `<job>-w<ordinal>` and `<job>-rubato`. Ordinals are never
// reused, so they need room: 48 + "-w" + 13 digits = 63, a DNS label.
inline constexpr std::size_t kMaxJobName = 48;
std::string pod_name(std::string_view job, std::int64_t ordinal);
// The ordinal in the name of a pod of that job; none in any other name.
std::optional<std::int64_t> ordinal_of(std::string_view job, std::string_view pod_name);
std::string secret_name(std::string_view job);

}  // namespace rubato::api
