#include "operator/control/start_forecast.h"

#include "scheduler/forecast.h"

#include <algorithm>
#include <vector>

namespace rubato::control {
namespace {

constexpr auto kEvery = 60s;
constexpr auto kSoonest = 10s;  // after the last one, where a job has come to wait
constexpr auto kNear = 60s;     // times that are as near say the same
// Jobs and nodes, times plans: some tenths of a second at most.
constexpr std::size_t kWorkMost = 20'000;

int plans_for(const sched::ClusterState& state) {
  const std::size_t size = std::max<std::size_t>(1, state.jobs.size() + state.nodes.size());
  return static_cast<int>(std::min<std::size_t>(kWorkMost / size, sched::kForecastPlansMost));
}

bool is_near(WallTime said, WallTime now_said, WallTime now) {
  const auto apart = said > now_said ? said - now_said : now_said - said;
  return apart <= std::max<WallTime::duration>(kNear, (said - now) / 10);
}

}  // namespace

const std::map<sched::JobId, WallTime>& StartForecast::look_at(const sched::Snapshot& decided_on,
                                                               const sched::Plan& plan,
                                                               MonoTime now, WallTime wall) {
  const sched::ClusterState& state = decided_on.state;
  std::set<sched::JobId> waiting;
  for (std::size_t i = 0; i < state.jobs.size(); ++i)
    if (plan.verdicts[i].outcome == sched::Outcome::kNotNow) waiting.insert(state.jobs[i].id);
  std::erase_if(said_, [&](const auto& one) { return !waiting.contains(one.first); });
  const bool is_new = !std::ranges::includes(known_, waiting);
  if (waiting.empty() || (last_ && now - *last_ < (is_new ? kSoonest : kEvery))) return said_;
  last_ = now;
  known_ = waiting;
  constexpr int kPlansLeast = 2;  // that of now, and one after the first end
  const int plans = plans_for(state);
  const auto starts = plans < kPlansLeast
                          ? std::vector<std::optional<sched::TimeMs>>(state.jobs.size())
                          : sched::expected_starts(state, decided_on.policy, plans);
  for (std::size_t i = 0; i < starts.size(); ++i) {
    const sched::JobId& job = state.jobs[i].id;
    if (!waiting.contains(job)) continue;
    if (!starts[i]) {
      said_.erase(job);
      continue;
    }
    const WallTime start = wall + std::chrono::milliseconds(*starts[i]);
    const auto said = said_.find(job);
    if (said == said_.end() || !is_near(said->second, start, wall)) said_[job] = start;
  }
  return said_;
}

}  // namespace rubato::control
