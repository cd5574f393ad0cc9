// Structural schemas: the openAPIV3Schema of a custom type, walked directly as JSON. In the order
// of the real server: drop unknown fields (reporting them), fill defaults, validate. Messages are
// the real server's. Pure functions; cost is linear in the object, with a map lookup per field.
#pragma once

#include "apiserver/memory/api_error.h"

#include <string>
#include <vector>

namespace rubato::kube::schema {

// Removes what the schema does not declare, except apiVersion, kind and metadata at the root.
// Returns the paths of what was removed ("spec.bogus", "spec.ports[1].bogus").
std::vector<std::string> prune(json::Value& object, const json::Value& schema);

// Fills `default` values into missing fields, and replaces a null that may not be null.
void fill_defaults(json::Value& object, const json::Value& schema);

// Every violation, in the order of the schema's walk. metadata is not looked at, nor is what an
// update of `before` (null: it is created) left as it was, which the real server passes over, too
// (validation ratcheting): here that is what shares its content with `before`, so that a write
// costs what it changes.
std::vector<FieldError> validate(const json::Value& object, const json::Value& before,
                                 const json::Value& schema);

// True when the schema holds CEL rules anywhere (x-kubernetes-validations).
bool has_rules(const json::Value& schema);

// The schema of a member: properties, else additionalProperties; null when unknown.
const json::Value& member_schema(const json::Value& schema, std::string_view key);

}  // namespace rubato::kube::schema
