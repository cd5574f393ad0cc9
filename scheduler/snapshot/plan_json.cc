#include "scheduler/snapshot/snapshot.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace rubato::sched {
namespace {

using json::Value;

Value to_json(const Action& action) {
  Value add = Value::array();
  for (const Placement& placement : action.add) {
    Value pod = Value::object(
        {{"node", placement.node}, {"gpuType", placement.gpu_type}, {"gpus", placement.gpus}});
    if (!placement.cell.empty()) pod.set("cell", placement.cell);
    add.push_back(std::move(pod));
  }
  Value remove = Value::array();
  for (const std::int64_t ordinal : action.remove) remove.push_back(ordinal);
  Value value = Value::object({{"kind", name_of(action.kind)},
                               {"job", action.job},
                               {"add", std::move(add)},
                               {"remove", std::move(remove)}});
  if (!action.shares_with.empty()) value.set("sharesWith", action.shares_with);
  value.set("reason", to_text(action.cause));
  return value;
}

Value to_json(const Job& job, const Verdict& verdict) {
  Explanation told = explain(verdict, job);
  Value value = Value::object({{"job", job.id},
                               {"outcome", name_of(verdict.outcome)},
                               {"reason", std::move(told.reason)},
                               {"message", std::move(told.message)}});
  if (verdict.until_ms) value.set("untilMs", *verdict.until_ms);
  return value;
}

Value to_json(const StorageShares& shares) {
  Value cache = Value::array();
  for (const auto& [name, bytes] : shares.cache)
    cache.push_back(Value::object({{"dataset", name}, {"bytes", bytes}}));
  Value bandwidth = Value::array();
  for (const auto& [job, bytes] : shares.bandwidth)
    bandwidth.push_back(Value::object({{"job", job}, {"bytesPerSecond", bytes}}));
  return Value::object({{"cache", std::move(cache)}, {"bandwidth", std::move(bandwidth)}});
}

Value to_json(const CpuMemoryShares& shares) {
  Value list = Value::array();
  for (const auto& [job, per_gpu] : shares)
    list.push_back(
        Value::object({{"job", job}, {"milliCpu", per_gpu.cpu}, {"memoryBytes", per_gpu.memory}}));
  return list;
}

struct WithFields {
  Value& value;
  void operator()(const LowerMin& c) const { value.set("to", c.to); }
  void operator()(const RaiseMax& c) const { value.set("to", c.to); }
  void operator()(const AnyShape&) const {}
  void operator()(const LowerPerPod& c) const { value.set("to", c.to); }
  void operator()(const AllowType& c) const { value.set("gpuType", c.gpu_type); }
  void operator()(const PreferTopology&) const {}
  void operator()(const UseMoreNodes&) const {}
  void operator()(const RaiseLimit& c) const { quota(c.queue, c.gpu_type, c.to); }
  void operator()(const RaiseGuarantee& c) const { quota(c.queue, c.gpu_type, c.to); }
  void operator()(const AddGpus& c) const {
    value.set("gpuType", c.gpu_type).set("gpus", c.gpus).set("onOneNode", c.on_one_node);
  }
  void quota(const std::string& queue, const std::string& type, Gpus to) const {
    value.set("queue", queue).set("gpuType", type).set("to", to);
  }
};

Value to_json(const Fix& fix) {
  Value changes = Value::array();
  for (const Change& change : fix) {
    Value value = Value::object({{"change", name_of(change)}});
    std::visit(WithFields{value}, change);
    changes.push_back(std::move(value.set("message", to_text(change))));
  }
  return changes;
}

}  // namespace

json::Value to_json(const Plan& plan, const ClusterState& state) {
  return to_json(plan, state, std::vector<Fix>(plan.verdicts.size()));
}

json::Value to_json(const Plan& plan, const ClusterState& state, const std::vector<Fix>& fixes) {
  Value actions = Value::array();
  for (const Action& action : plan.actions) actions.push_back(to_json(action));
  std::vector<std::size_t> by_id(plan.verdicts.size());
  std::iota(by_id.begin(), by_id.end(), std::size_t{0});
  std::ranges::sort(by_id, {}, [&](std::size_t i) -> const JobId& { return state.jobs[i].id; });
  Value verdicts = Value::array();
  for (const std::size_t i : by_id) {
    Value verdict = to_json(state.jobs[i], plan.verdicts[i]);
    if (!fixes[i].empty()) verdict.set("fix", to_json(fixes[i]));
    verdicts.push_back(std::move(verdict));
  }
  Value all = Value::object({{"version", kSnapshotVersion},
                             {"actions", std::move(actions)},
                             {"verdicts", std::move(verdicts)}});
  if (!plan.refused_cells.empty()) {
    Value refused = Value::object({});
    for (const auto& [queue, why] : plan.refused_cells) refused.set(queue, why);
    all.set("refusedCells", std::move(refused));
  }
  if (!plan.queue_shares.empty()) {
    Value shares = Value::object({});
    for (const auto& [queue, gpus] : plan.queue_shares) shares.set(queue, gpus);
    all.set("queueShares", std::move(shares));
  }
  if (plan.storage) all.set("storage", to_json(*plan.storage));
  if (plan.cpu_memory) all.set("cpuMemory", to_json(*plan.cpu_memory));
  return all;
}

json::Value to_json(const Certificate& certificate) {
  const auto amounts = [](const std::map<std::string, std::int64_t>& prices) {
    Value by_type = Value::object({});
    for (const auto& [type, price] : prices) by_type.set(type, amount_of(price));
    return by_type;
  };
  Value document = Value::object({{"gap", certificate.gap()},
                                  {"value", amount_of(certificate.value)},
                                  {"bound", amount_of(certificate.bound)},
                                  {"prices", amounts(certificate.prices.types)}});
  const std::int64_t minimums = certificate.minimums;
  document.set("aboveMinimums",
               Value::object({{"gap", certificate.gap_above_minimums()},
                              {"value", amount_of(certificate.value - minimums)},
                              {"bound", amount_of(certificate.bound - minimums)}}));
  if (certificate.prices.limits.empty()) return document;
  Value limits = Value::object({});
  for (const auto& [queue, prices] : certificate.prices.limits) limits.set(queue, amounts(prices));
  document.set("limitPrices", std::move(limits));
  return document;
}

std::string to_text(const Plan& plan, const ClusterState& state) {
  return json::dump(to_json(plan, state));
}

}  // namespace rubato::sched
