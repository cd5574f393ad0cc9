// JSON to Snapshot: docs/snapshot.md in code, field by field and in its order; what no single field
// shows is in state_checks.h.
#include "scheduler/model/queue_tree.h"
#include "scheduler/policy/registry.h"
#include "scheduler/snapshot/json_cursor.h"
#include "scheduler/snapshot/read_parts.h"
#include "scheduler/snapshot/snapshot.h"
#include "scheduler/snapshot/state_checks.h"
#include "scheduler/snapshot/words.h"

#include <limits>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

namespace rubato::sched {
namespace {

constexpr double kSecondsMost = 1e15;
constexpr double kWeightMost = 1e9;
constexpr double kSpeedMost = 1e15;
constexpr std::int64_t kBesideMost = 256;
constexpr double kParameterMost = 1e15;
constexpr std::size_t kParametersMost = 64;
constexpr double kGainLeast = -1;
constexpr double kLoadMost = 1e6;
constexpr double kGainMost = 1e6;
constexpr std::int64_t kPriorityMost = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kDropped = -1;  // ordinal of a pod that its allocation has dropped
constexpr json::Limits kJsonLimits{
    .depth = 16, .bytes = kSnapshotBytesMost, .refuses_duplicates = true};

class Reader {
 public:
  Result<Snapshot> read(const json::Value& document) {
    const Path root;
    JsonCursor top(document, root, trouble_);
    top.whole("version", kSnapshotVersion, kSnapshotVersion);
    snapshot_.policy.policy = kDefaultPolicy;
    top.object("policy", false, [this](JsonCursor& c) { read_policy(c); });
    snapshot_.state.now_ms = top.whole("nowMs", 0, kWholeMost, 0);
    read_levels(top);
    read_storage(top, snapshot_.state);
    top.each("nodes", kNodesMost, true, [this](const auto& v, const Path& p) { read_node(v, p); });
    top.each("nodeSets", kJobsMost, false, [this](const auto& v, const Path& p) {
      sets_.push_back(distinct(texts_of(v, p, kNodesMost, kIdBytes, trouble_), p));
    });
    top.each("queues", kQueuesMost, false,
             [this](const auto& v, const Path& p) { read_queue(v, p); });
    check_parents(document["queues"], {&root, "queues"});
    check_listed(document["jobs"], {&root, "jobs"});
    top.each("jobs", kJobsMost, true, [this](const auto& v, const Path& p) { read_job(v, p); });
    check_guests(snapshot_.state, {&root, "jobs"}, trouble_);
    check_free(snapshot_.state, {&root, "nodes"}, trouble_);
    top.end();
    if (trouble_.error) return *trouble_.error;
    return std::move(snapshot_);
  }

 private:
  using Names = std::unordered_set<std::string>;

  void read_policy(JsonCursor& c) {
    PolicyConfig& policy = snapshot_.policy;
    policy.policy = c.text("name", 1, kIdBytes, policy.policy);
    if (const json::Value* parameters = c.member("parameters"))
      policy.parameters = numbers(*parameters, c.path("parameters"));
    const auto made = make_policy(policy.policy, policy.parameters);
    if (!made.ok() && !trouble_.error) trouble_.error = made.error().in(c.path().to_text());
    policy.preempt = c.flag("preempt", policy.preempt);
    policy.sharing = c.flag("sharing", policy.sharing);
    policy.cpu_memory_shares = c.flag("cpuMemoryShares", policy.cpu_memory_shares);
    policy.storage_shares = c.flag("storageShares", policy.storage_shares);
    policy.min_relative_gain =
        c.number("minRelativeGain", kGainLeast, kGainMost, policy.min_relative_gain);
    policy.max_load = c.number("maxLoad", 0, kLoadMost, policy.max_load);
    policy.queue_weights = c.flag("queueWeights", policy.queue_weights);
    policy.grown_per_round = c.whole("grownPerRound", 0, kWholeMost, policy.grown_per_round);
  }

