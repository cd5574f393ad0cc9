#include "tests/sim/world.h"

#include <algorithm>
#include <utility>

#include <fmt/core.h>

namespace rubato::sim {
namespace {
constexpr Duration kLeaderSettled = 5s;

std::string text(const WorkerTuple& id) {
  return fmt::format("{}/{}#{}", std::get<0>(id), std::get<1>(id), std::get<2>(id));
}

// What a worker says only where it, or another, broke the protocol: whatever breaks on the way, no
// member is given another's bytes, and no round lacks a micro-batch or has one twice. The next
// recovery would hide it.
bool is_of_a_fault_of_ours(const wire::WorkerEvent& event) {
  const std::string& why = event.suspect().why();
  const std::string& reason = event.failure().reason();
  return why.find("peer is in another operation") != std::string::npos ||
         why.find("peer sent") != std::string::npos || reason == "StepFailed" ||
         reason == "LedgerMismatch" || reason == "BadForm";
}
}  // namespace

World::World(Story& story, JobShape shape, IsHeard is_heard)
    : story_(story),
      shape_(std::move(shape)),
      is_heard_(std::move(is_heard)),
      reference_(std::make_unique<ReferenceRun>(shape_)) {}
World::~World() = default;

const Peer* World::find_peer(const WorkerTuple& id) const {
  const auto found = peers_.find(id);
  return found == peers_.end() ? nullptr : &found->second;
}

void World::holds(const WorkerTuple& who, std::uint64_t step, std::uint64_t digest) {
  if (!reference_->passes(step, digest))
    broken(
        fmt::format("{} holds a state of {} steps that no undisturbed run has", text(who), step));
  highest_step_ = std::max(highest_step_, step);
}

std::uint64_t World::undisturbed(std::uint64_t step) { return reference_->after(step); }

void World::emitted(const WorkerTuple& who, const wire::WorkerEvent& event) {
  peers_[who].standing = event.standing();
  if (event.has_committed()) {
    const bool is_refused = event.committed().record().outcome() == wire::OUTCOME_DIVERGED;
    is_refused ? note_diverged(event.committed()) : decided(who, event.committed());
  }
  if (is_of_a_fault_of_ours(event))
    broken(
        fmt::format("{} says {}{}", text(who), event.suspect().why(), event.failure().message()));
  if (event.has_failure())
    story_.say("  {} says {}: {}", text(who), event.failure().reason(), event.failure().message());
}

void World::note_diverged(const wire::Committed& round) {
  ++refused_;
  const auto written = memberships_.find(round.generation());
  if (written == memberships_.end()) return;
  for (const std::uint32_t rank : round.record().diverged())
    if (rank < written->second.by_rank.size())
      peers_[written->second.by_rank[rank]].diverged = true;
}

void World::commanded(const WorkerTuple& who, const wire::WorkerCommand& command) {
  if (!command.has_form() || command.form().mode() == wire::FORM_PLANNED) return;
  const wire::Form& form = command.form();
  const auto written = memberships_.find(form.generation());
  const bool is_member =
      form.members_of() != 0
          ? written == memberships_.end() || written->second.members.contains(who)
          : std::ranges::any_of(form.members(), [&](const wire::Member& member) {
              return tuple_of(member.id()) == who;
            });
  if (!is_member) broken("a Form for somebody who is no member");
  if (form.mode() == wire::FORM_RECOVER) resumes(who, form);
}

void World::record_written(std::uint64_t generation, std::uint64_t leader, std::string_view phase,
                           std::vector<WorkerTuple> by_rank) {
  const std::set<WorkerTuple> members(by_rank.begin(), by_rank.end());
  if (generation < record_generation_) broken("the record's generation went back");
  if (leader < record_leader_) broken("the record's leader went back");
  if (leader > record_leader_) leader_since_ = now();
  if (went_back_ && generation > record_generation_) forget_unused(generation);
  const auto [known, is_new] = memberships_.try_emplace(
      generation, Generation{.members = members, .by_rank = std::move(by_rank)});
  Generation& written = known->second;
  if (written.members != members)
    broken(fmt::format("generation {} has two memberships", generation));
  if (is_new && phase == "Recovering") written.is_rescale = true;
  if (is_new && phase == "Switching")  // else it is the settings that change
    written.is_rescale = members != memberships_[record_generation_].members;
  written.stands = written.stands || phase == "Training";
  if (written.stands) most_members_ = std::max<std::uint64_t>(most_members_, members.size());
  record_generation_ = generation;
  record_leader_ = leader;
}

void World::store_went_back() {
  record_generation_ = record_leader_ = 0;
  went_back_ = true;
  for (auto& [number, generation] : memberships_) generation.is_rescale = false;
}

// After a restore a number may be used again that nobody alive is in. Who is in a later one of the
// time that is lost has fenced this one, and tells so when it is heard.
void World::forget_unused(std::uint64_t generation) {
  const bool is_used = std::ranges::any_of(peers_, [&](const auto& entry) {
    const wire::WorkerStanding& s = entry.second.standing;
    return entry.second.alive &&
           (s.generation() == generation || s.prepared_generation() == generation);
  });
  if (is_used) return;
  memberships_.erase(generation);
  records_.erase(generation);
  if (deciding_generation_ < generation) return;
  deciding_generation_ = generation;
  decided_step_ = 0;
}

std::size_t World::members_with(const WorkerTuple& who) const {
  const Peer* peer = find_peer(who);
  if (peer == nullptr) return 0;
  const auto found = memberships_.find(peer->standing.generation());
  return found == memberships_.end() ? 0 : found->second.members.size();
}

std::uint64_t World::rescales() const {
  return static_cast<std::uint64_t>(std::ranges::count_if(memberships_, [](const auto& entry) {
    return entry.second.is_rescale && entry.second.stands && entry.second.has_decided;
  }));
}

void World::decided(const WorkerTuple& who, const wire::Committed& committed) {
  ++decisions_;
  const std::uint64_t generation = committed.generation();
  const wire::CommitRecord& record = committed.record();
  if (record.micro_batches() != shape_.micro_batches)
    broken(fmt::format("round {} was decided with {} micro-batches", record.seq(),
                       record.micro_batches()));
  look_at_record(who, committed);
  const auto found = memberships_.find(generation);
  if (found == memberships_.end() || !found->second.members.contains(who))
    broken(
        fmt::format("{} decides in generation {} and is no member of it", text(who), generation));
  else
    found->second.has_decided = true;
  // Who was left out may learn late of a round that its generation had decided in time, and members
  // who are all out of reach train on until they hear.
  const bool is_in = memberships_[record_generation_].members.contains(who);
  if (is_in && generation < deciding_generation_ && record.step() > decided_step_)
    broken(fmt::format("generation {} decides step {} after {} has", generation, record.step(),
                       deciding_generation_));
  if (generation > deciding_generation_) decided_step_ = 0;
  if (generation >= deciding_generation_) decided_step_ = std::max(decided_step_, record.step());
  deciding_generation_ = std::max(deciding_generation_, generation);
}

// A decision is a function of the votes, and of its numbers an undisturbed run has the same; all
// who decide a round decide it alike.
void World::look_at_record(const WorkerTuple& who, const wire::Committed& committed) {
  const wire::CommitRecord& record = committed.record();
  if (!reference_->decides(record.step(), record.loss_q(), record.sample_digest()))
    broken(
        fmt::format("{} decides round {} of step {} with a loss or samples of no undisturbed run",
                    text(who), record.seq(), record.step()));
  wire::CommitRecord& said = records_[committed.generation()];
  if (said.seq() == record.seq() && said.micro_batches() > 0 &&
      said.SerializeAsString() != record.SerializeAsString())
    broken(fmt::format("{} decides round {} of generation {} otherwise than another", text(who),
                       record.seq(), committed.generation()));
  if (record.seq() >= said.seq()) said = record;
}

// A generation that is no planned change goes on from `base_seq`. Nobody who stands still for it,
// and is heard, may have decided that round already.
void World::resumes(const WorkerTuple& who, const wire::Form& form) {
  if (now() - leader_since_ < kLeaderSettled) return;
  for (const auto& [id, peer] : peers_) {
    const wire::WorkerStanding& s = peer.standing;
    const bool stands_still = peer.alive && s.has_state() && s.fenced_below() == form.generation();
    if (id == who || !stands_still || s.seq() <= form.base_seq() || !is_heard_(std::get<0>(id)))
      continue;
    broken(fmt::format("generation {} goes back to round {}, and {} has decided it",
                       form.generation(), form.base_seq(), text(id)));
  }
}

}  // namespace rubato::sim
