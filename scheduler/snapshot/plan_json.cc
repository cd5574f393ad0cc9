#include "scheduler/snapshot/snapshot.h"

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
                        {"reason", action.reason}});
}

Value to_json(const JobId& job, const Verdict& verdict) {
  return Value::object({{"job", job},
                        {"outcome", name_of(verdict.outcome)},
                        {"reason", verdict.reason},
                        {"message", verdict.message}});
}

}  // namespace

json::Value to_json(const Plan& plan) {
  Value actions = Value::array();
  for (const Action& action : plan.actions) actions.push_back(to_json(action));
  Value verdicts = Value::array();
  for (const auto& [job, verdict] : plan.verdicts) verdicts.push_back(to_json(job, verdict));
  return Value::object({{"version", kSnapshotVersion},
                        {"actions", std::move(actions)},
                        {"verdicts", std::move(verdicts)}});
}

std::string to_text(const Plan& plan) { return json::dump(to_json(plan)); }

}  // namespace rubato::sched