  std::map<std::string, double> numbers(const json::Value& object, const Path& path) {
    std::map<std::string, double> all;
    if (!object.is_object() || object.members().size() > kParametersMost) {
      trouble_.note(path, shown(object),
                    fmt::format("an object of at most {} numbers", kParametersMost));
      return all;
    }
    JsonCursor c(object, path, trouble_);
    for (const auto& [name, value] : object.members())
      all[name] = c.number(name, -kParameterMost, kParameterMost);
    return all;
  }

  void read_levels(JsonCursor& c) {
    snapshot_.state.levels = c.texts("topologyLevels", kLevelsMost, kIdBytes);
    const Path at = c.path("topologyLevels");
    for (std::size_t i = 0; i < snapshot_.state.levels.size(); ++i) {
      const std::string& level = snapshot_.state.levels[i];
      if (!levels_.insert(level).second)
        trouble_.note({&at, {}, static_cast<std::int64_t>(i)}, shown(level) + " again",
                      "each level once");
    }
  }

  // Of a level that there is.
  void check_level(const std::string& level, const Path& path) {
    if (!levels_.contains(level))
      trouble_.note(path, shown(level), "the name of one of the topologyLevels");
  }

  void read_domains(JsonCursor& c, Node& node) {
    const json::Value* domains = c.member("domains");
    if (domains == nullptr) return;
    const Path at = c.path("domains");
    JsonCursor of_level(*domains, at, trouble_);
    for (const auto& [level, name] : domains->members()) {
      check_level(level, of_level.path(level));
      if (!of_level.is_well()) return;  // levels are few, what stands here may be very many
      node.domains[level] = of_level.text(level, 1, kIdBytes);
    }
    of_level.end();
  }

  void read_node(const json::Value& value, const Path& path) {
    JsonCursor c(value, path, trouble_);
    Node node;
    node.id = new_name(c, "id", nodes_);
    node.gpu_type = gpu_type(c, {}, 1);
    node.gpus_total = c.whole("gpus", 0, kGpusMost);
    if (node.gpus_total > kGpusMost - gpus_total_)
      trouble_.note(c.path("gpus"), fmt::format("{} more", node.gpus_total),
                    fmt::format("at most {} of all nodes together", kGpusMost));
    c.object("free", true, [&](JsonCursor& free) {
      node.free = resources(free, 0, node.gpus_total, -kAmountMost);
    });
    read_total(c, node);
    read_domains(c, node);
    node.leaving = c.flag("leaving", false);
    node.schedulable = c.flag("schedulable", !node.leaving);
    if (node.leaving && node.schedulable)
      trouble_.note(c.path("schedulable"), "true", "false, for pods are to leave this node");
    node.why_not = c.text("whyNot", 0, kTextBytes, "");
    c.end();
    gpus_total_ += node.gpus_total;
    snapshot_.state.nodes.push_back(std::move(node));
  }

  Resources resources(JsonCursor& c, Gpus from, Gpus to, std::int64_t least) {
    Resources all;
    all.gpus = c.whole("gpus", from, to);
    all.cpu = c.whole("milliCpu", least, kAmountMost, 0);
    all.memory = c.whole("memoryBytes", least, kAmountMost, 0);
    std::size_t next = 0;
    c.each("others", std::ssize(all.others), false, [&](const json::Value& v, const Path& p) {
      const std::int64_t amount = v.int_or(least);
      if (!v.is_int() || amount < least || amount > kAmountMost)
        trouble_.note(p, shown(v), fmt::format("a whole number from {} to {}", least, kAmountMost));
      all.others[next++] = amount;
    });
    return all;
  }

