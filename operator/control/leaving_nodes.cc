#include "operator/control/leaving_nodes.h"

#include <algorithm>

#include <fmt/format.h>

namespace rubato::control {

namespace {

constexpr std::size_t kTaintKeyMost = 317;  // a prefix of 253 bytes, a slash, a name of 63

// Any time may be written there: to take now from it may be more than a Duration holds.
WallTime left_from(WallTime maintenance, const Config& config) {
  return maintenance - config.maintenance_lead;
}

}  // namespace

Result<std::optional<WallTime>> maintenance_of(const kube::Node& node) {
  const auto text = kube::find(node.meta.annotations, kMaintenanceAt);
  if (!text) return std::optional<WallTime>();
  TRY(const WallTime at, parse_rfc3339(*text));
  return std::optional(at);
}

std::string why_leaving(const kube::Node& node, WallTime now, const Config& config) {
  for (const kube::Taint& taint : node.taints)
    if (std::ranges::find(config.leaving_taints, taint.key) != config.leaving_taints.end())
      return "taint " + taint.key;
  const auto at = maintenance_of(node);
  if (at.ok() && *at && left_from(**at, config) <= now) return "maintenance at " + to_rfc3339(**at);
  return node.meta.deleting ? "being deleted" : "";
}

std::optional<WallTime> next_leaving(const std::vector<std::shared_ptr<const kube::Node>>& nodes,
                                     WallTime now, const Config& config) {
  std::optional<WallTime> next;
  for (const auto& node : nodes) {
    const auto at = maintenance_of(*node);
    if (!at.ok() || !*at) continue;
    const WallTime from = left_from(**at, config);
    if (from > now) next = std::min(next.value_or(from), from);
  }
  return next;
}

Result<std::vector<std::string>> parse_taint_keys(const std::vector<std::string>& keys) {
  std::vector<std::string> known;
  for (const std::string& key : keys) {
    if (key.empty()) continue;  // of an empty list
    if (key.size() > kTaintKeyMost || key.find_first_of(" \t\n=:") != std::string::npos)
      return Error(Code::kInvalid, fmt::format("\"{}\": the key of a taint is expected, as in "
                                               "example.com/spot-ends, without value and effect",
                                               key.substr(0, kTaintKeyMost)));
    known.push_back(key);
  }
  return known;
}

}  // namespace rubato::control
