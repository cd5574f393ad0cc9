// Members that held different states: whose is dropped, and who goes on.
#include "common/log.h"
#include "common/some_of.h"
#include "operator/coordinator/job_machine.h"

#include <algorithm>

#include <fmt/format.h>

namespace rubato::coordinator {
namespace {

constexpr std::size_t kPodsNamed = 8;  // of each side, in a sentence for people

std::string names_of(const std::vector<std::string>& pods) { return some_of(pods, kPodsNamed); }

}  // namespace

// Every member says the same; the first word is enough. Whose state is dropped is not asked for it
// any more, whatever it says before it has begun anew. Whose node did so before is refused.
void JobMachine::take_diverged(std::uint64_t generation, const wire::CommitRecord& record,
                               const std::string& difference) {
  const bool is_next = generation == record_.generation;
  if (generation < oldest_of_interest() || (!is_next && record_.previous.empty())) return;
  const std::vector<Member>& members = is_next ? record_.members : record_.previous;
  std::vector<std::string> dropped;
  std::vector<std::string> kept;
  std::vector<Member> minority;
  std::vector<bool> named(members.size(), false);  // of a list that may be long
  for (const std::uint32_t rank : record.diverged())
    if (rank < named.size()) named[rank] = true;
  for (std::uint32_t rank = 0; rank < members.size(); ++rank) {
    const bool is_named = named[rank];
    const std::string name = fmt::format("{} on node {}", members[rank].pod, members[rank].node);
    (is_named ? dropped : kept).push_back(name);
    if (is_named) minority.push_back(members[rank]);
  }
  if (minority.empty()) return;
  const std::string where = fmt::format("round {} of step {}", record.seq(), record.step() + 1);
  outputs_.changed = true;
  view_.diverged =
      kept.empty() ? fmt::format(
                         "{}: pods {} held different states and no majority one state: all begin "
                         "anew from the last checkpoint",
                         where, names_of(dropped))
                   : fmt::format("{}: pods {} {} than pods {}, and begin anew as followers", where,
                                 names_of(dropped),
                                 record.adds_wrongly() ? "added otherwise" : "held another state",
                                 names_of(kept));
  if (!difference.empty()) view_.diverged += " (" + difference + ")";
  diverged_at_ = told_;
  LOG_WARNING(kLog, "{}: {}", to_string(wish_.job), view_.diverged);
  for (const Member& m : minority) {
    Worker* worker = member(m);
    if (worker == nullptr) continue;
    if (!kept.empty() && happens_again(m.node, fmt::format("generation {}", generation)))
      refuse(m.key, kDiverged, "twice within an hour; now in " + view_.diverged);
    drop_state(m.key, *worker);
  }
  if (!kept.empty()) return;
  note_undecided(generation, where);
  // What followers have, they have from a donor that nobody knows to be right.
  for (const WorkerKey& key : living()) {
    Worker* worker = worker_of(key);
    if (worker->standing.has_state() || worker->standing.phase() == wire::WORKER_FOLLOWING)
      drop_state(key, *worker);
  }
}

// Its first member counts for all of a generation, or of the processes of a pod. What a leader
// before us saw is not known.
bool JobMachine::happens_again(const std::string& node, const std::string& time) {
  std::erase_if(troubled_,
                [&](const auto& entry) { return told_ - entry.second.at > kTroubleAgain; });
  const auto [found, is_first] = troubled_.try_emplace(node);
  NodeTrouble& last = found->second;
  if (is_first || last.time != time) last = {.time = time, .at = told_, .is_again = !is_first};
  return last.is_again;
}

// Members that stand still have no links to compare over: each says the digest of all that it
// holds, and before one of them is asked to write, most must hold the same. False: not yet.
bool JobMachine::compare_parked() {
  if (wish_.is_stateless) return true;
  std::map<std::uint64_t, std::vector<std::uint32_t>> sides;
  std::size_t all = 0;
  for (std::uint32_t rank = 0; rank < record_.members.size(); ++rank) {
    const Worker* worker = member(record_.members[rank]);
    if (worker == nullptr || worker->standing.generation() != record_.generation) continue;
    const bool is_parked = worker->standing.phase() == wire::WORKER_PARKED;
    const bool levels = parked_ && worker->standing.phase() == wire::WORKER_TRAINING;
    if (levels || (is_parked && worker->standing.phase_name() == "compare")) return false;
    if (!is_parked) continue;
    const std::uint64_t digest = worker->standing.parked_digest();
    if (digest == 0) continue;  // of a build before
    sides[digest].push_back(rank);
    ++all;
  }
  if (sides.size() < 2) return true;
  const bool has_majority =
      std::ranges::any_of(sides, [&](const auto& side) { return 2 * side.second.size() > all; });
  wire::CommitRecord record;
  record.set_seq(view_.seq);
  record.set_step(view_.step);
  std::vector<std::string> said;
  for (const auto& [digest, ranks] : sides) {
    std::vector<std::string> pods;
    for (const std::uint32_t rank : ranks) pods.push_back(record_.members[rank].pod);
    said.push_back(fmt::format("{:016x} at {}", digest, names_of(pods)));
    for (const std::uint32_t rank : ranks)
      if (has_majority && 2 * ranks.size() <= all) record.add_diverged(rank);
  }
  if (!has_majority)
    for (std::uint32_t rank = 0; rank < record_.members.size(); ++rank) record.add_diverged(rank);
  take_diverged(record_.generation, record, "the state is " + some_of(said, kPodsNamed, ", but "));
  return false;
}

// The next attempt goes back to the same checkpoint and, where it is the script that makes the
// states differ, to the same end. Each member says it: a generation counts once.
void JobMachine::note_undecided(std::uint64_t generation, const std::string& where) {
  const std::uint64_t checkpoint = view_.has_checkpoint ? view_.checkpoint_step : 0;
  if (generation == undecided_.generation) return;
  if (checkpoint != undecided_.checkpoint_step) undecided_.times = 0;
  undecided_ = {undecided_.times + 1, generation, checkpoint};
  if (undecided_.times < kUndecidedMost) return;
  view_.failure_reason = kDiverged;
  view_.failure_message = fmt::format(
      "the workers held different states {} times in a row, last in {}, and no majority one state. "
      "A script that does not compute the same on each worker does that (weights made without a "
      "seed, a seed of its own on each worker, what depends on the worker or the time), and so "
      "does "
      "damaged memory: see the nodes in the events",
      undecided_.times, where);
}

void JobMachine::drop_state(const WorkerKey& key, Worker& worker) {
  worker.diverged = true;
  add_failure({.pod = agents_[key.pod_uid].name,
               .pod_uid = key.pod_uid,
               .reason = kDiverged,
               .message = view_.diverged,
               .infrastructure = true});
}

// They lose their state with their process. Said again over each new connection.
void JobMachine::restart_diverged(MonoTime now) {
  for (auto& [uid, agent] : agents_) {
    if (!agent.connected || agent.dead || wished(uid) == nullptr) continue;
    for (auto& [slot, worker] : agent.workers)
      if (worker.diverged && !worker.exited && !worker.restart_sent)
        send_restart(uid, worker, "it held another state, or added otherwise, than the others");
  }
  if (diverged_at_ && now - *diverged_at_ >= kDivergedShown) {
    diverged_at_.reset();
    view_.diverged.clear();
    outputs_.changed = true;
  }
}

}  // namespace rubato::coordinator
