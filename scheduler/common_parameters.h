// The parameters that all policies have: numbers by name, as in spec.parameters of a
// SchedulingPolicy and in the words of a simulation, beside the policy's own (its Descriptor).
#pragma once

#include "common/result.h"
#include "scheduler/plan.h"

#include <string>

namespace rubato::sched {

// For messages.
constexpr const char* kCommonParameters = "maxLoad, minRelativeGain, preempt and queueWeights";

// True: it is one of them, and is set. kInvalid: not in its range; the text says which is.
Result<bool> set_common_parameter(PolicyConfig& config, const std::string& name, double value);

}  // namespace rubato::sched
