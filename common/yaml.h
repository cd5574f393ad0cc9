// YAML to json::Value, as Kubernetes reads manifests: YAML 1.1 scalars (yaml_scalar.h; everything
// quoted is a string), "---" between documents, empty documents skipped, last of duplicate keys
// wins, and what "<<" brings counts as if it stood there: kubectl's reader lets it win over keys
// before it, too. JSON is YAML, too. Wraps yaml-cpp.
#pragma once

#include "common/json.h"
#include "common/result.h"

#include <string_view>
#include <vector>

namespace rubato::yaml {

constexpr std::size_t kMaxDepth = 64;
constexpr std::size_t kMaxBytes = 16u << 20;
constexpr std::size_t kMaxNodes = 1u << 20;  // after aliases are expanded

// Is this text that YAML allows: no more than kMaxBytes of UTF-8, without control characters?
// kInvalid names the line. parse_all() looks itself.
Status check_text(std::string_view text);
// kInvalid names line and column.
Result<std::vector<json::Value>> parse_all(std::string_view text);
// Exactly one document.
Result<json::Value> parse(std::string_view text);

}  // namespace rubato::yaml
