#include "scheduler/sim/trace.h"

#include "common/check.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

namespace rubato::sched::sim {
namespace {

constexpr std::int64_t kNodesMax = 100'000;  // of a cluster, as in a snapshot
constexpr Gpus kGpusPerNodeMax = 1024;
constexpr double kDistanceMax = 1000;

bool read_count(std::string_view text, std::int64_t most, std::int64_t& to) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), to);
  return error == std::errc() && end == text.data() + text.size() && to >= 1 && to <= most;
}

Result<NodeGroup> parse_group(std::string_view part) {
  const Error bad(Code::kInvalid,
                  fmt::format("\"{}\": expected nodes x GPUs : type, as in 16x4:T4 (at most {} "
                              "nodes of at most {} GPUs)",
                              part, kNodesMax, kGpusPerNodeMax));
  const std::size_t x = part.find('x');
  const std::size_t colon = part.find(':');
  if (x == std::string_view::npos || colon == std::string_view::npos || colon < x) return bad;
  NodeGroup group;
  if (!read_count(part.substr(0, x), kNodesMax, group.nodes) ||
      !read_count(part.substr(x + 1, colon - x - 1), kGpusPerNodeMax, group.gpus))
    return bad;
  group.gpu_type = part.substr(colon + 1);
  if (group.gpu_type.empty() || group.gpu_type == "*") return bad;
  return group;
}

// "zone=16,rack=4": each name with its number.
template <class T>
Result<std::vector<std::pair<std::string, T>>> parse_pairs(std::string_view text, T least, T most) {
  std::vector<std::pair<std::string, T>> pairs;
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    const std::string_view part = text.substr(0, comma);
    text.remove_prefix(comma == std::string_view::npos ? text.size() : comma + 1);
    const std::size_t equals = std::min(part.find('='), part.size());
    const std::string_view number = part.substr(std::min(equals + 1, part.size()));
    T value{};
    const auto [end, wrong] = std::from_chars(number.begin(), number.end(), value);
    if (equals == 0 || wrong != std::errc() || end != number.end() ||
        !(value >= least && value <= most))
      return Error(Code::kInvalid,
                   fmt::format("\"{}\": expected LEVEL=NUMBER, from {} to {}", part, least, most));
    pairs.emplace_back(part.substr(0, equals), value);
  }
  return pairs;
}

}  // namespace

void SpeedCurve::add(const std::string& gpu_type, SpeedPoint point) {
  CHECK_GT(point.gpus, 0);
  CHECK(point.units_per_second > 0);
  std::vector<SpeedPoint>& of_type = points_[gpu_type];
  const auto at =
      std::lower_bound(of_type.begin(), of_type.end(), point,
                       [](const SpeedPoint& a, const SpeedPoint& b) { return a.gpus < b.gpus; });
  if (at != of_type.end() && at->gpus == point.gpus)
    *at = point;
  else
    of_type.insert(at, point);
}

const std::vector<SpeedPoint>* SpeedCurve::find(const std::string& gpu_type) const {
  auto found = points_.find(gpu_type);
  if (found == points_.end()) found = points_.find("*");
  return found == points_.end() ? nullptr : &found->second;
}

const std::vector<SpeedPoint>& SpeedCurve::points_on(const std::string& gpu_type) const {
  const std::vector<SpeedPoint>* points = find(gpu_type);
  CHECK(points != nullptr);
  return *points;
}

double SpeedCurve::at(const std::string& gpu_type, Gpus gpus) const {
  const std::vector<SpeedPoint>* points = find(gpu_type);
  if (points == nullptr || gpus <= 0) return 0;
  const auto next = std::lower_bound(points->begin(), points->end(), gpus,
                                     [](const SpeedPoint& p, Gpus n) { return p.gpus < n; });
  if (next == points->end()) return points->back().units_per_second;
  const double n = static_cast<double>(gpus);
  if (next->gpus == gpus) return next->units_per_second;
  if (next == points->begin()) return next->units_per_second * n / static_cast<double>(next->gpus);
  const SpeedPoint& before = *(next - 1);
  const double x0 = 1.0 / static_cast<double>(before.gpus);
  const double x1 = 1.0 / static_cast<double>(next->gpus);
  const double y0 = 1.0 / before.units_per_second;
  const double y1 = 1.0 / next->units_per_second;
  return 1.0 / (y0 + (y1 - y0) * (1.0 / n - x0) / (x1 - x0));
}

