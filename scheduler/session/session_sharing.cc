// Jobs on the GPUs of others, where the policy says on whose (Targets::hosts).
#include "scheduler/model/sizes.h"
#include "scheduler/session/session.h"

#include <algorithm>

namespace rubato::sched {

// Who is a guest stays one, or stops.
void Session::settle_guests() {
  const bool is_any = std::ranges::any_of(entries_, &Entry::is_guest);
  if (!is_any && !may_share()) return;
  by_job_ = Table<JobIndex, Entry*>(entries_.size());
  for (Entry& entry : entries_) by_job_[entry.index] = &entry;
  for (Entry& entry : entries_) {
    if (!entry.is_guest) continue;
    const auto at = problem_.host_of(entry.index);
    Entry* host = at ? by_job_[*at] : nullptr;
    const bool is_whole = host != nullptr && host->remove.empty() && entry.remove.empty();
    const bool is_wanted =
        is_whole && may_share() && std::ranges::count(targets_.hosts[entry.index.value], *at) > 0;
    if (!is_wanted) {
      stop_guest(entry, {.host = host != nullptr ? host->job->name : entry.job->guest_of,
                         .why = is_whole ? StopsSharing::Why::kNotWorthIt
                                         : StopsSharing::Why::kHostLeaves});
      continue;
    }
    entry.host = host;
    host->guests.push_back(&entry);
  }
}

bool Session::may_share() const { return config_.sharing && !targets_.hosts.empty(); }

void Session::stop_guest(Entry& entry, StopsSharing cause) {
  entry.remove.clear();
  for (const Held& held : entry.job->held)
    if (held.stays() || (held.lost && !held.leaving)) entry.remove.push_back(held.ordinal);
  entry.host = nullptr;
  entry.now = 0;
  entry.preempted = true;
  entry.blocked = true;
  entry.cause = std::move(cause);
}

// Where the host has GPUs that no guest is on.
std::vector<NodeIndex> Session::room_on(const Entry& host) const {
  std::vector<NodeIndex> nodes;
  nodes.reserve(host.pods.size());
  for (const Pod& pod : host.pods) nodes.push_back(node_of(pod));
  std::ranges::sort(nodes);
  const auto take = [&](NodeIndex node) {
    const auto found = std::ranges::lower_bound(nodes, node);
    if (found != nodes.end() && *found == node) nodes.erase(found);
  };
  for (const Entry* guest : host.guests) {
    for (const NodeIndex node : guest->add) take(node);
    for (const Problem::HeldAt& held : problem_.held_at(guest->index))
      if (held.node) take(*held.node);
  }
  return nodes;
}

// False: nobody has room for it, or it is not to stop when its host does.
bool Session::become_guest(Entry& entry, Gpus wanted) {
  if (!may_share() || entry.job->started || !entry.add.empty()) return false;
  if (!entry.job->preemptible || entry.job->min_run_ms > 0) return false;
  for (const JobIndex at : targets_.hosts[entry.index.value]) {
    Entry& host = *by_job_[at];
    const bool may_host = !host.pods.empty() && host.add.empty() && host.remove.empty() &&
                          host.job->settled && host.job->per_pod.gpus == entry.job->per_pod.gpus;
    if (may_host && settle_on(host, entry, wanted)) return true;
  }
  return false;
}

bool Session::settle_on(Entry& host, Entry& guest, Gpus wanted) {
  const Job& job = *guest.job;
  const auto pods = static_cast<std::size_t>(wanted / job.per_pod.gpus);
  std::vector<NodeIndex> nodes = room_on(host);
  std::erase_if(nodes, [&](NodeIndex node) { return !admits(job, problem_.node(node)); });
  if (nodes.size() < pods) return false;
  nodes.resize(pods);
  const auto confines = [&](NodeIndex node) { return problem_.confines(job, node); };
  if (std::ranges::adjacent_find(nodes, std::ranges::not_equal_to{}, confines) != nodes.end())
    return false;
  Resources per_pod = job.per_pod;
  per_pod.gpus = 0;
  const std::size_t mark = free_.mark();
  for (const NodeIndex node : nodes) {
    if (!free_[node].fits(per_pod)) {
      free_.undo_to(mark);
      return false;
    }
    free_.take(node, per_pod);
  }
  guest.add = std::move(nodes);
  guest.now = wanted;
  guest.host = &host;
  guest.cause = SharesGpus{host.job->name};
  host.guests.push_back(&guest);
  return true;
}

// The hosts of some were stopped, moved or made smaller in this round.
void Session::leave_hosts_that_change() {
  if (by_job_.size() == 0) return;
  for (Entry& entry : entries_) {
    if (entry.host == nullptr || entry.host->remove.empty()) continue;
    const Entry& host = *entry.host;
    if (entry.job->started) {
      stop_guest(entry, {.host = host.job->name});
    } else {
      entry.add.clear();
      entry.now = 0;
      entry.host = nullptr;
      entry.cause.reset();
    }
    verdict(entry, {.outcome = Outcome::kNotNow,
                    .reason = Reason::kInsufficientGpus,
                    .needed = size_at_least(*entry.job, 0).value_or(entry.job->min),
                    .available = count_fitting(entry) * entry.job->per_pod.gpus});
  }
}

}  // namespace rubato::sched
