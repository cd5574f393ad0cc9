#include "tools/rubatoctl/what_if.h"

#include "common/some_of.h"
#include "common/words.h"
#include "scheduler/forecast.h"
#include "scheduler/model/sharing.h"
#include "scheduler/sim/scheduler.h"
#include "tools/rubatoctl/explain.h"
#include "tools/rubatoctl/plan.h"
#include "tools/rubatoctl/view/text_table.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

namespace rubato::ctl {
namespace {

constexpr std::size_t kNodesShown = 8;  // of a job

bool read_whole(std::string_view text, std::int64_t& to) {
  const auto [end, wrong] = std::from_chars(text.data(), text.data() + text.size(), to);
  return !text.empty() && wrong == std::errc() && end == text.data() + text.size();
}

Result<std::size_t> position_of_node(const std::vector<sched::Node>& nodes,
                                     const std::string& name) {
  const auto found = std::ranges::find(nodes, name, &sched::Node::id);
  if (found != nodes.end()) return static_cast<std::size_t>(found - nodes.begin());
  std::vector<std::string> names;
  names.reserve(nodes.size());
  for (const sched::Node& node : nodes) names.push_back(node.id);
  return Error(Code::kNotFound, names.empty()
                                    ? "the snapshot has no nodes"
                                    : readable(fmt::format("there is no node \"{}\"; there are {}",
                                                           name, some_of(names, kNodesShown))));
}

// "job=a,max=16".
Status set_numbers(sched::ClusterState& state, const std::string& text) {
  const Error bad(Code::kInvalid,
                  "expected job=NAME and one or more of min=GPUS, max=GPUS and priority=NUMBER, "
                  "each once, as in job=gpt,max=16");
  std::map<std::string_view, std::string_view> words;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view word = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(word.size() + 1, rest.size()));
    const std::size_t equals = word.find('=');
    if (equals == std::string_view::npos ||
        !words.emplace(word.substr(0, equals), word.substr(equals + 1)).second)
      return bad;
  }
  const auto name = words.extract("job");
  if (name.empty() || words.empty()) return bad;
  TRY(const std::size_t position, position_of(state.jobs, std::string(name.mapped())));
  sched::Job& job = state.jobs[position];
  const std::map<std::string_view, std::int64_t*> numbers = {
      {"min", &job.min}, {"max", &job.max}, {"priority", &job.priority}};
  for (const auto& [word, number] : words) {
    const auto found = numbers.find(word);
    if (found == numbers.end() || !read_whole(number, *found->second)) return bad;
  }
  return ok();
}

// By node: those of pods that stay, of guests excepted.
std::map<sched::NodeId, sched::Gpus> gpus_kept(const sched::ClusterState& state) {
  std::map<sched::NodeId, sched::Gpus> kept;
  for (const sched::Job& job : state.jobs)
    for (const sched::Held& held : job.held)
      if (held.stays() && job.guest_of.empty()) kept[held.node] += held.gpus;
  return kept;
}

// It has ended. On a node that has lost GPUs fewer come free than it had.
Status end_job(sched::ClusterState& state, const std::string& name) {
  TRY(const std::size_t position, position_of(state.jobs, name));
  const sched::Job job = state.jobs[position];
  state.jobs.erase(state.jobs.begin() + static_cast<std::ptrdiff_t>(position));
  const std::vector<sched::Resources> freed = freed_by_end(job, state.jobs);
  std::map<sched::NodeId, sched::Gpus> kept = gpus_kept(state);
  for (std::size_t i = 0; i < freed.size(); ++i) {
    const auto node = std::ranges::find(state.nodes, job.held[i].node, &sched::Node::id);
    if (!job.held[i].gives_room() || node == state.nodes.end()) continue;
    node->free += freed[i];
    const sched::Gpus most = std::max<sched::Gpus>(node->gpus_total - kept[node->id], 0);
    node->free.gpus = std::min(node->free.gpus, most);
  }
  return ok();
}

