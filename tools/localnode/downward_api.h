// The downward API: what a pod's containers are told of the pod itself, in their environment or in
// files of a volume. Values.
#pragma once

#include "common/json.h"
#include "common/result.h"

#include <string>

namespace rubato::localnode {

// The value of a downward API field ("metadata.uid", "status.podIP", "metadata.labels['x']").
// kInvalid for a path we do not know.
Result<std::string> field_of(const json::Value& pod, const std::string& path);

// The value of a resourceFieldRef: a container's request or limit in units of its divisor, rounded
// up. `container`: whose it is where `ref` names none. kInvalid: there is no such container, or it
// has no such limit; what a node offers instead, as a kubelet says then, is not looked up.
Result<std::string> resource_of(const json::Value& pod, const std::string& container,
                                const json::Value& ref);

// What an item of a downwardAPI volume has in its file: a field, all labels or annotations (a line
// each, key="value"), or a resource.
Result<std::string> downward_file(const json::Value& pod, const json::Value& item);

}  // namespace rubato::localnode
