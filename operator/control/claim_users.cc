#include "operator/control/claim_users.h"

#include "operator/api/conditions.h"

#include <algorithm>

#include <fmt/core.h>

namespace rubato::control {

void ClaimUsers::keep_to_users(const kube::Key& claim, std::set<sched::NodeId>& nodes) const {
  const auto users = users_.find(claim);
  if (users == users_.end()) return;
  std::erase_if(nodes, [&](const sched::NodeId& node) {
    return std::none_of(users->second.begin(), users->second.end(),
                        [&](const ClaimUser& user) { return user.node == node; });
  });
}

VolumeProblem ClaimUsers::problem_of(
    const kube::Key& claim, const std::function<bool(const std::string& pod)>& is_its_own) const {
  const auto users = users_.find(claim);
  if (users == users_.end()) return {};
  for (const ClaimUser& user : users->second) {
    if (is_its_own(user.pod)) continue;
    return {std::string(api::reason::kClaimInUse),
            fmt::format("spec.template.spec.volumes: the claim \"{}\" is ReadWriteOncePod, and pod "
                        "{} on node {} uses it; wait until that pod is gone, or use another claim",
                        claim.name, user.pod, user.node)};
  }
  return {};
}

}  // namespace rubato::control
