// What the real API server and its default admission do to built-in kinds: defaults, initial
// status, validation, and which parts of an update count. Only what Rubato and ordinary kubectl
// use; what a controller of the real cluster does (service accounts, quotas, endpoints) is absent.
// Pure functions over values.
#pragma once

#include "apiserver/memory/api_error.h"
#include "apiserver/memory/resource.h"

#include <functional>
#include <optional>
#include <vector>

namespace rubato::kube::builtin {

// What the rules may ask about the rest of the cluster.
struct Lookups {
  // The PriorityClass of that name, or null.
  std::function<json::Value(const std::string& name)> priority_class;
  // A cluster IP that no Service has; empty when there is none.
  std::function<std::string()> next_cluster_ip;
};

// Fills defaults and the initial status of an object whose shape is right (shape.h). Errors: of
// admission (403), e.g. an unknown PriorityClass, and that no cluster IP is left (500).
std::optional<ApiError> prepare_create(const ResourceInfo& info, json::Value& object,
                                       const Lookups& lookups);
void prepare_update(const ResourceInfo& info, const json::Value& old_object,
                    json::Value& new_object);

std::vector<FieldError> validate_create(const ResourceInfo& info, const json::Value& object);
std::vector<FieldError> validate_update(const ResourceInfo& info, const json::Value& old_object,
                                        const json::Value& new_object);

// Whether names of this kind are DNS labels rather than subdomains.
bool wants_label_name(const ResourceInfo& info);

}  // namespace rubato::kube::builtin
