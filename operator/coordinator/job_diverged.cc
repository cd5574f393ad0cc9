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
// any more, whatever it says before it has begun anew.
void JobMachine::take_diverged(std::uint64_t generation, const wire::CommitRecord& record) {
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
      kept.empty()
          ? fmt::format(
                "{}: pods {} held different states and no majority one state: all begin "
                "anew from the last checkpoint",
                where, names_of(dropped))
          : fmt::format("{}: pods {} held another state than pods {}, and begin anew as followers",
                        where, names_of(dropped), names_of(kept));
  diverged_at_ = told_;
  outputs_.changed = true;
  LOG_WARNING(kLog, "{}: {}", to_string(wish_.job), view_.diverged);
  for (const Member& m : minority)
    if (Worker* worker = member(m)) drop_state(m.key, *worker);
  if (!kept.empty()) return;
  note_undecided(generation, where);
  // What followers have, they have from a donor that nobody knows to be right.
  for (const WorkerKey& key : living()) {
    Worker* worker = worker_of(key);
    if (worker->standing.has_state() || worker->standing.phase() == wire::WORKER_FOLLOWING)
      drop_state(key, *worker);
  }
}

// The next attempt goes back to the same checkpoint and, where it is the script that makes the
// states differ, to the same end. Each member says it: a generation counts once.
void JobMachine::note_undecided(std::uint64_t generation, const std::string& where) {
  const std::uint64_t checkpoint = view_.has_checkpoint ? view_.checkpoint_step : 0;
  if (generation == undecided_.generation) return;
  if (checkpoint != undecided_.checkpoint_step) undecided_.times = 0;
  undecided_ = {undecided_.times + 1, generation, checkpoint};
  if (undecided_.times < kUndecidedMost) return;
  view_.failure_reason = "Diverged";
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
               .reason = "Diverged",
               .message = view_.diverged,
               .infrastructure = true});
}

// They lose their state with their process. Said again over each new connection.
void JobMachine::restart_diverged(MonoTime now) {
  for (auto& [uid, agent] : agents_) {
    if (!agent.connected || agent.dead || wished(uid) == nullptr) continue;
    for (auto& [slot, worker] : agent.workers)
      if (worker.diverged && !worker.exited && !worker.restart_sent)
        send_restart(uid, worker, "it held another state than the others");
  }
  if (diverged_at_ && now - *diverged_at_ >= kDivergedShown) {
    diverged_at_.reset();
    view_.diverged.clear();
    outputs_.changed = true;
  }
}

}  // namespace rubato::coordinator
