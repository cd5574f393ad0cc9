// Links that fail between members that live: all say whom they reach, the largest set in which all
// reach each other goes on at once, the others wait with their state and follow anew when they
// reach it. Nobody is restarted for it.
#include "common/log.h"
#include "common/planted.h"
#include "common/words.h"
#include "operator/coordinator/job_machine.h"
#include "operator/coordinator/link_graph.h"

#include <algorithm>

namespace rubato::coordinator {
namespace {

// Recoveries in which probes are believed alone. Then a link that its ends called broken since the
// last step counts although a small hello gets through, or nobody answers probes (an older worker).
constexpr int kProbeAttempts = 2;
constexpr int kProbeDoublings = 4;

}  // namespace

// An agent may name whomever it likes: who is no worker of the job is not kept.
void JobMachine::note_broken_link(const WorkerKey& a, const WorkerKey& b) {
  if (a == b || worker_of(b) == nullptr) return;
  broken_links_.insert(std::minmax(a, b));
}

// Hubs answer beside the steps, so it does not grow with them.
Duration JobMachine::probe_limit() const {
  return kProbeFloor * (1 << std::min(attempts_, kProbeDoublings));
}

// Called in each pass while links are suspected.
void JobMachine::recover_links(MonoTime now) {
  if (!probing_) begin_probing(now);
  if (!is_probed(now)) return;
  (void)leave_out(now);
  begin_recovery(now, suspect_cause_, std::string(suspect_why_));
}

void JobMachine::probe(const WorkerKey& key, std::uint64_t generation,
                       const std::vector<Member>& members, std::size_t index) {
  wire::WorkerCommand command;
  wire::Probe& probe = *command.mutable_probe();
  probe.set_generation(generation);
  probe.set_limit_ms(static_cast<std::uint32_t>(probe_limit() / 1ms));
  for (const std::size_t target : probe_targets(index, members.size(), generation)) {
    const Worker* worker = member(members[target]);
    if (worker == nullptr) continue;
    wire::Member& out = *probe.add_members();
    *out.mutable_id() = worker->standing.id();
    *out.mutable_address() = worker->standing.listen();
  }
  order(key, std::move(command));
}

void JobMachine::begin_probing(MonoTime now) {
  Probing probing;
  probing.generation = op_ ? op_->next.generation : record_.generation;
  probing.members = op_ ? op_->next.members : record_.members;
  if (op_ && op_->kind == Kind::kPlanned)
    for (const Member& m : op_->next.previous)
      if (std::ranges::find(probing.members, m) == probing.members.end())
        probing.members.push_back(m);
  probing.deadline = now + probe_limit() + kProbeReturn;
  for (std::size_t i = 0; i < probing.members.size(); ++i)
    probe(probing.members[i].key, probing.generation, probing.members, i);
  probing_ = std::move(probing);
}

// All who live have answered, or had their time.
bool JobMachine::is_probed(MonoTime now) {
  const bool all = std::ranges::all_of(probing_->members, [&](const Member& m) {
    return member(m) == nullptr || probing_->missed.contains(m.key);
  });
  if (!all && now < probing_->deadline) wake_at(probing_->deadline);
  return all || now >= probing_->deadline;
}

void JobMachine::take_reach(MonoTime now, const WorkerKey& key, const wire::Reach& reach) {
  if (probing_ && probing_->generation == reach.generation()) {
    std::set<WorkerKey>& missed = probing_->missed[key];
    for (const wire::WorkerId& id : reach.missed())
      if (const WorkerKey other{id.pod_uid(), id.slot()}; worker_of(other) != nullptr)
        missed.insert(other);
    return;
  }
  Worker* worker = worker_of(key);
  if (worker == nullptr || !worker->left_out || !worker->left_out->answer_by) return;
  worker->reaches_all = reach.missed().empty();
  if (worker->reaches_all)
    worker->left_out.reset();  // followers() tells it whom to follow
  else
    leave_out(now, key);
}

void JobMachine::leave_out(MonoTime now, const WorkerKey& key) {
  Worker* worker = worker_of(key);
  if (now - worker->last_left_out > kLinksQuiet) worker->times_left_out = 0;
  worker->last_left_out = now;
  Duration wait = kLinksRetry;
  for (int i = 0; i < worker->times_left_out && wait < kLinksRetryMost; ++i) wait *= 2;
  ++worker->times_left_out;
  worker->reaches_all = false;
  worker->left_out = LeftOut{.retry_at = now + std::min<Duration>(wait, kLinksRetryMost)};
}

// From what the probes found: who is not in the largest set waits, or, when it has not answered
// although its agent lives, begins anew. If those who would go on lack
// the state, all go on together. True when somebody waits.
bool JobMachine::leave_out(MonoTime now) {
  const Probing probing = *std::exchange(probing_, std::nullopt);
  std::vector<WorkerKey> alive;
  std::map<WorkerKey, std::size_t> index;
  for (const Member& m : probing.members) {
    if (member(m) == nullptr) continue;
    index[m.key] = alive.size();
    alive.push_back(m.key);
  }
  LinkGraph graph(alive.size());
  const auto miss = [&](const WorkerKey& a, const WorkerKey& b) {
    if (a != b && index.contains(a) && index.contains(b)) graph.miss(index[a], index[b]);
  };
  for (const auto& [key, missed] : probing.missed)
    for (const WorkerKey& other : missed) miss(key, other);
  if (attempts_ >= kProbeAttempts)
    for (const auto& [a, b] : broken_links_) miss(a, b);
  if (graph.is_whole()) return false;
  const std::vector<bool> goes_on = graph.largest_set();
  std::vector<WorkerKey> rest;
  std::vector<WorkerKey> set;
  for (std::size_t i = 0; i < alive.size(); ++i) (goes_on[i] ? set : rest).push_back(alive[i]);
  if (!any_state(set)) return false;
  const bool some_answered = !probing.missed.empty();
  for (const WorkerKey& key : rest) {
    const Agent& agent = agents_[key.pod_uid];
    const bool is_heard = agent.connected && now - agent.last_seen <= 4 * timing_.heartbeat;
    const bool waits = probing.missed.contains(key) || !is_heard || !some_answered;
    if (waits && !planted(Bug::kRestartUnreached)) {
      leave_out(now, key);
      continue;
    }
    // Its agent lives, and it says nothing: no link is to blame, it hangs.
    restart(key, "no answer to a probe");
    if (Worker* worker = worker_of(key)) worker->exited = true;  // until it says hello anew
  }
  const std::string waiting =
      fmt::format("{} {}", counted_of(rest.size(), alive.size(), "worker"),
                  agreeing(rest.size(), "does not reach all others and waits",
                           "do not reach all others and wait"));
  suspect_why_ += "; " + waiting;
  LOG_WARNING(kLog, "{}: {}: {}{}", to_string(wish_.job), waiting, to_string(rest.front()),
              rest.size() > 1 ? " …" : "");
  return true;
}

// Takes out of `asked` who is left out. It is no member of what follows, and is asked all the same
// for what it knows. When nobody else has the state, nobody is left out.
std::vector<Member> JobMachine::take_left_out(std::vector<WorkerKey>& asked) {
  const auto is_left_out = [&](const WorkerKey& key) {
    return worker_of(key)->left_out.has_value();
  };
  std::vector<WorkerKey> others;
  std::ranges::remove_copy_if(asked, std::back_inserter(others), is_left_out);
  std::vector<Member> out;
  if (others.size() == asked.size()) return out;
  if (!any_state(others)) {
    for (const WorkerKey& key : asked) worker_of(key)->left_out.reset();
    return out;
  }
  for (const WorkerKey& key : asked)
    if (is_left_out(key)) out.push_back(as_member(key));
  asked = std::move(others);
  return out;
}

// Who was left out says from time to time whom it reaches by now. One that does not answer is of an
// older version: it is told to follow, and shows it that way.
void JobMachine::ask_left_out(MonoTime now) {
  for (const WorkerKey& key : living()) {
    Worker* worker = worker_of(key);
    if (!worker->left_out || is_member(key)) continue;
    LeftOut& left_out = *worker->left_out;
    if (left_out.answer_by && now >= *left_out.answer_by) {
      worker->reaches_all = true;
      worker->left_out.reset();
    } else if (left_out.answer_by) {
      wake_at(*left_out.answer_by);
    } else if (now < left_out.retry_at) {
      wake_at(left_out.retry_at);
    } else if (agents_[key.pod_uid].connected) {
      left_out.answer_by = now + probe_limit() + kProbeReturn;
      std::vector<Member> all = record_.members;
      all.push_back(as_member(key));
      probe(key, record_.generation, all, all.size() - 1);
      wake_at(*left_out.answer_by);
    }
  }
}

}  // namespace rubato::coordinator
