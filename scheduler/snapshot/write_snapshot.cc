// Snapshot to JSON. What has its default is left out; lists that are sets are sorted; a set of
// nodes that two jobs or more are bound to is written once, in nodeSets.
#include "scheduler/snapshot/snapshot.h"
#include "scheduler/snapshot/words.h"

#include <algorithm>
#include <utility>

namespace rubato::sched {
namespace {

using json::Value;

// Members are appended: Value::set would look for each name among all before it.
class Fields {
 public:
  Fields& put(const char* name, Value value) {
    members_.emplace_back(name, std::move(value));
    return *this;
  }
  // Unless it has its default.
  template <class T>
  Fields& put(const char* name, const T& value, const T& fallback) {
    return value == fallback ? *this : put(name, Value(value));
  }
  Fields& put_list(const char* name, Value list) {
    return list.size() == 0 ? *this : put(name, std::move(list));
  }
  Value take() {
    Value value = Value::object();
    value.mutable_members() = std::move(members_);
    return value;
  }

 private:
  Value::Object members_;
};

const std::string kNothing;

// Equal doubles, equal bytes: 0.0 and -0.0 are equal.
double plain(double value) { return value + 0.0; }

template <class Names>
Value texts(const Names& names) {
  Value list = Value::array();
  for (const auto& name : names) list.push_back(Value(name));
  return list;
}

// The distinct sets that jobs share, in the order in which they are first met.
class SharedSets {
 public:
  explicit SharedSets(const std::vector<Job>& jobs) {
    std::map<std::set<NodeId>, int> uses;
    for (const Job& job : jobs)
      if (job.eligible) ++uses[*job.eligible];
    for (const Job& job : jobs) {
      if (!job.eligible || uses[*job.eligible] < 2 || numbers_.contains(*job.eligible)) continue;
      numbers_.emplace(*job.eligible, lists_.size());
      lists_.push_back(texts(*job.eligible));
    }
  }
  Value written(const std::set<NodeId>& set) const {
    const auto found = numbers_.find(set);
    return found == numbers_.end() ? texts(set) : Value(found->second);
  }
  const Value& lists() const { return lists_; }

