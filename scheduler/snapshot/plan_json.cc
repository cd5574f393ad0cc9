#include "scheduler/snapshot/snapshot.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace rubato::sched {
namespace {

using json::Value;

Value to_json(const Action& action) {
  Value add = Value::array();
  for (const Placement& placement : action.add)
    add.push_back(Value::object(
        {{"node", placement.node}, {"gpuType", placement.gpu_type}, {"gpus", placement.gpus}}));
  Value remove = Value::array();
  for (const std::int64_t ordinal : action.remove) remove.push_back(ordinal);
  return Value::object({{"kind", name_of(action.kind)},
                        {"job", action.job},
                        {"add", std::move(add)},
                        {"remove", std::move(remove)},
                        {"reason", to_text(action.cause)}});
}

Value to_json(const Job& job, const Verdict& verdict) {
  Explanation told = explain(verdict, job);
  return Value::object({{"job", job.id},
                        {"outcome", name_of(verdict.outcome)},
                        {"reason", std::move(told.reason)},
                        {"message", std::move(told.message)}});
}

}  // namespace

json::Value to_json(const Plan& plan, const ClusterState& state) {
  Value actions = Value::array();
  for (const Action& action : plan.actions) actions.push_back(to_json(action));
  std::vector<std::size_t> by_id(plan.verdicts.size());
  std::iota(by_id.begin(), by_id.end(), std::size_t{0});
  std::ranges::sort(by_id, {}, [&](std::size_t i) -> const JobId& { return state.jobs[i].id; });
  Value verdicts = Value::array();
  for (const std::size_t i : by_id) verdicts.push_back(to_json(state.jobs[i], plan.verdicts[i]));
  return Value::object({{"version", kSnapshotVersion},
                        {"actions", std::move(actions)},
                        {"verdicts", std::move(verdicts)}});
}

json::Value to_json(const Certificate& certificate) {
  Value prices = Value::object({});
  for (const auto& [type, price] : certificate.prices) prices.set(type, amount_of(price));
  return Value::object({{"gap", certificate.gap()},
                        {"value", amount_of(certificate.value)},
                        {"bound", amount_of(certificate.bound)},
                        {"prices", std::move(prices)}});
}

std::string to_text(const Plan& plan, const ClusterState& state) {
  return json::dump(to_json(plan, state));
}

}  // namespace rubato::sched
