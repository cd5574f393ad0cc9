// Where a policy says on which nodes each job should be: who leaves which.
#include "scheduler/model/sizes.h"
#include "scheduler/session/session.h"

#include <algorithm>

namespace rubato::sched {

// Null: the policy says nothing of it, or what the job must not have.
const std::vector<NodeIndex>* Session::places_of(const Entry& entry) const {
  if (targets_.places.empty()) return nullptr;
  const auto& places = targets_.places[entry.index.value];
  if (!places || places->empty()) return nullptr;
  const Job& job = *entry.job;
  const auto is_beside = [&](NodeIndex node) {
    return problem_.confines(job, node) == problem_.confines(job, places->front());
  };
  return !is_confined(job) || std::ranges::all_of(*places, is_beside) ? &*places : nullptr;
}

void Session::leave_other_places() {
  is_emptied_.assign(problem_.end_of_nodes().value, false);
  for (const auto& [node, per_pod] : leaving_) is_emptied_[node.value] = true;
  std::vector<Move> moves;
  for (Entry& entry : entries_) {
    const auto* places = places_of(entry);
    const bool may_change = entry.job->settled && entry.remove.empty() && entry.now > 0 &&
                            !is_in_cells(entry) && has_queue(entry);
    if (places == nullptr || !may_change) continue;
    Move move = move_of(entry, *places);
    if (!move.leaving.empty()) moves.push_back(std::move(move));
  }
  leave_out_who_stays(moves);
  for (Move& move : moves) leave_for_places(move);
}

Session::Move Session::move_of(Entry& entry, const std::vector<NodeIndex>& places) {
  const Job& job = *entry.job;
  Move move{.entry = &entry, .open = places};
  for (const Pod& pod : entry.pods) {
    const auto found = std::ranges::find(move.open, node_of(pod));
    (found == move.open.end() ? move.leaving : move.right).push_back(pod);
    if (found != move.open.end()) move.open.erase(found);
  }
  const Gpus left = entry.now - std::ssize(move.leaving) * job.per_pod.gpus;
  move.stops = size_at_most(job, left) != left || left < job.min;
  return move;
}

// Those that are not to be stopped, and who would leave for the places of one that stays: it would
// not come to have them.
void Session::leave_out_who_stays(std::vector<Move>& moves) {
  std::vector<bool> is_kept(problem_.end_of_nodes().value, false);
  const auto stays = [&](const Move& move) {
    if (move.stops && !move.entry->may_stop) return true;
    return config_.preempt &&
           std::ranges::any_of(move.open, [&](NodeIndex node) { return is_kept[node.value]; });
  };
  for (std::size_t before = moves.size() + 1; moves.size() < before;) {
    before = moves.size();
    std::erase_if(moves, [&](const Move& move) {
      if (!stays(move)) return false;
      for (const Pod& pod : move.leaving) is_kept[node_of(pod).value] = true;
      return true;
    });
  }
}

// For pods that leave one of them: it takes no others meanwhile.
bool Session::waits_for_places(const Entry& entry) const {
  const auto* places = places_of(entry);
  return places != nullptr &&
         std::ranges::any_of(*places, [&](NodeIndex node) { return is_emptied_[node.value]; });
}

// The pods that are not where they should be; all of them, where those that are right are fewer
// than its minimum.
void Session::leave_for_places(Move& move) {
  auto& [of, right, leaving, open, stops] = move;
  Entry& entry = *of;
  if (stops) {
    leaving = entry.pods;
    right.clear();
  }
  for (const Pod& pod : leaving) {
    entry.remove.push_back(pod.ordinal);
    entry.now -= pod.gpus;
    quota_.give_back(queue_of(entry), pod.type, pod.gpus);
    is_emptied_[node_of(pod).value] = true;
  }
  count_from_anybody(entry, leaving);
  entry.pods = std::move(right);
  givers_.push_back({&entry});
  entry.cause = ChangesNodes{};
  if (!stops) return;
  entry.preempted = true;
  verdict(entry, {.outcome = Outcome::kNotNow,
                  .reason = Reason::kWaitingForRelease,
                  .needed = std::ssize(*places_of(entry)) * entry.job->per_pod.gpus});
}

// Nodes for the pods that it lacks; none: the policy says nothing, or there is no room on them now.
std::optional<std::vector<NodeIndex>> Session::missing_places(const Entry& entry) const {
  const auto* places = places_of(entry);
  if (places == nullptr) return std::nullopt;
  std::vector<NodeIndex> missing = *places;
  const auto is_there = [&](NodeIndex node) {
    const auto found = std::ranges::find(missing, node);
    if (found == missing.end()) return false;
    missing.erase(found);
    return true;
  };
  for (const Pod& pod : entry.pods)
    if (!is_there(node_of(pod))) return std::nullopt;
  for (const NodeIndex node : entry.add)
    if (!is_there(node)) return std::nullopt;
  const Gpus needs = std::ssize(missing) * entry.job->per_pod.gpus;
  if (quota_.room(queue_of(entry)) < needs) return std::nullopt;
  std::vector<NodeIndex> seen;
  for (const NodeIndex node : missing) {
    seen.push_back(node);
    const auto pods = std::ranges::count(seen, node);
    const bool has_room = free_[node].copies_of(entry.job->per_pod) >= pods &&
                          quota_.room(queue_of(entry), problem_.type_of(node)) >= needs;
    const bool is_kept_off = entry.guaranteed && problem_.type_of(node) != *entry.guaranteed;
    if (!has_room || is_kept_off || !admits(*entry.job, problem_.node(node))) return std::nullopt;
  }
  return missing;
}

}  // namespace rubato::sched