  void read_queue(const json::Value& value, const Path& path) {
    JsonCursor c(value, path, trouble_);
    Queue queue;
    queue.name = new_name(c, "name", queues_);
    queue.parent = c.text("parent", 0, kIdBytes, "");
    queue.of_one_user = c.flag("ofOneUser", queue.of_one_user);
    queue.weight = c.number("weight", 0, kWeightMost, queue.weight);
    Names types, leavers;
    c.each("quotas", kTypesMost, false, [&](const json::Value& v, const Path& p) {
      JsonCursor quota(v, p, trouble_);
      Quota& of_type = queue.quotas[new_name(quota, "gpuType", types, 0)];
      of_type.guaranteed = quota.whole("guaranteed", 0, kQuotaMost, 0);
      if (quota.member("limit"))
        of_type.limit = quota.whole("limit", of_type.guaranteed, kQuotaMost);
      quota.end();
    });
    queue.borrowing = c.flag("borrowing", queue.borrowing);
    queue.closed = c.flag("closed", queue.closed);
    queue.preempts = static_cast<Preempts>(
        c.word("preempts", kPreemptsWords, static_cast<std::size_t>(queue.preempts)));
    c.each("cells", kTypesMost, false, [&](const json::Value& v, const Path& p) {
      JsonCursor cells(v, p, trouble_);
      queue.cells.push_back({.gpu_type = cells.text("gpuType", 1, kIdBytes),
                             .level = cells.text("level", 1, kIdBytes),
                             .count = cells.whole("count", 1, kNodesMost)});
      cells.end();
    });
    queue.created = c.number("createdSeconds", -kSecondsMost, kSecondsMost, 0);
    c.each("heldByLeavers", kTypesMost, false, [&](const json::Value& v, const Path& p) {
      JsonCursor held(v, p, trouble_);
      Gpus& of_type = queue.held_by_leavers[new_name(held, "gpuType", leavers, 0)];
      of_type = held.whole("gpus", 0, kGpusMost);
      held.end();
    });
    c.end();
    snapshot_.state.queues.emplace(queue.name, std::move(queue));
  }

  void check_parents(const json::Value& list, const Path& path) {
    if (trouble_.error) return;
    const Queues& queues = snapshot_.state.queues;
    for (std::int64_t i = 0; const json::Value& one : list.items()) {
      const Path item{&path, {}, i++};
      const Queue& queue = queues.at(one["name"].string_or(""));
      if (const std::string why = why_no_parent(queues, queue); !why.empty())
        trouble_.note({&item, "parent"}, shown(queue.parent) + ": " + why,
                      "the name of a queue that is no part of this one");
    }
  }

  void read_job(const json::Value& value, const Path& path) {
    JsonCursor c(value, path, trouble_);
    Job job;
    job.id = new_name(c, "id", jobs_);
    job.name = c.text("name", 0, kIdBytes, job.id);
    job.queue = c.text("queue", 0, kIdBytes);
    job.priority = c.whole("priority", -kPriorityMost - 1, kPriorityMost, 0);
    job.weight = c.number("weight", 0, kWeightMost, job.weight);
    job.queued_at = c.number("queuedAtSeconds", -kSecondsMost, kSecondsMost, 0);
    read_history(c, job);
    c.object("perPod", true,
             [&](JsonCursor& pod) { job.per_pod = resources(pod, 1, kGpusMost, 0); });
    job.refused = c.text("refused", 0, kTextBytes, "");
    job.refused_as = c.text("refusedAs", 0, kIdBytes, "");
    c.object("gpus", true, [&](JsonCursor& gpus) { read_sizes(gpus, job); });
    read_wishes(c, job);
    read_progress(c, job);
    c.end();
    sums_.add(job, path, trouble_);
    snapshot_.state.jobs.push_back(std::move(job));
  }

  void read_history(JsonCursor& c, Job& job) {
    job.attained_gpu_ms = c.whole("attainedGpuMs", 0, kWholeMost, 0);
    Names types;
    c.each("attainedByType", kTypesMost, false, [&](const json::Value& v, const Path& p) {
      JsonCursor attained(v, p, trouble_);
      GpuMs& of_type = job.attained_by_type[new_name(attained, "gpuType", types, 0)];
      of_type = attained.whole("gpuMs", 0, kWholeMost);
      attained.end();
    });
    job.allocated_ms = c.whole("allocatedMs", -1, kWholeMost, -1);
    job.running_since_ms = c.whole("runningSinceMs", -1, kWholeMost, -1);
    if (c.member("durationMs")) job.duration_ms = c.whole("durationMs", 0, kWholeMost);
    if (c.member("remainingMs")) job.remaining_ms = c.whole("remainingMs", 0, kWholeMost);
    if (c.member("deadlineMs")) job.deadline_ms = c.whole("deadlineMs", 0, kWholeMost);
  }

