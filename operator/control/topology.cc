#include "operator/control/topology.h"

#include "operator/api/conditions.h"
#include "scheduler/snapshot/snapshot.h"

#include <algorithm>
#include <cstddef>

#include <fmt/format.h>

namespace rubato::control {
namespace {

constexpr std::size_t kNameMost = 63;  // as in spec.topology.level

std::string names_of(const std::vector<TopologyLevel>& levels) {
  std::string names;
  for (const TopologyLevel& level : levels) names += (names.empty() ? "" : ", ") + level.name;
  return names.empty() ? "none" : names;
}

}  // namespace

Result<std::vector<TopologyLevel>> parse_topology_levels(const std::vector<std::string>& levels) {
  const auto wrong = [](const std::string& level, const std::string& expected) {
    return Error(Code::kInvalid, fmt::format("topology level \"{}\": {}", level, expected));
  };
  std::vector<TopologyLevel> all;
  for (const std::string& level : levels) {
    if (level.empty()) continue;  // of an empty list
    const auto cut = level.find('=');
    if (cut == std::string::npos || cut == 0 || cut > kNameMost || cut + 1 == level.size())
      return wrong(level, "expected NAME=LABEL, such as rack=example.com/rack");
    all.push_back({level.substr(0, cut), level.substr(cut + 1)});
    if (std::ranges::count(all, all.back().name, &TopologyLevel::name) > 1)
      return wrong(level, "there is another of that name");
  }
  if (std::ssize(all) > sched::kLevelsMost)
    return wrong(all.back().name, fmt::format("expected at most {} levels", sched::kLevelsMost));
  return all;
}

std::map<std::string, std::string> domains_of(const kube::Node& node,
                                              const std::vector<TopologyLevel>& levels) {
  std::map<std::string, std::string> domains;
  for (const TopologyLevel& level : levels) {
    const auto value = kube::find(node.meta.labels, level.key);
    if (value && !value->empty()) domains.emplace(level.name, *value);
  }
  return domains;
}

std::string_view gpu_type_of(const kube::Node& node, const std::string& label) {
  const std::string_view type = kube::find(node.meta.labels, label).value_or("");
  return type.empty() ? "unknown" : type;
}

void describe_topology(const api::TrainingJob& job, const std::vector<TopologyLevel>& levels,
                       sched::Job& seen) {
  if (!job.spec.topology) return;
  const api::TopologySpec& asked = *job.spec.topology;
  if (std::ranges::find(levels, asked.level, &TopologyLevel::name) != levels.end()) {
    seen.topology = sched::Topology{asked.level, asked.mode == api::TopologyMode::kRequired};
    return;
  }
  if (!seen.refused.empty()) return;
  seen.refused = fmt::format(
      "spec.topology.level: this installation knows no level \"{}\" (it knows: {}); create the job "
      "again with one of those, or have the level added (scheduler.topologyLevels of the chart)",
      asked.level, names_of(levels));
  seen.refused_as = api::reason::kNeverFits;
}

}  // namespace rubato::control
