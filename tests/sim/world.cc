#include "tests/sim/world.h"

#include <fmt/core.h>

namespace rubato::sim {
namespace {
constexpr Duration kLeaderSettled = 5s;

std::string text(const WorkerTuple& id) {
  return fmt::format("{}/{}#{}", std::get<0>(id), std::get<1>(id), std::get<2>(id));
}
}  // namespace

std::uint64_t gradient(const TrainState& state, std::uint32_t micro) {
  return mix64(state.hash ^ mix64(state.seq * 1000 + micro));
}

TrainState applied(const TrainState& state, std::uint64_t sum, wire::Outcome outcome) {
  const bool counts = outcome == wire::OUTCOME_APPLY;
  return {mix64(state.hash ^ sum ^ static_cast<std::uint64_t>(outcome)), state.seq + 1,
          state.step + (counts ? 1 : 0)};
}

Peer* World::find_peer(const WorkerTuple& id) {
  const auto found = peers_.find(id);
  return found == peers_.end() ? nullptr : &found->second;
}

void World::pod_is_gone(const std::string& pod_uid) {
  for (auto& [id, peer] : peers_)
    if (std::get<0>(id) == pod_uid) peer.alive = false;
}

void World::contribute(std::uint64_t generation, std::uint64_t seq, const WorkerTuple& who,
                       std::uint64_t sum) {
  contributions_[{generation, seq, who}].sum = sum;
  // Nobody looks back further than a few rounds.
  while (contributions_.size() > 4096) contributions_.erase(contributions_.begin());
}

void World::vote(std::uint64_t generation, std::uint64_t seq, const WorkerTuple& who,
                 const wire::CommitVote& vote) {
  votes_[{generation, seq, who}].vote = vote;
  while (votes_.size() > 4096) votes_.erase(votes_.begin());
}

const Post* World::contribution(std::uint64_t generation, std::uint64_t seq,
                                const WorkerTuple& who) const {
  const auto found = contributions_.find({generation, seq, who});
  return found == contributions_.end() ? nullptr : &found->second;
}

const Post* World::ballot(std::uint64_t generation, std::uint64_t seq,
                          const WorkerTuple& who) const {
  const auto found = votes_.find({generation, seq, who});
  return found == votes_.end() ? nullptr : &found->second;
}

// ---- Witness
// -----------------------------------------------------------------------------------------

void World::record_written(std::uint64_t generation, std::uint64_t leader, std::string_view phase,
                           const std::set<WorkerTuple>& members) {
  if (generation < record_generation_) broken("the record's generation went back");
  if (leader < record_leader_) broken("the record's leader went back");
  if (leader > record_leader_) leader_since_ = now();
  const auto [known, is_new] = memberships_.try_emplace(generation, Generation{.members = members});
  Generation& written = known->second;
  if (written.members != members)
    broken(fmt::format("generation {} has two memberships", generation));
  if (is_new && phase == "Recovering") written.is_rescale = true;
  if (is_new && phase == "Switching")  // else it is the settings that change
    written.is_rescale = members != memberships_[record_generation_].members;
  written.stands = written.stands || phase == "Training";
  record_generation_ = generation;
  record_leader_ = leader;
}

std::uint64_t World::rescales() const {
  return static_cast<std::uint64_t>(std::ranges::count_if(memberships_, [](const auto& entry) {
    return entry.second.is_rescale && entry.second.stands && entry.second.has_decided;
  }));
}

void World::decided(const WorkerTuple& who, std::uint64_t generation, const TrainState& before,
                    std::uint64_t sum, const wire::CommitRecord& record) {
  ++decisions_;
  if (record.micro_batches() != micro_batches())
    broken(fmt::format("round {} was decided with {} micro-batches", before.seq,
                       record.micro_batches()));
  std::uint64_t right = 0;
  for (std::uint32_t m = 0; m < micro_batches(); ++m) right += gradient(before, m);
  if (sum != right)
    broken(fmt::format("round {} of generation {} has not each micro-batch once, says {}",
                       before.seq, generation, text(who)));
  const auto found = memberships_.find(generation);
  if (found == memberships_.end() || !found->second.members.contains(who))
    broken(
        fmt::format("{} decides in generation {} and is no member of it", text(who), generation));
  else
    found->second.has_decided = true;
  const bool is_first = !states_.contains(before.seq + 1);
  if (is_first && generation < deciding_generation_)
    broken(fmt::format("generation {} decides after {} has", generation, deciding_generation_));
  if (is_first) deciding_generation_ = generation;
}

void World::resumed(const WorkerTuple& who, std::uint64_t generation, std::uint64_t base) {
  if (now() - leader_since_ < kLeaderSettled) return;
  for (const auto& [id, peer] : peers_) {
    const bool stands_still = peer.alive && peer.has_state && peer.fenced_below == generation;
    if (id == who || !stands_still || peer.state.seq <= base || !is_heard_(std::get<0>(id)))
      continue;
    broken(fmt::format("generation {} goes back to round {}, and {} has decided it", generation,
                       base, text(id)));
  }
}

void World::applied_by(const WorkerTuple& who, const TrainState& after) {
  const auto [known, is_new] = states_.try_emplace(after.seq, after.hash);
  if (known->second != after.hash)
    broken(fmt::format("{} has another state than the others after round {}", text(who),
                       after.seq - 1));
  if (!is_new) return;
  highest_step_ = std::max(highest_step_, after.step);
  last_progress_ = now();
}

TrainState World::undisturbed(std::uint64_t step) const {
  TrainState state;
  while (state.step < step) {
    std::uint64_t sum = 0;
    for (std::uint32_t m = 0; m < micro_batches(); ++m) sum += gradient(state, m);
    state = applied(state, sum, overflows(state.seq) ? wire::OUTCOME_REDO : wire::OUTCOME_APPLY);
  }
  return state;
}

}  // namespace rubato::sim