  // A job that is refused may be so because its sizes make no sense.
  void read_sizes(JsonCursor& c, Job& job) {
    job.min = c.whole("min", 1, kGpusMost);
    job.max = c.whole("max", job.refused.empty() ? job.min : 1, kGpusMost);
    job.shape = static_cast<Shape>(c.word("shape", kShapeWords, 0));
  }

  void read_wishes(JsonCursor& c, Job& job) {
    job.allow = c.texts("allow", kTypesMost, kIdBytes);
    job.mix = c.flag("mix", false);
    job.one_node = c.flag("oneNode", false);
    c.object("topology", false, [&](JsonCursor& topology) {
      job.topology.emplace();
      job.topology->level = topology.text("level", 1, kIdBytes);
      check_level(job.topology->level, topology.path("level"));
      job.topology->required = topology.word("mode", kTopologyWords, 0) == 1;
    });
    if (const json::Value* eligible = c.member("eligible"))
      job.eligible = node_set(*eligible, c.path("eligible"));
    if (const json::Value* avoid = c.member("avoid")) {
      const Path at = c.path("avoid");
      job.avoid = distinct(texts_of(*avoid, at, kNodesMost, kIdBytes, trouble_), at);
    }
    job.narrowed = c.text("narrowed", 0, kTextBytes, "");
    job.may_preempt = c.flag("mayPreempt", true);
    job.preemptible = c.flag("preemptible", true);
    job.min_run_ms = c.whole("minRunMs", 0, kWholeMost, 0);
    job.not_admitted = c.text("notAdmitted", 0, kTextBytes, "");
    job.spare_only = c.text("spareOnly", 0, kTextBytes, "");
  }

  void read_progress(JsonCursor& c, Job& job) {
    job.started = c.flag("started", false);
    job.settled = c.flag("settled", true);
    job.cooling = c.flag("cooling", false);
    std::unordered_set<std::int64_t> ordinals;
    c.each("held", kHeldMost - held_, false, [&](const json::Value& v, const Path& p) {
      job.held.push_back(read_held(v, p, ordinals));
    });
    held_ += std::ssize(job.held);
    c.each("measured", kTypesMost, false, [&](const json::Value& v, const Path& p) {
      JsonCursor point(v, p, trouble_);
      ThroughputPoint& seen = job.measured.emplace_back();
      seen.gpu_type = gpu_type(point, {});
      seen.gpus = point.whole("gpus", 1, kGpusMost);
      seen.tokens_per_second = point.number("tokensPerSecond", 0, kSpeedMost);
      point.end();
    });
    c.each("goodput", kGoodputMost, false, [&](const json::Value& v, const Path& p) {
      JsonCursor cursor(v, p, trouble_);
      GoodputPoint& point = job.goodput.emplace_back();
      point.gpu_type = gpu_type(cursor, {});
      point.gpus = cursor.whole("gpus", 1, kGpusMost);
      point.nodes = cursor.whole("nodes", 0, kGpusMost, 0);
      point.per_second = cursor.number("perSecond", 0, kSpeedMost);
      cursor.end();
    });
    if (c.member("stallMs")) job.stall_ms = c.whole("stallMs", 0, kWholeMost);
    if (c.member("startMs")) job.start_ms = c.whole("startMs", 0, kWholeMost);
    if (c.member("joinMs")) job.join_ms = c.whole("joinMs", 0, kWholeMost);
    job.restarts = c.whole("restarts", 0, kWholeMost, 0);
    read_sharing(c, job);
  }

  void read_sharing(JsonCursor& c, Job& job) {
    read_needs(c, job);
    job.guest_of = c.text("guestOf", 0, kIdBytes, "");
    Names others;
    c.each("beside", kBesideMost, false, [&](const json::Value& v, const Path& p) {
      JsonCursor one(v, p, trouble_);
      SpeedBeside& point = job.beside.emplace_back();
      point.job = new_name(one, "job", others);
      point.part = one.number("part", 0, 1);
      one.end();
    });
  }

