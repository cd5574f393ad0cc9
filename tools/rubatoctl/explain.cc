#include "tools/rubatoctl/explain.h"

#include "common/some_of.h"
#include "common/words.h"
#include "operator/api/codec.h"
#include "operator/api/resources.h"
#include "scheduler/blockers.h"
#include "scheduler/fix.h"
#include "scheduler/forecast.h"
#include "scheduler/model/problem.h"
#include "scheduler/policy/registry.h"
#include "tools/rubatoctl/plan.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include <fmt/format.h>

namespace rubato::ctl {
namespace {

constexpr std::size_t kNamesMost = 10;

std::string listed(const std::vector<std::string>& names) {
  return readable(some_of(names, kNamesMost));
}

// GPUs by node and type.
using Holding = std::map<std::pair<std::string, std::string>, std::int64_t>;

std::string holds(const std::string& name, const Holding& holding) {
  std::int64_t sum = 0;
  std::vector<std::string> parts;
  for (const auto& [where, gpus] : holding) {
    const auto& [node, type] = where;
    parts.push_back(
        fmt::format("{} on {}{}", gpus, node, type.empty() ? "" : fmt::format(" ({})", type)));
    sum += gpus;
  }
  if (parts.empty()) return name + " holds no GPUs.";
  return fmt::format("{} holds {}: {}.", name, counted(sum, "GPU"), listed(parts));
}

// Told line by line.
class SnapshotStory {
 public:
  SnapshotStory(const sched::Snapshot& snapshot, std::size_t job)
      : snapshot_(snapshot),
        state_(snapshot.state),
        at_(job),
        job_(state_.jobs[job]),
        plan_(sched::make_plan(state_, snapshot.policy)),
        verdict_(plan_.verdicts[job]) {}

  std::string tell() {
    say_what_it_holds();
    say_what_is_done();
    const sched::Explanation told = explain(verdict_, job_);
    if (verdict_.outcome == sched::Outcome::kPlaced) {
      if (!told.message.empty()) say(fmt::format("But ({}): {}.", told.reason, told.message));
      return text_;
    }
    const char* begin =
        verdict_.outcome == sched::Outcome::kNever ? "It can never be placed" : "It waits";
    say(fmt::format("{} ({}): {}.", begin, told.reason, told.message));
    if (verdict_.outcome == sched::Outcome::kNever) {
      const sched::Fix fix = fix_of(state_, job_);
      if (!fix.empty()) say(fmt::format("The smallest change that helps: {}.", to_text(fix)));
      return text_;
    }
    if (is_kept_out(job_)) return text_;
    say_who_comes_before();
    say_who_blocks();
    say_when();
    return text_;
  }

 private:
  void say(const std::string& sentence) { text_ += readable(sentence) + "\n"; }

  static std::string name_of(const sched::Job& job) { return job.name.empty() ? job.id : job.name; }

  void say_what_it_holds() {
    Holding holding;
    sched::Gpus lost = 0;
    sched::Gpus leaving = 0;
    for (const sched::Held& held : job_.held) {
      if (held.leaving)
        leaving += held.gpus;
      else if (held.lost)
        lost += held.gpus;
      else
        holding[{held.node, held.gpu_type}] += held.gpus;
    }
    say(holds(name_of(job_), holding));
    if (lost > 0) say(counted(lost, "more GPU", "is", "are") + " lost.");
    if (leaving > 0) say(counted(leaving, "more GPU", "is", "are") + " about to come free.");
    say(fmt::format("It may have {}{}, in queue \"{}\", at priority {}.",
                    job_.min == job_.max ? "" : fmt::format("{} to ", job_.min),
                    counted(job_.max, "GPU"), job_.queue, job_.priority));
  }

  void say_what_is_done() {
    const auto found = std::ranges::find(plan_.actions, job_.id, &sched::Action::job);
    if (found == plan_.actions.end()) {
      if (verdict_.outcome == sched::Outcome::kPlaced) say("It goes on with what it holds.");
      return;
    }
    sched::Gpus gpus = 0;
    for (const sched::Held& held : job_.held)
      if (held.stays() && std::ranges::count(found->remove, held.ordinal) == 0) gpus += held.gpus;
    for (const sched::Placement& placement : found->add) gpus += placement.gpus;
    say(fmt::format("Now it {}: {}.", to_text(found->kind, gpus), to_text(found->cause)));
  }

  void say_who_comes_before() {
    const auto policy =
        sched::make_policy(snapshot_.policy.policy, snapshot_.policy.parameters);  // it was read
    const sched::Problem problem(state_);
    std::vector<std::string> before;
    for (const sched::JobIndex other : (*policy)->decide(problem).order) {
      if (other.value == at_) break;
      const sched::Verdict& verdict = plan_.verdicts[other.value];
      if (verdict.outcome == sched::Outcome::kNotNow && !is_kept_out(problem.job(other)))
        before.push_back(name_of(problem.job(other)));
    }
    if (before.empty())
      say("Of the jobs that wait for GPUs, policy " + snapshot_.policy.policy +
          " serves it first.");
    else
      say(fmt::format("Policy {} serves {} first that {}: {}.", snapshot_.policy.policy,
                      counted(before.size(), "other job"),
                      agreeing(before.size(), "waits, too", "wait, too"), listed(before)));
  }

