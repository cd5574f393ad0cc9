// Events have two faces, core/v1 and events.k8s.io/v1, over one store. They are kept in the core
// form. Pure functions.
#pragma once

#include "common/json.h"

namespace rubato::kube::event_form {

json::Value to_core(const json::Value& event);    // from either; times that it lacks are null
json::Value from_core(const json::Value& event);  // to events.k8s.io/v1

}  // namespace rubato::kube::event_form
