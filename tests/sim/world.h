// World: what lies between the workers of one job, and the witness of what they do. Links are a
// board: what a worker posts for (generation, round) can be read by peers that can reach its host.
// The witness hears of every decision, every application of one and every write of the membership
// record, and tells the Story of the first thing that should not have happened.
// One thread; outside of any simulated process.
#pragma once

#include "common/rng.h"
#include "tests/sim/links.h"
#include "tests/sim/story.h"
#include "worker/protocol/wire.pb.h"

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace rubato::sim {

using WorkerTuple = std::tuple<std::string, std::uint32_t, std::uint64_t>;
inline WorkerTuple tuple_of(const wire::WorkerId& id) {
  return {id.pod_uid(), id.slot(), id.incarnation()};
}

// The training state is a hash: a function of the decisions so far, as weights are.
struct TrainState {
  std::uint64_t hash = 1;
  std::uint64_t seq = 0;
  std::uint64_t step = 0;
};
// What micro-batch `micro` adds in the round that follows `state`.
std::uint64_t gradient(const TrainState& state, std::uint32_t micro);
TrainState applied(const TrainState& state, std::uint64_t sum, wire::Outcome outcome);

// What peers and followers can see of a worker.
struct Peer {
  bool alive = true;
  std::string host;
  std::uint64_t entered = 0;  // generations whose links it has taken up: formed …
  std::uint64_t planned = 0;  // … or told of by a planned Form
  std::uint64_t fenced_below = 0;
  bool has_state = false;
  TrainState state;
  std::map<std::uint64_t, wire::CommitRecord> log;  // decisions it has applied, the last few
  std::map<std::uint64_t, std::uint64_t> sums;      // and what they applied
};

struct Post {
  std::uint64_t sum = 0;
  wire::CommitVote vote;
};

// The numbers of a job that its workers and its witness share.
struct JobShape {
  std::string name;
  std::uint32_t micro_batches = 24;
  std::uint64_t steps = 100;
  std::uint64_t checkpoint_every = 20;
  std::uint64_t redo_every = 41;  // 0: no round overflows
};

class World {
 public:
  // `is_heard`: does the coordinator hear all that the agent of this pod says, and is the pod to
  // stay?
  using IsHeard = std::function<bool(const std::string& pod_uid)>;
  World(Story& story, const Links& links, JobShape shape, IsHeard is_heard)
      : story_(story), links_(links), shape_(std::move(shape)), is_heard_(std::move(is_heard)) {}

  const JobShape& shape() const { return shape_; }
  std::uint32_t micro_batches() const { return shape_.micro_batches; }
  // Rounds that overflow: a property of the data, so equal for all.
  bool overflows(std::uint64_t seq) const {
    return shape_.redo_every != 0 && seq % shape_.redo_every == 3;
  }
  MonoTime now() const { return story_.now(); }

  Peer& peer(const WorkerTuple& id) { return peers_[id]; }
  Peer* find_peer(const WorkerTuple& id);
  void pod_is_gone(const std::string& pod_uid);
  bool reaches(const std::string& a, const std::string& b) const { return links_.reaches(a, b); }

  void contribute(std::uint64_t generation, std::uint64_t seq, const WorkerTuple& who,
                  std::uint64_t sum);
  void vote(std::uint64_t generation, std::uint64_t seq, const WorkerTuple& who,
            const wire::CommitVote& vote);
  const Post* contribution(std::uint64_t generation, std::uint64_t seq,
                           const WorkerTuple& who) const;
  const Post* ballot(std::uint64_t generation, std::uint64_t seq, const WorkerTuple& who) const;

  // The disk that all nodes share.
  std::map<std::uint64_t, TrainState> checkpoints;  // by step

  // ---- Witness ----
  void record_written(std::uint64_t generation, std::uint64_t leader, std::string_view phase,
                      const std::set<WorkerTuple>& members);
  void decided(const WorkerTuple& who, std::uint64_t generation, const TrainState& before,
               std::uint64_t sum, const wire::CommitRecord& record);
  void applied_by(const WorkerTuple& who, const TrainState& after);
  // `who` goes on from round `base` in a generation that is no planned change. Nobody who stands
  // still for it, and is heard, may have decided that round already.
  void resumed(const WorkerTuple& who, std::uint64_t generation, std::uint64_t base);
  void broken(const std::string& what) { story_.broken(shape_.name + ": " + what); }
  // The state after `step` steps of an undisturbed run.
  TrainState undisturbed(std::uint64_t step) const;

  std::uint64_t highest_step() const { return highest_step_; }
  MonoTime last_progress() const { return last_progress_; }
  std::uint64_t generations() const { return record_generation_; }
  std::uint64_t decisions() const { return decisions_; }
  // Generations that a recovery, a join or a leave led to, in which a round was decided, and of
  // which a leader knew that they stand. None may be missing in the job's count.
  std::uint64_t rescales() const;

 private:
  using Key = std::tuple<std::uint64_t, std::uint64_t, WorkerTuple>;
  Story& story_;
  const Links& links_;
  const JobShape shape_;
  const IsHeard is_heard_;
  std::map<WorkerTuple, Peer> peers_;
  std::map<Key, Post> contributions_;
  std::map<Key, Post> votes_;
  std::map<std::uint64_t, std::uint64_t> states_;  // hash after each round, the first one seen
  struct Generation {
    std::set<WorkerTuple> members;
    bool is_rescale = false;
    bool stands = false;
    bool has_decided = false;
  };
  std::map<std::uint64_t, Generation> memberships_;
  std::uint64_t record_generation_ = 0;
  std::uint64_t record_leader_ = 0;
  MonoTime leader_since_{};
  std::uint64_t deciding_generation_ = 0;
  std::uint64_t highest_step_ = 0;
  std::uint64_t decisions_ = 0;
  MonoTime last_progress_{};
};

}  // namespace rubato::sim
