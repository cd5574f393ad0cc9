// All schedulers by name. A new one is a file pair and a line here.
#pragma once

#include "scheduler/sim/scheduler.h"

#include <string_view>

namespace rubato::sched::sim {

// Null: no such name.
std::unique_ptr<Scheduler> scheduler_named(std::string_view name);
std::vector<Descriptor> all_schedulers();

}  // namespace rubato::sched::sim