// As the node is when nobody's pod is on it.
sched::Node empty_node_like(const sched::ClusterState& state, const sched::Node& like) {
  sched::Node node = like;
  for (const sched::Job& job : state.jobs)
    for (const sched::Held& held : job.held)
      if (held.node == like.id) node.free += taken_by_pod(job);
  node.free.gpus = node.gpus_total;
  node.schedulable = true;
  node.why_not.clear();
  node.leaving = false;
  return node;
}

// "4,like=n1".
Status add_nodes_like(sched::ClusterState& state, const std::string& text) {
  constexpr std::string_view kLike = ",like=";
  const std::size_t comma = text.find(kLike);
  std::int64_t count = 0;
  if (comma == std::string::npos || !read_whole(std::string_view(text).substr(0, comma), count) ||
      count < 1 || count > sched::kNodesMost)
    return Error(Code::kInvalid, fmt::format("expected COUNT,like=NODE with a count from 1 to {}, "
                                             "as in 4,like=n1",
                                             sched::kNodesMost));
  TRY(const std::size_t position, position_of_node(state.nodes, text.substr(comma + kLike.size())));
  const sched::Node like = empty_node_like(state, state.nodes[position]);
  const auto lists_it = [&](const sched::Job& job) {
    return job.eligible && job.eligible->contains(like.id);
  };
  if (std::ranges::count_if(state.jobs, lists_it) * count > sched::kListedNodesMost)
    return Error(Code::kInvalid,
                 fmt::format("jobs would list too many nodes as eligible; expected at most {} of "
                             "all jobs together",
                             sched::kListedNodesMost));
  std::set<sched::NodeId> taken;
  for (const sched::Node& node : state.nodes) taken.insert(node.id);
  std::vector<sched::NodeId> added;
  for (std::int64_t number = 1; std::ssize(added) < count; ++number) {
    const sched::NodeId id = fmt::format("{}-copy-{}", like.id, number);
    if (!taken.insert(id).second) continue;
    added.push_back(id);
    state.nodes.push_back(like);
    state.nodes.back().id = id;
  }
  for (sched::Job& job : state.jobs)
    if (lists_it(job)) job.eligible->insert(added.begin(), added.end());
  return ok();
}

// It is gone, and the pods on it are lost.
Status lose_node(sched::ClusterState& state, const std::string& name) {
  TRY(const std::size_t position, position_of_node(state.nodes, name));
  state.nodes.erase(state.nodes.begin() + static_cast<std::ptrdiff_t>(position));
  for (sched::Job& job : state.jobs)
    for (sched::Held& held : job.held)
      if (held.node == name && !held.leaving) held.lost = true;
  return ok();
}

using ChangesState = Status (*)(sched::ClusterState&, const std::string&);

Status apply_each(sched::ClusterState& state, const char* option,
                  const std::vector<std::string>& texts, ChangesState change) {
  for (const std::string& text : texts)
    if (const Status done = change(state, text); !done.ok())
      return done.error().in(readable(fmt::format("{} {}", option, text)));
  return ok();
}

bool is_nothing(const Changes& changes) {
  return changes.policy.empty() && changes.without_nodes.empty() && changes.add_nodes.empty() &&
         changes.remove_jobs.empty() && changes.set.empty();
}

// What a job has once a plan is done.
struct Outlook {
  const char* state = "removed";  // or "runs", "waits", "never"
  sched::Gpus gpus = 0;
  sched::GpusOnNodes nodes = {};
  sched::Explanation waits = {};  // empty: it does not
  std::optional<sched::TimeMs> start = {};

  bool is_alike(const Outlook& other) const {
    return std::string_view(state) == other.state && nodes == other.nodes &&
           waits.reason == other.waits.reason && start == other.start;
  }
};

// One of the two plans.
struct PlanSide {
  std::map<sched::JobId, Outlook> jobs;
  sched::Gpus gpus = 0;  // of all nodes
  PlanCheck check;

  std::int64_t count(std::string_view state) const {
    return std::ranges::count_if(jobs, [&](const auto& job) { return job.second.state == state; });
  }
  sched::Gpus used() const {
    return std::accumulate(jobs.begin(), jobs.end(), sched::Gpus{0},
                           [](sched::Gpus sum, const auto& job) { return sum + job.second.gpus; });
  }
};