 private:
  std::map<std::set<NodeId>, std::size_t> numbers_;
  Value lists_ = Value::array();
};

Value to_json(const PolicyConfig& policy) {
  Fields fields;
  fields.put("name", policy.policy);
  if (!policy.parameters.empty()) {
    Fields numbers;
    for (const auto& [name, value] : policy.parameters) numbers.put(name.c_str(), plain(value));
    fields.put("parameters", numbers.take());
  }
  if (policy.max_load != 0) fields.put("maxLoad", plain(policy.max_load));
  return fields.put("preempt", policy.preempt)
      .put("queueWeights", policy.queue_weights, false)
      .put("sharing", policy.sharing, false)
      .put("storageShares", policy.storage_shares, false)
      .put("cpuMemoryShares", policy.cpu_memory_shares, false)
      .put("minRelativeGain", plain(policy.min_relative_gain))
      .put("grownPerRound", policy.grown_per_round)
      .take();
}

Value to_json(const Resources& all) {
  Value others = Value::array();
  const auto last = std::find_if(all.others.rbegin(), all.others.rend(),
                                 [](std::int64_t amount) { return amount != 0; });
  std::for_each(all.others.begin(), last.base(),
                [&](std::int64_t amount) { others.push_back(Value(amount)); });
  return Fields()
      .put("gpus", all.gpus)
      .put("milliCpu", all.cpu, MilliCpu{0})
      .put("memoryBytes", all.memory, Bytes{0})
      .put_list("others", std::move(others))
      .take();
}

Value to_json(const Node& node) {
  Fields fields;
  fields.put("id", node.id)
      .put("gpuType", node.gpu_type)
      .put("gpus", node.gpus_total)
      .put("free", to_json(node.free));
  if (node.total)
    fields.put(
        "total",
        Fields().put("milliCpu", node.total->cpu).put("memoryBytes", node.total->memory).take());
  if (!node.domains.empty()) {
    Fields domains;
    for (const auto& [level, name] : node.domains) domains.put(level.c_str(), name);
    fields.put("domains", domains.take());
  }
  return fields.put("schedulable", node.schedulable, true)
      .put("leaving", node.leaving, false)
      .put("whyNot", node.why_not, kNothing)
      .take();
}

Value to_json(const std::string& name, const Queue& queue) {
  Value quotas = Value::array();
  for (const auto& [type, quota] : queue.quotas) {
    Fields fields;
    fields.put("gpuType", type).put("guaranteed", quota.guaranteed, Gpus{0});
    if (quota.limit) fields.put("limit", *quota.limit);
    quotas.push_back(fields.take());
  }
  Value leavers = Value::array();
  for (const auto& [type, gpus] : queue.held_by_leavers)
    leavers.push_back(Fields().put("gpuType", type).put("gpus", gpus).take());
  Value cells = Value::array();
  for (const CellQuota& one : queue.cells)
    cells.push_back(Fields()
                        .put("gpuType", one.gpu_type)
                        .put("level", one.level)
                        .put("count", one.count)
                        .take());
  Fields fields;
  fields.put("name", name)
      .put("parent", queue.parent, std::string())
      .put("ofOneUser", queue.of_one_user, false)
      .put("weight", plain(queue.weight), 1.0)
      .put_list("quotas", std::move(quotas))
      .put("borrowing", queue.borrowing, true)
      .put("closed", queue.closed, false);
  if (queue.preempts != Preempts::kAnyQueue) fields.put("preempts", name_of(queue.preempts));
  fields.put_list("cells", std::move(cells));
  if (queue.created != 0) fields.put("createdSeconds", plain(queue.created));
  return fields.put_list("heldByLeavers", std::move(leavers)).take();
}

Value to_json(const Held& held) {
  return Fields()
      .put("ordinal", held.ordinal)
      .put("node", held.node)
      .put("gpuType", held.gpu_type, kNothing)
      .put("gpus", held.gpus)
      .put("leaving", held.leaving, false)
      .put("lost", held.lost, false)
      .put("unstarted", held.unstarted, false)
      .put("refused", held.refused, false)
      .put("cell", held.cell, kNothing)
      .take();
}

Value sizes_to_json(const Job& job) {
  Fields fields;
  fields.put("min", job.min).put("max", job.max);
  if (job.shape != Shape::kAny) fields.put("shape", name_of(job.shape));
  return fields.take();
}

void put_wishes(const Job& job, const SharedSets& sets, Fields& fields) {
  fields.put("gpus", sizes_to_json(job))
      .put("perPod", to_json(job.per_pod))
      .put_list("allow", texts(job.allow))
      .put("mix", job.mix, false)
      .put("oneNode", job.one_node, false);
  if (job.topology)
    fields.put("topology", Fields()
                               .put("level", job.topology->level)
                               .put("mode", kTopologyWords[job.topology->required ? 1 : 0])
                               .take());
  if (job.eligible) fields.put("eligible", sets.written(*job.eligible));
  fields.put_list("avoid", texts(job.avoid))
      .put("narrowed", job.narrowed, kNothing)
      .put("mayPreempt", job.may_preempt, true)
      .put("preemptible", job.preemptible, true)
      .put("minRunMs", job.min_run_ms, TimeMs{0})
      .put("notAdmitted", job.not_admitted, kNothing)
      .put("spareOnly", job.spare_only, kNothing)
      .put("refused", job.refused, kNothing)
      .put("refusedAs", job.refused_as, kNothing);
}

void put_progress(const Job& job, Fields& fields) {
  Value held = Value::array();
  for (const Held& pod : job.held) held.push_back(to_json(pod));
  Value measured = Value::array();
  for (const ThroughputPoint& point : job.measured)
    measured.push_back(Fields()
                           .put("gpuType", point.gpu_type)
                           .put("gpus", point.gpus)
                           .put("tokensPerSecond", plain(point.tokens_per_second))
                           .take());
  Value goodput = Value::array();
  for (const GoodputPoint& point : job.goodput)
    goodput.push_back(Fields()
                          .put("gpuType", point.gpu_type)
                          .put("gpus", point.gpus)
                          .put("nodes", point.nodes, std::int64_t{0})
                          .put("perSecond", plain(point.per_second))
                          .take());
  fields.put("started", job.started, false)
      .put("settled", job.settled, true)
      .put("cooling", job.cooling, false)
      .put_list("held", std::move(held))
      .put_list("measured", std::move(measured))
      .put_list("goodput", std::move(goodput))
      .put("restarts", job.restarts, std::int64_t{0});
  if (job.stall_ms) fields.put("stallMs", *job.stall_ms);
  if (job.start_ms) fields.put("startMs", *job.start_ms);
  if (job.join_ms) fields.put("joinMs", *job.join_ms);
  if (job.gpu_use)
    fields.put("gpuUse", Fields()
                             .put("busy", plain(job.gpu_use->busy))
                             .put("memoryBytes", job.gpu_use->memory, Bytes{0})
                             .put("besideAnother", plain(job.gpu_use->beside_another))
                             .take());
  fields.put("trafficBytesPerSecond", plain(job.traffic), 0.0)
      .put("guestOf", job.guest_of, kNothing);
  Value sensitivity = Value::array();
  for (const SensitivityPoint& point : job.sensitivity)
    sensitivity.push_back(Fields()
                              .put("milliCpu", point.per_gpu.cpu)
                              .put("memoryBytes", point.per_gpu.memory)
                              .put("part", plain(point.part))
                              .take());
  fields.put_list("sensitivity", std::move(sensitivity));
  if (job.dataset)
    fields.put("dataset", Fields()
                              .put("name", job.dataset->name)
                              .put("bytes", job.dataset->bytes)
                              .put("bytesPerSecond", job.dataset->bytes_per_second)
                              .take());
  Value beside = Value::array();
  for (const SpeedBeside& one : job.beside)
    beside.push_back(Fields().put("job", one.job).put("part", plain(one.part)).take());
  fields.put_list("beside", std::move(beside));
}

Value to_json(const Job& job, const SharedSets& sets) {
  Value by_type = Value::array();
  for (const auto& [type, gpu_ms] : job.attained_by_type)
    by_type.push_back(Fields().put("gpuType", type).put("gpuMs", gpu_ms).take());
  Fields fields;
  fields.put("id", job.id)
      .put("name", job.name, job.id)
      .put("queue", job.queue)
      .put("priority", job.priority, std::int64_t{0})
      .put("weight", plain(job.weight), 1.0)
      .put("queuedAtSeconds", plain(job.queued_at), 0.0)
      .put("attainedGpuMs", job.attained_gpu_ms, GpuMs{0})
      .put_list("attainedByType", std::move(by_type))
      .put("allocatedMs", job.allocated_ms, TimeMs{-1})
      .put("runningSinceMs", job.running_since_ms, TimeMs{-1});
  if (job.duration_ms) fields.put("durationMs", *job.duration_ms);
  if (job.remaining_ms) fields.put("remainingMs", *job.remaining_ms);
  if (job.deadline_ms) fields.put("deadlineMs", *job.deadline_ms);
  put_wishes(job, sets, fields);
  put_progress(job, fields);
  return fields.take();
}

}  // namespace

const char* name_of(Shape shape) { return kShapeWords[static_cast<std::size_t>(shape)]; }
const char* name_of(Preempts preempts) {
  return kPreemptsWords[static_cast<std::size_t>(preempts)];
}

Snapshot without_time(Snapshot snapshot) {
  snapshot.state.now_ms = 0;
  for (Job& job : snapshot.state.jobs) {
    job.attained_gpu_ms = 0;
    job.attained_by_type.clear();
    job.remaining_ms.reset();
  }
  return snapshot;
}

json::Value to_json(const Snapshot& snapshot) {
  const ClusterState& state = snapshot.state;
  const SharedSets sets(state.jobs);
  Value nodes = Value::array();
  for (const Node& node : state.nodes) nodes.push_back(to_json(node));
  Value queues = Value::array();
  for (const auto& [name, queue] : state.queues) queues.push_back(to_json(name, queue));
  Value jobs = Value::array();
  for (const Job& job : state.jobs) jobs.push_back(to_json(job, sets));
  Fields fields;
  fields.put("version", kSnapshotVersion)
      .put("policy", to_json(snapshot.policy))
      .put("nowMs", state.now_ms, TimeMs{0})
      .put_list("topologyLevels", texts(state.levels));
  if (state.storage)
    fields.put("storage", Fields()
                              .put("cacheBytes", state.storage->cache_bytes)
                              .put("remoteBytesPerSecond", state.storage->remote_bytes_per_second)
                              .take());
  return fields.put("nodes", std::move(nodes))
      .put_list("nodeSets", sets.lists())
      .put_list("queues", std::move(queues))
      .put("jobs", std::move(jobs))
      .take();
}

std::string to_text(const Snapshot& snapshot) { return json::dump(to_json(snapshot)); }

}  // namespace rubato::sched
