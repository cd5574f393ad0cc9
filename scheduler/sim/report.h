// One HTML page about several runs of one trace: a table, the jobs that were left out, and plots as
// inline SVG: GPUs held over time, jobs that wait over time, and what part of all jobs was done
// within which time. Nothing is fetched: the page opens without a network. Lines have at most some
// hundred points, however long the trace; 80 of them can be told apart.
#pragma once

#include "scheduler/sim/results.h"

namespace rubato::sched::sim {

// `runs`: the summaries of `results`, in order.
std::string html_report(const std::string& title, const std::vector<SimResult>& results,
                        const std::vector<Summary>& runs);

}  // namespace rubato::sched::sim
