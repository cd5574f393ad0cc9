// What is generated from the descriptors: CustomResourceDefinitions and docs/api.md. The program
// rubato-apigen writes them into crds/ and docs/; a test fails when they differ. Pure functions.
#pragma once

#include "common/json.h"
#include "operator/api/kinds.h"

#include <string>

namespace rubato::api {

// The apiextensions.k8s.io/v1 object, with schema, defaults, rules, columns and subresources.
json::Value crd(const Kind& kind);

// `value` as block YAML, for people; strings are quoted where YAML would read something else.
std::string to_yaml(const json::Value& value);

// docs/api.md: one table per struct, the rules and their messages.
std::string api_reference();

}  // namespace rubato::api