PlanSide side_of(const sched::Snapshot& snapshot) {
  const sched::ClusterState& state = snapshot.state;
  const sched::Plan plan = sched::make_plan(state, snapshot.policy);
  const auto places = places_once_done(state, plan);
  const auto starts = sched::expected_starts(state, snapshot.policy);
  PlanSide side{.check = check_plan(snapshot, plan)};
  for (const sched::Node& node : state.nodes) side.gpus += node.gpus_total;
  for (std::size_t i = 0; i < state.jobs.size(); ++i) {
    const sched::Verdict& verdict = plan.verdicts[i];
    Outlook& job = side.jobs[state.jobs[i].id];
    job.nodes = places[i];
    for (const auto& [node, gpus] : job.nodes) job.gpus += gpus;
    job.state = "runs";
    if (verdict.outcome == sched::Outcome::kPlaced) continue;
    job.state = verdict.outcome == sched::Outcome::kNever ? "never" : "waits";
    job.waits = explain(verdict, state.jobs[i]);
    job.start = starts[i];
  }
  return side;
}

// A job of either side, as both have it.
struct Comparison {
  std::string id;
  std::string name;
  Outlook now;
  Outlook then;
};

std::vector<Comparison> compared(const sched::Snapshot& snapshot, const PlanSide& now,
                                 const PlanSide& then) {
  std::vector<Comparison> jobs;
  jobs.reserve(snapshot.state.jobs.size());
  for (const sched::Job& job : snapshot.state.jobs) {
    const auto found = then.jobs.find(job.id);
    jobs.push_back({.id = job.id,
                    .name = job.name.empty() ? job.id : job.name,
                    .now = now.jobs.at(job.id),
                    .then = found == then.jobs.end() ? Outlook{} : found->second});
  }
  return jobs;
}

std::string listed_nodes(const sched::GpusOnNodes& nodes) {
  std::vector<std::string> parts;
  parts.reserve(nodes.size());
  for (const auto& [node, gpus] : nodes) parts.push_back(fmt::format("{} on {}", gpus, node));
  return some_of(parts, kNodesShown);
}

// "*" before those that differ.
std::string comparison_table(const std::vector<Comparison>& jobs) {
  TextTable table{{"", "JOB", "NOW", "GPUS", "NODES", "THEN", "GPUS", "NODES", "EXPECTED",
                   "WHAT IT WAITS FOR THEN"},
                  {}};
  for (const Comparison& job : jobs)
    table.rows.push_back(
        {job.now.is_alike(job.then) ? "" : "*", job.name, job.now.state,
         std::to_string(job.now.gpus), listed_nodes(job.now.nodes), job.then.state,
         std::to_string(job.then.gpus), listed_nodes(job.then.nodes),
         job.then.start ? sched::in_about(*job.then.start) : "",
         job.then.waits.reason.empty()
             ? ""
             : fmt::format("{}: {}", job.then.waits.reason, job.then.waits.message)});
  return jobs.empty() ? "There are no jobs.\n" : render(table);
}

std::string worth_of(const PlanSide& side) {
  if (!side.check.certificate) return "";
  return fmt::format("{:.2f} of at most {:.2f}", sched::amount_of(side.check.certificate->value),
                     sched::amount_of(side.check.certificate->bound));
}

std::string sums_table(const PlanSide& now, const PlanSide& then) {
  TextTable table{{"", "NOW", "THEN"}, {}};
  const auto add = [&](const char* what, const auto& value_of) {
    table.rows.push_back({what, value_of(now), value_of(then)});
  };
  add("GPUs used",
      [](const PlanSide& side) { return fmt::format("{} of {}", side.used(), side.gpus); });
  add("jobs that run", [](const PlanSide& side) { return std::to_string(side.count("runs")); });
  add("jobs that wait", [](const PlanSide& side) { return std::to_string(side.count("waits")); });
  add("jobs that never fit",
      [](const PlanSide& side) { return std::to_string(side.count("never")); });
  if (now.check.certificate || then.check.certificate) add("worth, in GPUs", worth_of);
  return render(table);
}

