// The hand-written part of rules(): see rules.h.
#pragma once

#include "operator/api/rules.h"

#include <vector>

namespace rubato::api {

std::vector<Rule> rule_table();
// What each runtime needs, and what it does not read.
std::vector<Rule> runtime_rules();
// What the API has a place for and this release does not do: refused, so that nothing is accepted
// and then ignored. Each says what is possible today.
std::vector<Rule> unsupported_rules();
// What paths and names look like.
std::vector<Rule> word_rules();

}  // namespace rubato::api
