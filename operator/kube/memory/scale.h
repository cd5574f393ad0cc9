// The scale subresource of a custom type: a Scale object over two fields of the object. Pure.
#pragma once

#include "operator/kube/memory/resource.h"

namespace rubato::kube {

bool has_scale(const ResourceInfo& info);
json::Value scale_of(const ResourceInfo& info, const json::Value& object);
// Writes spec.replicas of the Scale back into the object.
void set_scale(const ResourceInfo& info, json::Value& object, const json::Value& scale);

}  // namespace rubato::kube