  Held read_held(const json::Value& value, const Path& path,
                 std::unordered_set<std::int64_t>& ordinals) {
    JsonCursor c(value, path, trouble_);
    Held held;
    held.leaving = c.flag("leaving", false);
    held.lost = c.flag("lost", false);
    held.unstarted = c.flag("unstarted", false);
    held.refused = c.flag("refused", false);
    held.ordinal = c.whole("ordinal", held.leaving ? kDropped : 0, kWholeMost);
    if (held.ordinal != kDropped && !ordinals.insert(held.ordinal).second)
      trouble_.note(c.path("ordinal"), fmt::format("{} again", held.ordinal),
                    "each pod of a job to have its own");
    held.node = c.text("node", 1, kIdBytes);
    // A node may be gone; what it held then is lost, or was told to leave.
    if (!held.leaving && !held.lost && !nodes_.contains(held.node))
      trouble_.note(c.path("node"), shown(held.node),
                    "the id of one of the nodes, for the pod is neither lost nor leaving");
    held.gpu_type = held.stays() ? gpu_type(c, {}, 1) : gpu_type(c, "");
    held.gpus = c.whole("gpus", 1, kGpusMost);
    held.cell = c.text("cell", 0, kIdBytes, "");
    c.end();
    return held;
  }

  // "*" stands for all types together, in quotas.
  std::string gpu_type(JsonCursor& c, std::optional<std::string> fallback, std::size_t from = 0) {
    std::string type = c.text("gpuType", from, kIdBytes, std::move(fallback));
    if (type == "*") trouble_.note(c.path("gpuType"), shown(type), "the name of a GPU type");
    return type;
  }

  std::string new_name(JsonCursor& c, std::string_view field, Names& known, std::size_t from = 1) {
    std::string name = c.text(field, from, kIdBytes);
    if (!known.insert(name).second)
      trouble_.note(c.path(field), shown(name) + " again", "each to have its own");
    return name;
  }

  std::set<NodeId> distinct(std::vector<std::string> names, const Path& path) {
    std::set<NodeId> set;
    for (std::size_t i = 0; i < names.size(); ++i) {
      const auto [at, is_new] = set.insert(std::move(names[i]));
      if (!is_new)
        trouble_.note({&path, {}, static_cast<std::int64_t>(i)}, shown(*at) + " again",
                      "each node once");
    }
    return set;
  }

  // Written out, or the number of one of nodeSets.
  std::set<NodeId> node_set(const json::Value& value, const Path& path) {
    if (!value.is_int())
      return distinct(texts_of(value, path, kNodesMost, kIdBytes, trouble_), path);
    const std::int64_t number = value.int_or(0);
    if (number >= 0 && number < std::ssize(sets_)) return sets_[static_cast<std::size_t>(number)];
    trouble_.note(
        path, shown(value),
        fmt::format("a list of node ids, or the number of one of the {} nodeSets", sets_.size()));
    return {};
  }

  // Before any is spread out: a short text may stand for very many.
  void check_listed(const json::Value& jobs, const Path& path) {
    std::int64_t listed = 0;
    for (std::int64_t i = 0; i < std::ssize(jobs.items()); ++i) {
      const json::Value& job = jobs[static_cast<std::size_t>(i)];
      const json::Value& eligible = job["eligible"];
      const auto set = static_cast<std::size_t>(eligible.int_or(-1));
      listed += std::ssize(job["avoid"].items()) + std::ssize(eligible.items()) +
                (set < sets_.size() ? std::ssize(sets_[set]) : 0);
      if (listed > kListedNodesMost)
        return trouble_.note({&path, {}, i}, "too many nodes in eligible and avoid",
                             fmt::format("at most {} of all jobs together", kListedNodesMost));
    }
  }

  Snapshot snapshot_;
  Trouble trouble_;
  Names levels_, nodes_, jobs_, queues_;
  std::vector<std::set<NodeId>> sets_;
  Gpus gpus_total_ = 0;
  std::int64_t held_ = 0;
  HeldSums sums_;
};

}  // namespace

Result<Snapshot> read_snapshot(std::string_view text) {
  const auto document = json::parse(text, kJsonLimits);
  if (!document.ok()) return Error(document.error()).set_reason(std::string(kNotJson));
  return decode_snapshot(*document);
}

Result<Snapshot> decode_snapshot(const json::Value& document) { return Reader().read(document); }

}  // namespace rubato::sched
