// World: the witness of one job's workers. It hears of every state that a worker's replica has
// held, of every event and command, and of every write of the membership record, and tells the
// Story of the first thing that should not have happened. What is right it knows from an
// undisturbed run of the same replica, alone: each state that a worker holds after a round must be
// one of that run's, bit for bit. So a sample that counted twice, a gradient of another round or a
// stale state shows. One thread; outside of any simulated process.
#pragma once

#include "tests/sim/links.h"
#include "tests/sim/sim_replica.h"
#include "tests/sim/story.h"
#include "worker/protocol/wire.pb.h"

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <tuple>

namespace rubato::sim {

using WorkerTuple = std::tuple<std::string, std::uint32_t, std::uint64_t>;
inline WorkerTuple tuple_of(const wire::WorkerId& id) {
  return {id.pod_uid(), id.slot(), id.incarnation()};
}

struct Peer {
  bool alive = true;
  bool diverged = false;          // a round named it among those whose state is dropped
  wire::WorkerStanding standing;  // what it said last
};

class World {
 public:
  // `is_heard`: does the coordinator hear all that the agent of this pod says, and is the pod to
  // stay?
  using IsHeard = std::function<bool(const std::string& pod_uid)>;
  World(Story& story, JobShape shape, IsHeard is_heard);
  ~World();

  const JobShape& shape() const { return shape_; }
  MonoTime now() const { return story_.now(); }
  const Peer* find_peer(const WorkerTuple& id) const;
  // Of the generation that the worker is in, as the record has it; 0: not known.
  std::size_t members_with(const WorkerTuple& who) const;
  std::uint64_t refused() const { return refused_; }  // words of members that a round was refused

  // ---- What workers do ----
  void began(const WorkerTuple& who) { peers_[who] = {}; }
  void died(const WorkerTuple& who) { peers_[who].alive = false; }
  // The worker's replica holds the state that `digest` names, of so many steps.
  void holds(const WorkerTuple& who, std::uint64_t step, std::uint64_t digest);
  void emitted(const WorkerTuple& who, const wire::WorkerEvent& event);
  void commanded(const WorkerTuple& who, const wire::WorkerCommand& command);

  // ---- What is written ----
  void record_written(std::uint64_t generation, std::uint64_t leader, std::string_view phase,
                      std::vector<WorkerTuple> by_rank);
  // Records may be older than they were, and so is what was counted in them.
  void store_went_back();
  void broken(const std::string& what) { story_.broken(shape_.name + ": " + what); }

  // Digest of the state after `step` steps of an undisturbed run.
  std::uint64_t undisturbed(std::uint64_t step);

  std::uint64_t highest_step() const { return highest_step_; }
  std::uint64_t generations() const { return record_generation_; }
  std::uint64_t decisions() const { return decisions_; }
  std::uint64_t most_members() const { return most_members_; }  // of a generation that stood
  // Generations that a recovery, a join or a leave led to, in which a round was decided, and of
  // which a leader knew that they stand. None may be missing in the job's count.
  std::uint64_t rescales() const;

 private:
  void decided(const WorkerTuple& who, const wire::Committed& committed);
  void forget_unused(std::uint64_t generation);
  void look_at_record(const WorkerTuple& who, const wire::Committed& committed);
  void resumes(const WorkerTuple& who, const wire::Form& form);

  Story& story_;
  const JobShape shape_;
  const IsHeard is_heard_;
  std::unique_ptr<ReferenceRun> reference_;
  std::map<WorkerTuple, Peer> peers_;
  std::map<std::uint64_t, wire::CommitRecord> records_;  // by generation: the last that was said
  struct Generation {
    std::set<WorkerTuple> members;
    std::vector<WorkerTuple> by_rank;
    bool is_rescale = false;
    bool stands = false;
    bool has_decided = false;
  };
  void note_diverged(const wire::Committed& round);
  std::map<std::uint64_t, Generation> memberships_;
  std::uint64_t record_generation_ = 0;
  std::uint64_t record_leader_ = 0;
  MonoTime leader_since_{};
  bool went_back_ = false;
  std::uint64_t deciding_generation_ = 0;  // the newest that has decided a round
  std::uint64_t decided_step_ = 0;         // and the newest step it decided
  std::uint64_t highest_step_ = 0;
  std::uint64_t decisions_ = 0;
  std::uint64_t most_members_ = 0;
  std::uint64_t refused_ = 0;
};

}  // namespace rubato::sim