bool SpeedCurve::has_point(const std::string& gpu_type, Gpus gpus) const {
  const std::vector<SpeedPoint>* points = find(gpu_type);
  return points != nullptr && std::ranges::binary_search(*points, gpus, {}, &SpeedPoint::gpus);
}

double SpeedCurve::fastest() const {
  double best = 0;
  for (const auto& [type, points] : points_)
    for (const SpeedPoint& point : points) best = std::max(best, point.units_per_second);
  return best;
}

bool TraceJob::may_use(const std::string& gpu_type) const {
  const bool is_declared = allow.empty() || std::ranges::find(allow, gpu_type) != allow.end();
  return is_declared && speed.runs_on(gpu_type);
}

Gpus SimCluster::gpus() const {
  Gpus sum = 0;
  for (const NodeGroup& group : groups) sum += group.nodes * group.gpus;
  return sum;
}

std::map<std::string, Gpus> SimCluster::gpus_by_type() const {
  std::map<std::string, Gpus> by_type;
  for (const NodeGroup& group : groups) by_type[group.gpu_type] += group.nodes * group.gpus;
  return by_type;
}

std::map<std::string, Gpus> SimCluster::largest_node_by_type() const {
  std::map<std::string, Gpus> by_type;
  for (const NodeGroup& group : groups)
    by_type[group.gpu_type] = std::max(by_type[group.gpu_type], group.gpus);
  return by_type;
}

Result<SimCluster> parse_cluster(std::string_view text) {
  SimCluster cluster;
  std::int64_t nodes = 0;
  while (true) {
    const std::size_t comma = text.find(',');
    TRY(NodeGroup group, parse_group(text.substr(0, comma)));
    nodes += group.nodes;
    if (nodes > kNodesMax)
      return Error(Code::kInvalid, fmt::format("expected at most {} nodes in all", kNodesMax));
    cluster.groups.push_back(std::move(group));
    if (comma == std::string_view::npos) return cluster;
    text.remove_prefix(comma + 1);
  }
}

std::string to_text(const SimCluster& cluster) {
  std::string text;
  for (const NodeGroup& group : cluster.groups)
    text +=
        fmt::format("{}{}x{}:{}", text.empty() ? "" : ",", group.nodes, group.gpus, group.gpu_type);
  return text;
}

Result<std::vector<DomainSize>> parse_domains(std::string_view text) {
  TRY(const auto pairs, parse_pairs<std::int64_t>(text, 1, kNodesMax));
  std::vector<DomainSize> domains;
  for (const auto& [level, nodes] : pairs) {
    const bool is_again = std::ranges::find(domains, level, &DomainSize::level) != domains.end();
    if (level == kNodeLevel || is_again || (!domains.empty() && nodes > domains.back().nodes))
      return Error(Code::kInvalid,
                   fmt::format("\"{}\": expected the widest level first, each of its own name, "
                               "as in zone=16,rack=4",
                               text));
    domains.push_back({level, nodes});
  }
  return domains;
}

Result<std::map<std::string, double>> parse_distances(std::string_view text,
                                                      const SimCluster& cluster) {
  TRY(const auto pairs, parse_pairs<double>(text, 1, kDistanceMax));
  std::map<std::string, double> distances;
  for (const auto& [level, factor] : pairs) {
    const bool is_there =
        level == kNodeLevel ||
        std::ranges::find(cluster.domains, level, &DomainSize::level) != cluster.domains.end();
    if (!is_there || !distances.emplace(level, factor).second)
      return Error(Code::kInvalid,
                   fmt::format("\"{}\": expected \"{}\" or a level of the cluster, each once",
                               level, kNodeLevel));
  }
  return distances;
}

void sort_jobs(std::vector<TraceJob>& jobs) {
  std::sort(jobs.begin(), jobs.end(), [](const TraceJob& a, const TraceJob& b) {
    return a.submit_ms != b.submit_ms ? a.submit_ms < b.submit_ms : a.id < b.id;
  });
}

}  // namespace rubato::sched::sim
