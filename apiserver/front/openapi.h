// OpenAPI v3 as far as kubectl reads it: the root, and one document per group version with the
// custom types' schemas (apply, create, explain). Built-in kinds are objects without declared
// fields. Pure functions.
#pragma once

#include "apiserver/memory/resource.h"

#include <string>
#include <vector>

namespace rubato::apiserver {

// `hash` makes each state of the schemas another URL.
json::Value openapi_root(const std::vector<kube::InfoPtr>& all, const std::string& hash);
// Null when nothing is served there.
json::Value openapi_document(const std::vector<kube::InfoPtr>& all, const std::string& group,
                             const std::string& version);

}  // namespace rubato::apiserver
