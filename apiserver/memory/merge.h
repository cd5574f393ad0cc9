// The two patch kinds that know about lists of named things. Pure functions.
//
// apply: a subset of server-side apply without field managers: every field in the patch is set,
// lists declared as maps or sets are merged by their keys, and nothing is removed. Conflicts
// between managers are therefore never reported.
//
// strategic: the strategic merge of built-in kinds with the merge keys of their known lists and the
// directives $patch (replace, delete), $setElementOrder (accepted, order is kept as stored),
// $deleteFromPrimitiveList and $retainKeys.
#pragma once

#include "common/json.h"

namespace rubato::kube::merge {

// `schema` is the custom type's schema, or null for built-in kinds (then the table of known lists).
void apply(json::Value& target, const json::Value& patch, const json::Value& schema);

void strategic(json::Value& target, const json::Value& patch);

}  // namespace rubato::kube::merge
