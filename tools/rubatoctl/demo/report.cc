#include "tools/rubatoctl/demo/report.h"

#include <algorithm>
#include <deque>

#include <fmt/core.h>

namespace rubato::ctl {
namespace {

constexpr std::size_t kMedianOf = 15;
constexpr std::size_t kPaceOf = 10;

double seconds_between(WallTime from, WallTime to) {
  return std::chrono::duration<double>(to - from).count();
}

double median(const std::deque<double>& values) {
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  return sorted.empty() ? 0 : sorted[sorted.size() / 2];
}

}  // namespace

std::vector<ChangeCost> costs_of(const StepsSeen& steps, const std::vector<RescaleSeen>& rescales) {
  std::vector<ChangeCost> costs;
  std::deque<double> lengths;
  const StepSeen* before = nullptr;
  for (const auto& [step, seen] : steps) {
    if (before != nullptr && before->line.step + 1 == step) {
      const double gap = seconds_between(before->time, seen.time);
      if (before->line.generation != seen.line.generation) {
        ChangeCost cost{
            step, seen.line.generation, before->line.gpus, seen.line.gpus, gap, median(lengths), "",
            -1};
        for (const RescaleSeen& rescale : rescales) {
          if (rescale.generation != cost.generation) continue;
          cost.reason = rescale.reason;
          cost.stall_seconds = rescale.stall_seconds;
        }
        costs.push_back(std::move(cost));
        lengths.clear();
      } else {
        lengths.push_back(gap);
        if (lengths.size() > kMedianOf) lengths.pop_front();
      }
    }
    before = &seen;
  }
  return costs;
}

TextTable cost_table(const std::vector<ChangeCost>& costs) {
  TextTable table{{"STEP", "GPUS", "STALL", "GAP", "USUAL STEP", "WHAT"}, {}};
  for (const ChangeCost& cost : costs) {
    const double stall = cost.stall_seconds >= 0
                             ? cost.stall_seconds
                             : std::max(0.0, cost.gap_seconds - cost.usual_seconds);
    table.rows.push_back({std::to_string(cost.step), fmt::format("{} to {}", cost.from, cost.to),
                          fmt::format("{:.2f}s", stall), fmt::format("{:.2f}s", cost.gap_seconds),
                          fmt::format("{:.2f}s", cost.usual_seconds),
                          cost.reason.empty() ? "-" : cost.reason});
  }
  return table;
}

Pace pace_of(const StepsSeen& seen, std::int64_t steps, std::int64_t tokens_per_step) {
  if (seen.size() < 2) return {};
  const auto last = std::prev(seen.end());
  const auto first =
      std::prev(seen.end(), static_cast<std::ptrdiff_t>(std::min(seen.size(), kPaceOf + 1)));
  const double length = seconds_between(first->second.time, last->second.time);
  const auto done = static_cast<double>(last->first - first->first);
  if (length <= 0 || done <= 0) return {};
  return {done * static_cast<double>(tokens_per_step) / length,
          static_cast<double>(steps - last->first) * length / done};
}

}  // namespace rubato::ctl
