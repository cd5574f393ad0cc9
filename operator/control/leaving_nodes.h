// Nodes that are about to go: for maintenance, at a time that an administrator wrote on the Node;
// or for good, as a taint says that whoever takes the node away put on it. Jobs leave them before
// (sched::Node::leaving). Pure.
#pragma once

#include "common/clock.h"
#include "common/result.h"
#include "kube/objects/node.h"
#include "operator/control/config.h"

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rubato::control {

// An annotation: a time as in RFC 3339. As long as it is there the node takes no pods from
// Config::maintenance_lead before that time on, nor after it.
inline constexpr std::string_view kMaintenanceAt = "rubato.dev/maintenance-at";

// None: nothing is said. An error: it is no time, and is not looked at.
Result<std::optional<WallTime>> maintenance_of(const kube::Node& node);

// In a clause for people; "": it is not about to go.
std::string why_leaving(const kube::Node& node, WallTime now, const Config& config);

// When the next of them begins to be left, for a maintenance that is further away now. None: no
// such time is known.
std::optional<WallTime> next_leaving(const std::vector<std::shared_ptr<const kube::Node>>& nodes,
                                     WallTime now, const Config& config);

// Keys of taints. An error says which is none.
Result<std::vector<std::string>> parse_taint_keys(const std::vector<std::string>& keys);

}  // namespace rubato::control