  void say_who_blocks() {
    std::vector<std::string> names;
    for (const sched::JobId& id : blockers_of(state_, snapshot_.policy, job_.id))
      names.push_back(name_of(*std::ranges::find(state_.jobs, id, &sched::Job::id)));
    if (names.empty())
      say("The end of other jobs alone would not place it.");
    else
      say(fmt::format("It would be placed without {}.", listed(names)));
  }

  void say_when() {
    const auto start = sched::expected_start(state_, snapshot_.policy, at_);
    say(start ? fmt::format("It is expected to start {}, if others end as their progress says and "
                            "nobody comes.",
                            sched::in_about(*start))
              : "When it starts is not known: it is not known when enough of the others end.");
  }

  const sched::Snapshot& snapshot_;
  const sched::ClusterState& state_;
  const std::size_t at_;
  const sched::Job& job_;
  const sched::Plan plan_;
  const sched::Verdict& verdict_;
  std::string text_;
};

Result<std::string> told_by_file(const std::string& file, const std::string& job) {
  TRY(const sched::Snapshot snapshot, load_snapshot(file));
  auto told = explain_text(snapshot, job);
  return told.ok() ? told : told.error().in(file == "-" ? "the input" : file);
}

Result<std::string> told_by_cluster(const ClusterChoice& cluster, const std::string& job) {
  TRY(const auto session, Session::open(cluster));
  const auto object = session->client().get(api::kTrainingJob, {session->ns(), job});
  if (!object.ok()) return advised(object.error());
  TRY(const api::TrainingJob decoded, api::decode_training_job(*object));
  return explain_text(decoded, session->wall());
}

}  // namespace

Result<std::size_t> position_of(const std::vector<sched::Job>& jobs, const std::string& job) {
  std::vector<std::size_t> found;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    names.push_back(jobs[i].name.empty() ? jobs[i].id : jobs[i].name);
    if (jobs[i].id == job) return i;
    if (jobs[i].name == job) found.push_back(i);
  }
  if (found.size() == 1) return found[0];
  if (found.empty())
    return Error(Code::kNotFound,
                 names.empty()
                     ? "the snapshot has no jobs"
                     : fmt::format("there is no job \"{}\"; there are {}", job, listed(names)));
  std::vector<std::string> ids;
  ids.reserve(found.size());
  for (const std::size_t i : found) ids.push_back(jobs[i].id);
  return Error(Code::kNotFound, fmt::format("{} are named \"{}\"; say the id of one: {}",
                                            counted(ids.size(), "job"), job, listed(ids)));
}

Result<std::string> explain_text(const sched::Snapshot& snapshot, const std::string& job) {
  TRY(const std::size_t position, position_of(snapshot.state.jobs, job));
  return SnapshotStory(snapshot, position).tell();
}

std::vector<Avoidance> avoidances(const std::vector<api::AvoidedNode>& nodes, WallTime now) {
  std::map<std::pair<std::string, std::string>, std::vector<std::string>> nodes_of;
  for (const api::AvoidedNode& node : nodes) {
    if (node.until && *node.until <= now) continue;
    nodes_of[{node.reason, node.message}].push_back(
        node.node + (node.until ? " until " + to_rfc3339(*node.until) : ""));
  }
  std::vector<Avoidance> all;
  all.reserve(nodes_of.size());
  for (const auto& [why, names] : nodes_of)
    all.push_back({why.first, fmt::format("{} ({}): {}", listed(names), why.first, why.second)});
  return all;
}

std::string explain_text(const api::TrainingJob& job, WallTime now) {
  const std::string name = job.meta.ns + "/" + job.meta.name;
  const api::TrainingJobStatus& status = job.status;
  Holding holding;
  if (status.allocation)
    for (const api::AllocatedPod& pod : status.allocation->pods)
      holding[{pod.node, pod.gpu_type}] += pod.gpus;
  std::string text;
  const auto say = [&](const std::string& sentence) { text += readable(sentence) + "\n"; };
  say(holds(name, holding));
  // Of a job that holds nothing the conditions say why: it may be long since it gave its GPUs back.
  if (!holding.empty() && !status.allocation->reason.empty())
    say(fmt::format("So it was decided because {}.", status.allocation->reason));
  if (status.state.empty()) return text + "No operator has looked at it yet.\n";
  say(fmt::format("Its state is {}{}.", status.state,
                  status.reason.empty() ? "" : " (" + status.reason + ")"));
  for (const api::Condition& condition : status.conditions) {
    if (condition.status != api::ConditionStatus::kTrue || condition.message.empty()) continue;
    say(fmt::format("{} ({}){}: {}.", condition.type, condition.reason,
                    condition.last_transition_time
                        ? " for " + human_duration(now - *condition.last_transition_time)
                        : "",
                    condition.message));
  }
  for (const Avoidance& avoided : avoidances(status.avoided_nodes, now))
    say(fmt::format("It avoids {}.", avoided.text));
  return text;
}

Status explain(const ExplainChoice& choice, const ClusterChoice& cluster) {
  auto told = choice.file.empty() ? told_by_cluster(cluster, choice.job)
                                  : told_by_file(choice.file, choice.job);
  if (!told.ok()) return told.error();
  std::fputs(told->c_str(), stdout);
  return ok();
}

}  // namespace rubato::ctl
