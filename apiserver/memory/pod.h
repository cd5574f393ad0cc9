// Pods: defaults, validation, binding, and which deletions are graceful. Pure functions.
#pragma once

#include "apiserver/memory/api_error.h"
#include "apiserver/memory/builtin.h"

#include <cstdint>
#include <string>
#include <vector>

namespace rubato::kube::pod {

std::optional<ApiError> prepare_create(const ResourceInfo& info, json::Value& pod,
                                       const builtin::Lookups& lookups);
std::vector<FieldError> validate_create(const json::Value& pod);
std::vector<FieldError> validate_update(const json::Value& old_pod, const json::Value& new_pod);

// gracePeriodSeconds as a deletion asks for it: below 0 is none, 34 years the most.
int asked_grace(std::int64_t seconds);
// Seconds a deletion waits for the node's agent; 0: the pod goes at once (unbound or finished).
// `asked` < 0: the pod's own terminationGracePeriodSeconds, of which a negative one is 1.
std::int64_t grace_seconds(const json::Value& pod, std::int64_t asked);

// The pod with spec.nodeName and condition PodScheduled set, as pods/binding does.
Answer<json::Value> bind(const ResourceInfo& info, json::Value pod, const json::Value& binding,
                         const std::string& now);

}  // namespace rubato::kube::pod
