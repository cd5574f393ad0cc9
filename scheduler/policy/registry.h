// All policies by name. A new one is a file pair and a line in registry.cc; the CRD's list of
// names, the check of parameters, docs/policies.md and `--help` are made from here.
#pragma once

#include "common/result.h"
#include "scheduler/policy/policy.h"

#include <memory>
#include <string>
#include <vector>

namespace rubato::sched {

// The parameters that all have beside their own (scheduler/common_parameters.h), for docs/api.md
// and docs/policies.md.
constexpr const char* kCommonParametersText =
    "`minRelativeGain` (-1 to 1; 0.01: a running job grows only if the step adds this share of its "
    "throughput; below 0 jobs take all GPUs that are left over, whatever sizes a policy says, but "
    "under `pollux` and `sia`, which choose the nodes, too), `preempt` (0 or 1; 1: may jobs be "
    "preempted at all), `maxLoad` (0 to 1000: jobs are admitted while their minimums are at most "
    "so many times the healthy GPUs; 0: all are), `queueWeights` (0 or 1; 1: queues are guaranteed "
    "their shares by weight, too)";

// What decides where nothing else is said: without a SchedulingPolicy, and in a snapshot without
// the name of one.
constexpr const char* kDefaultPolicy = "rubato";

// In the order in which people should read them.
std::vector<Descriptor> all_policies();
// By its name, of one that there is.
Descriptor descriptor_of(const std::string& policy);
// docs/policies.md: all that their descriptors say.
std::string policies_page();

// kInvalid: there is no such policy, or a parameter is not known, or not in its range;
// the text says which, and what would be right.
Result<std::unique_ptr<Policy>> make_policy(const std::string& name,
                                            const std::map<std::string, double>& parameters);

}  // namespace rubato::sched
