// The scale subresource of a custom type: a Scale object over two fields of the object. Pure.
#pragma once

#include "apiserver/memory/api_error.h"
#include "apiserver/memory/resource.h"

#include <vector>

namespace rubato::kube {

bool has_scale(const ResourceInfo& info);
json::Value scale_of(const ResourceInfo& info, const json::Value& object);
// Writes spec.replicas of the Scale back into the object.
void set_scale(const ResourceInfo& info, json::Value& object, const json::Value& scale);

// What the real server says of the fields behind the scale, beside the schema's own errors.
std::vector<FieldError> scale_errors(const ResourceInfo& info, const json::Value& object);

}  // namespace rubato::kube
