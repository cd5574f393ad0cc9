// Who hangs, and who cannot be reached: whom to leave out when a generation brings no step.
#include "common/log.h"
#include "operator/coordinator/job_machine.h"

#include <algorithm>

namespace rubato::coordinator {
namespace {

constexpr const char* kLog = "coordinator";
constexpr int kPatienceDoublings = 4;
constexpr int kLinkAttempts =
    2;  // recoveries with everybody, before one with broken links is left out

Duration seconds(double s) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(s));
}

}  // namespace

// How long a worker may take: longer where steps are long, and twice as long after each attempt
// that brought no step. A false alarm can cost the job its only copy of the state; it must not
// repeat itself.
Duration JobMachine::patience(Duration floor) const {
  const Duration by_step = seconds(timing_.progress_factor * view_.step_seconds);
  return std::max(floor, by_step) * (1 << std::min(attempts_, kPatienceDoublings));
}

// Heartbeats come, and it does not get ready: nobody waits for it, but its GPU is idle.
void JobMachine::restart_unready(MonoTime now) {
  for (const WorkerKey& key : living()) {
    const Worker* worker = worker_of(key);
    if (worker->standing.phase() != wire::WORKER_STARTING) continue;
    const MonoTime due = worker->progress_at + timing_.start_deadline;
    if (now < due)
      wake_at(due);
    else
      restart(key, "did not get ready");
  }
}

// Heartbeats come, steps do not: the worker that is not waiting for another is the one that hangs.
void JobMachine::blame_the_stuck(MonoTime now) {
  if (parked_) return;
  bool stepped = false;  // has anybody finished a step in its present process?
  for (const Member& m : record_.members) {
    const Worker* worker = member(m);
    stepped = stepped || worker->standing.step_seconds() > 0;
    quiet_since_ = std::max(quiet_since_, worker->progress_at);
  }
  const Duration limit = patience(stepped ? timing_.progress_floor : timing_.first_step);
  if (now - quiet_since_ < limit) return wake_at(quiet_since_ + limit);
  quiet_since_ = now;
  std::vector<WorkerKey> laggards;
  for (const Member& m : record_.members) {
    const std::string& at = member(m)->standing.phase_name();
    if (at != "reduce" && at != "commit" && at != "form") laggards.push_back(m.key);
  }
  const bool some = !laggards.empty() && laggards.size() < record_.members.size();
  if (some) {
    for (const WorkerKey& key : laggards) restart(key, "no progress while the others wait for it");
  } else if (!stuck_once_) {
    stuck_once_ = true;
    begin_recovery(now, "no progress in generation " + std::to_string(record_.generation));
  } else {
    stuck_once_ = false;
    for (const WorkerKey& key : expendable()) restart(key, "no progress, twice");
  }
}

// ---- Links
// -----------------------------------------------------------------------------------------------

void JobMachine::note_broken_link(const WorkerKey& a, const WorkerKey& b) {
  if (a == b) return;
  broken_links_.insert(std::minmax(a, b));
}

// The member with the most broken links to other members. One end alone cannot tell which of the
// two is to blame, so each link counts for both; of equals, the last one goes. None when nobody has
// a broken link, or nobody with the state would be left.
std::optional<WorkerKey> JobMachine::worst_linked() {
  const std::vector<Member>& members =
      op_ && op_->kind != Kind::kPlanned ? op_->next.members : record_.members;
  const auto is_in = [&](const WorkerKey& key) {
    return std::any_of(members.begin(), members.end(),
                       [&](const Member& m) { return m.key == key; });
  };
  std::optional<WorkerKey> worst;
  std::size_t most = 0;
  for (const Member& m : members) {
    const auto count = static_cast<std::size_t>(
        std::count_if(broken_links_.begin(), broken_links_.end(), [&](const auto& link) {
          return (link.first == m.key || link.second == m.key) && is_in(link.first) &&
                 is_in(link.second);
        }));
    if (count == 0 || count < most) continue;
    most = count;
    worst = m.key;
  }
  const bool others_have_state = std::any_of(members.begin(), members.end(), [&](const Member& m) {
    const Worker* worker = member(m);
    return m.key != worst && worker != nullptr && worker->standing.has_state();
  });
  return others_have_state ? worst : std::nullopt;
}

// Who may be restarted although nothing tells who hangs. Never all who hold the state, but the only
// one: half of them at a time, so that a hang among many is found in few attempts.
std::vector<WorkerKey> JobMachine::expendable() {
  if (const auto worst = worst_linked()) return {*worst};
  std::vector<WorkerKey> keys;
  const std::size_t size = record_.members.size();
  for (std::size_t i = size == 1 ? 0 : (size + 1) / 2; i < size; ++i)
    keys.push_back(record_.members[i].key);
  return keys;
}

// Links broke and nobody died of it. At first all try again together; when that brings no step, the
// one with the most broken links begins anew, as a follower, and the others go on without it.
void JobMachine::recover_links(MonoTime now) {
  const std::string why = suspect_why_;
  if (attempts_ >= kLinkAttempts) {
    if (const auto worst = worst_linked()) {
      LOG_WARNING(kLog, "{}: goes on without {}: its links fail again and again",
                  to_string(wish_.job), to_string(*worst));
      restart(*worst, "its links to others fail again and again");
      if (Worker* worker = worker_of(*worst)) worker->exited = true;  // until it says hello anew
    }
  }
  begin_recovery(now, why);
}

}  // namespace rubato::coordinator