json::Value json_of(const Outlook& job) {
  auto nodes = json::Value::object();
  for (const auto& [node, gpus] : job.nodes) nodes.set(node, gpus);
  auto value =
      json::Value::object({{"state", job.state}, {"gpus", job.gpus}, {"nodes", std::move(nodes)}});
  if (!job.waits.reason.empty())
    value.set("reason", job.waits.reason).set("message", job.waits.message);
  if (job.start) value.set("expectedStartMs", *job.start);
  return value;
}

json::Value json_of(const PlanSide& side) {
  auto value = json::Value::object({{"gpusUsed", side.used()},
                                    {"gpus", side.gpus},
                                    {"jobsRunning", side.count("runs")},
                                    {"jobsWaiting", side.count("waits")},
                                    {"jobsNever", side.count("never")}});
  if (side.check.certificate) value.set("certificate", to_json(*side.check.certificate));
  if (!side.check.error.empty()) value.set("error", side.check.error);
  return value;
}

std::string comparison_json(const std::vector<Comparison>& jobs, const PlanSide& now,
                            const PlanSide& then) {
  auto list = json::Value::array();
  for (const Comparison& job : jobs)
    list.push_back(json::Value::object({{"job", job.id},
                                        {"name", job.name},
                                        {"differs", !job.now.is_alike(job.then)},
                                        {"now", json_of(job.now)},
                                        {"then", json_of(job.then)}}));
  return json::dump(json::Value::object({{"version", sched::kSnapshotVersion},
                                         {"jobs", std::move(list)},
                                         {"now", json_of(now)},
                                         {"then", json_of(then)}})) +
         "\n";
}

}  // namespace

Result<sched::Snapshot> with_changes(const sched::Snapshot& snapshot, const Changes& changes) {
  if (is_nothing(changes))
    return Error(Code::kInvalid,
                 "nothing would be different; expected --policy, --without-node, --add-nodes, "
                 "--remove-job or --set, as in --add-nodes 4,like=n1");
  sched::Snapshot changed = snapshot;
  if (!changes.policy.empty()) {
    auto policy = sched::sim::with_policy(changed.policy, changes.policy);
    if (!policy.ok()) return policy.error();
    changed.policy = std::move(*policy);
  }
  // Nodes are added before others go: they may be like one of these.
  TRY_OK(apply_each(changed.state, "--set", changes.set, set_numbers));
  TRY_OK(apply_each(changed.state, "--remove-job", changes.remove_jobs, end_job));
  TRY_OK(apply_each(changed.state, "--add-nodes", changes.add_nodes, add_nodes_like));
  TRY_OK(apply_each(changed.state, "--without-node", changes.without_nodes, lose_node));
  auto checked = sched::decode_snapshot(to_json(changed));
  if (!checked.ok()) return checked.error().in("with these changes");
  return checked;
}

Result<std::string> what_if_text(const sched::Snapshot& snapshot, const Changes& changes,
                                 const std::string& output) {
  TRY(const sched::Snapshot changed, with_changes(snapshot, changes));
  const PlanSide now = side_of(snapshot);
  const PlanSide then = side_of(changed);
  const std::vector<Comparison> jobs = compared(snapshot, now, then);
  if (output == "json") return comparison_json(jobs, now, then);
  std::string text = comparison_table(jobs) + "\n" + sums_table(now, then);
  for (const auto& [when, side] : {std::pair("now", &now), std::pair("then", &then)})
    if (!side->check.error.empty())
      text += fmt::format("\nerror, {}: {}\n", when, readable(side->check.error));
  return text;
}

Status what_if(const WhatIfChoice& choice) {
  TRY(const sched::Snapshot snapshot, load_snapshot(choice.file));
  TRY(const std::string text, what_if_text(snapshot, choice.changes, choice.output));
  std::fputs(text.c_str(), stdout);
  return ok();
}

}  // namespace rubato::ctl
