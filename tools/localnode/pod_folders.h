// What pods leave in <root>/pods/<uid>: while they run their volumes, the roots of their sandboxes
// and what these are started with, which all may hold Secrets; for longer their logs. What cannot
// be removed stays, in silence.
#pragma once

#include <cstddef>
#include <set>
#include <string>

namespace rubato::localnode {

// All but its logs. Nothing of the pod may run.
void clear_pod_folder(const std::string& folder);
// The same of every pod that was ever here.
void clear_pod_folders(const std::string& root);
// The folders of pods that are not `present`, but for the `kept` that ended last.
void remove_gone_pods(const std::string& root, const std::set<std::string>& present,
                      std::size_t kept);

}  // namespace rubato::localnode
