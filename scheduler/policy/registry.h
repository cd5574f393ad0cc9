// All policies by name. A new one is a file pair and a line in registry.cc; the CRD's list of
// names, the check of parameters, docs/policies.md and `--help` are made from here.
#pragma once

#include "common/result.h"
#include "scheduler/policy/policy.h"

#include <memory>
#include <string>
#include <vector>

namespace rubato::sched {

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
