// The hand-written part of rules(): see rules.h.
#pragma once

#include "operator/api/rules.h"

#include <vector>

namespace rubato::api {

std::vector<Rule> rule_table();

}  // namespace rubato::api
