// What /api and /apis say is served, in the aggregated form (v2) and in the old one. Pure.
#pragma once

#include "apiserver/memory/resource.h"

#include <string>
#include <vector>

namespace rubato::apiserver {

extern const char* const kAggregatedType;  // the content type kubectl insists on

// `core`: of /api, else of /apis.
json::Value aggregated(const std::vector<kube::InfoPtr>& all, bool core);
json::Value group_list(const std::vector<kube::InfoPtr>& all);                      // GET /apis
json::Value group(const std::vector<kube::InfoPtr>& all, const std::string& name);  // null: unknown
// GET /api/v1, /apis/G/V; null when nothing is served there.
json::Value resource_list(const std::vector<kube::InfoPtr>& all, const std::string& group,
                          const std::string& version);

}  // namespace rubato::apiserver
