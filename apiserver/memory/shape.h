// The JSON types of those members of an object that the rules of this server write into or rely
// upon. The real server decodes a body into structs before it does anything else, and refuses
// another type there; the rules here work on the JSON itself, so every body is checked first. A
// table of paths, no schema: what no rule relies upon is not looked at. Pure function.
#pragma once

#include "common/json.h"

#include <optional>
#include <string>

namespace rubato::kube::shape {

// What the real server's decoder says of the first member that is of another type than `kind` has
// it: "json: cannot unmarshal string into Go struct field Pod.spec.containers of type []interface
// {}". Null fits everywhere but at the root. An empty kind is a custom one: of it only the metadata
// is looked at, the rest is its schema's.
std::optional<std::string> misfit(const std::string& kind, const json::Value& object);

}  // namespace rubato::kube::shape
