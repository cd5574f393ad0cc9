// The options of `rubatoctl plan`, and its words.
#pragma once

#include "tools/rubatoctl/plan.h"

namespace CLI {
class App;
}

namespace rubato::ctl {

extern const char* const kPlanAbout;
void add_plan_command(CLI::App& command, PlanChoice& choice);
Status run_plan(const PlanChoice& choice);  // between stdin and stdout

}  // namespace rubato::ctl
