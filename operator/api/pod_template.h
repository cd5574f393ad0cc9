// What the operator relies on in a job's `spec.template` before it writes its own members into it.
#pragma once

#include "common/json.h"
#include "common/result.h"

#include <string>

namespace rubato::api {

// The API server keeps what it does not know of a template as it is, so that any member may be of
// any type. Those that the operator writes into must be absent, null, or the objects and lists that
// a pod has there: else kInvalid, with the path of the first that is not. Whether the rest makes a
// pod is seen by a trial. Pure; cost is linear in the number of containers and volumes.
Status check_pod_template(const json::Value& pod_template, const std::string& path);

}  // namespace rubato::api
