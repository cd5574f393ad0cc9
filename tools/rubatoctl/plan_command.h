// The options of `rubatoctl plan`, `rubatoctl what-if` and `rubatoctl explain`, and their words.
#pragma once

#include "tools/rubatoctl/explain.h"
#include "tools/rubatoctl/plan.h"
#include "tools/rubatoctl/what_if.h"

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11 calls it so
class App;
}

namespace rubato::ctl {

extern const char* const kPlanAbout;
void add_plan_command(CLI::App& command, PlanChoice& choice);
Status run_plan(const PlanChoice& choice);  // between stdin and stdout

extern const char* const kWhatIfAbout;
void add_what_if_command(CLI::App& command, WhatIfChoice& choice);

extern const char* const kExplainAbout;
void add_explain_command(CLI::App& command, ExplainChoice& choice);

}  // namespace rubato::ctl
