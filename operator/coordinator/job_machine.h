// JobMachine: the coordinator's mind for one job. Inputs are what agents say, what the controller
// wishes, what the record's writes gave, and time; outputs are messages, one write of the record at
// a time, and the view. It has no thread, no I/O and no chance: equal inputs give equal outputs.
//
// Every input ends in one pass over all that is known ("look at the world, not at the news"), so an
// input that comes twice, late or out of order changes nothing. Not thread-safe.
// Private to this folder: includes the generated wire messages.
#pragma once

#include "operator/coordinator/coordinator.h"
#include "operator/coordinator/record.h"
#include "worker/protocol/wire.pb.h"

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace rubato::coordinator {

constexpr auto kJoinSettle = 300ms;     // newcomers that are nearly ready are taken along
constexpr auto kSuspectSettle = 150ms;  // a broken link: time to learn who died
constexpr auto kRetireDeadline = 10s;   // a retired worker's exit
constexpr auto kStopDeadline = 2min;    // checkpoint and stop of a job that trains
constexpr auto kLeaveSafety = 3s;       // of a pod's grace period: kept for its exit
constexpr int kAttemptsMax = 64;        // starts and recoveries without a commit, before Failed

struct Send {
  std::string pod_uid;
  wire::CoordinatorMessage message;
};

struct Outputs {
  std::vector<Send> sends;
  std::optional<Record> swap;      // write this; the answer comes by swapped(). One at a time.
  std::vector<std::string> drops;  // pods whose connection is to be closed
  bool changed = false;            // the view
};

enum class SwapResult { kDone, kConflict };

class JobMachine {
 public:
  // `record` is what stands now, with our epoch as leader. Nobody is called dead before two
  // silence deadlines have passed since the first agent came.
  JobMachine(Timing timing, Wish wish, Record record, MonoTime now);

  void wish(MonoTime now, const Wish& wish);
  void connected(MonoTime now, const wire::Hello& hello);
  void disconnected(MonoTime now, const std::string& pod_uid, const std::string& why);
  void message(MonoTime now, const std::string& pod_uid, const wire::AgentMessage& message);
  void swapped(MonoTime now, SwapResult result);
  void tick(MonoTime now);

  // When tick() is due at the latest.
  MonoTime next_tick() const { return next_tick_; }
  Outputs take_outputs();
  const View& view() const { return view_; }
  const Record& record() const { return record_; }
  // A write met another writer's: nothing is done until a new machine is made from what stands.
  bool must_reload() const { return conflict_; }

 private:
  struct Worker {
    wire::WorkerStanding standing;
    bool exited = false;
    bool refused = false;     // another fingerprint: never a member
    bool configured = false;  // over this connection
    bool asked_stop = false;
    bool retired = false;
    bool caught_up = false;
    std::optional<std::uint64_t> known_checkpoint;  // the newest one when it was configured
    bool restart_sent = false;                      // over this connection
    std::uint64_t restart_ordered = 0;    // highest incarnation that we had killed ourselves
    std::uint64_t abort_below = 0;        // highest sent over this connection
    std::uint64_t settled_below = 0;      // highest Abort that it has answered: it stands still
    std::uint64_t form_generation = 0;    // highest Form sent over this connection
    std::uint64_t follow_generation = 0;  // of the Follow that it was told and that still holds
    MonoTime follow_since{};
    std::uint64_t progress_mark = 0;
    MonoTime progress_at{};
  };
  struct Agent {
    std::string name;
    std::string node;
    bool connected = false;
    bool dead = false;
    bool suspected = false;  // a peer's link to it broke
    bool leaving = false;    // it was told to end
    MonoTime leave_deadline{};
    MonoTime last_seen{};
    MonoTime lost_at{};
    std::string lost_why;
    std::map<std::uint32_t, Worker> workers;
  };
  // A change of membership under way.
  enum class Kind { kStart, kRecover, kPlanned };
  struct Operation {
    Kind kind = Kind::kRecover;
    Record next;
    bool swap_asked = false;
    bool swapped = false;
    bool told = false;  // Forms are out
    bool parked = false;
    MonoTime began{};
    MonoTime deadline{};
    wire::Form form;  // START and RECOVER
    Change change;
  };
  // What a planned change could do now.
  struct Moves {
    std::vector<WorkerKey> joiners;  // have caught up
    std::vector<Member> stay;
    std::vector<Member> leave;
    bool more_soon = false;  // somebody is catching up
  };

  // job_inputs.cc: inputs; job_machine.cc: the pass
  void pass(MonoTime now);
  void stable(MonoTime now);
  void mark_dead(MonoTime now);
  void take_standing(MonoTime now, Agent& agent, const wire::WorkerStanding& standing);
  void take_event(MonoTime now, Agent& agent, const wire::WorkerEvent& event);
  void take_failure(MonoTime now, Agent& agent, Worker& worker, const wire::Failure& failure);
  void take_exit(MonoTime now, const std::string& pod_uid, Agent& agent,
                 const wire::Exited& exited);
  void configure_new();
  bool holding(MonoTime now);
  // job_blame.cc
  Duration patience(Duration floor) const;
  void restart_unready(MonoTime now);
  void blame_the_stuck(MonoTime now);
  void note_broken_link(const WorkerKey& a, const WorkerKey& b);
  std::optional<WorkerKey> worst_linked();
  std::vector<WorkerKey> expendable();
  void recover_links(MonoTime now);
  // Who
  const Wish::Pod* wished(const std::string& pod_uid) const;
  Agent* agent_of(const std::string& pod_uid);
  Worker* worker_of(const WorkerKey& key);  // alive, in a wished pod; else null
  Worker* member(const Member& m);          // and of the right incarnation
  bool is_leaving(const std::string& pod_uid) const;
  bool is_member(const WorkerKey& key) const;
  Member as_member(const WorkerKey& key);
  std::string why_lost(const Member& m);
  std::vector<WorkerKey> living();  // in the order of the wish
  // Output
  void order(const WorkerKey& key, wire::WorkerCommand command);
  void restart(const WorkerKey& key, const std::string& reason);
  void abort(const WorkerKey& key, std::uint64_t below);
  void ask_swap();
  void wake_at(MonoTime time);
  void write_phase(Phase phase);
  void add_failure(PodFailure failure);
  std::uint64_t next_generation();
  std::uint64_t oldest_of_interest() const;

  // job_recover.cc
  bool any_state(const std::vector<WorkerKey>& workers);
  std::vector<WorkerKey> ask_for_state(bool with_joiners);
  void note_never_back(const Member& m);
  void begin_recovery(MonoTime now, const std::string& reason, bool with_joiners = false);
  void advance_recovery(MonoTime now);
  bool all_answered(MonoTime now);
  void form_recovery(MonoTime now);
  void await_formed(MonoTime now);
  void complete_operation(MonoTime now);
  // job_change.cc
  static bool is_following(const Worker& worker);
  void followers(MonoTime now);
  Moves possible_moves();
  bool begin_planned(MonoTime now);
  bool await_replacements(MonoTime now, const Moves& moves);
  void plan_switch(MonoTime now, const Moves& moves);
  bool all_switched(const std::vector<Member>& all);
  void advance_planned(MonoTime now);
  void retire_left(MonoTime now);
  // job_ends.cc
  std::vector<WorkerKey> ready_to_start();
  bool may_start(MonoTime now, std::size_t ready);
  std::optional<std::uint64_t> newest_checkpoint(std::vector<WorkerKey>& ready);
  void try_start(MonoTime now);
  void start(MonoTime now, std::optional<std::uint64_t> checkpoint,
             const std::vector<WorkerKey>& workers);
  void advance_start(MonoTime now);
  bool try_finish(MonoTime now);
  void advance_stop(MonoTime now);
  void take_back_stop(MonoTime now);
  void end(MonoTime now, Phase phase, const std::string& reason);
  void retire_all(MonoTime now, const std::string& reason);
  void pin_fingerprint();
  // job_view.cc
  void refresh_view(MonoTime now);
  void refresh_phase(MonoTime now);
  void refresh_end(MonoTime now);  // the phase of a job that has ended
  void enter(Phase phase, std::string reason);
  void note_commits(MonoTime now);
  void note_sharing(const Agent& agent, const Worker& worker);
  void note_unshared(const std::string& pod, const std::string& node, std::uint64_t step);
  GpuUse gpu_use();
  void end_change(MonoTime now, double usual);
  GpuUse cost_of(const Change& change) const;
  void book_gpu_time();

  Timing timing_;
  Wish wish_;
  Record record_;
  MonoTime led_since_;
  std::optional<MonoTime> first_back_;  // the first agent that found us
  std::optional<MonoTime> seen_whole_;  // a step of the recorded generation was seen committed
  bool taking_over_ = true;             // some members of the record may come back yet,
  bool held_ = true;                    // and are waited for
  std::size_t failures_since_commit_ = 0;
  std::set<std::string> never_back_;  // pods whose loss to the last leader was noted, by uid
  bool conflict_ = false;
  std::map<std::string, Agent> agents_;
  std::optional<Operation> op_;
  std::optional<Record> in_flight_;  // the write that is under way
  std::uint64_t highest_generation_ = 0;
  std::uint64_t formed_generation_ = 0;  // the one that trains; news of older ones is old
  std::optional<MonoTime> suspect_since_;
  std::string suspect_why_;
  std::set<std::pair<WorkerKey, WorkerKey>> broken_links_;  // said since the last commit
  std::optional<MonoTime> join_since_;
  std::optional<MonoTime> start_since_;
  MonoTime start_not_before_{};  // backs off when a start fails
  std::optional<MonoTime> stop_since_;
  std::optional<MonoTime> retire_since_;
  MonoTime quiet_since_{};  // no member showed progress since
  MonoTime last_commit_{};  // when a commit was last seen
  int attempts_ = 0;        // recoveries since the last commit
  bool parked_ = false;
  bool stuck_once_ = false;
  Phase ended_ = Phase::kWaiting;     // kStopped, kFinished, kFailed: over
  std::optional<Change> unfinished_;  // waits for the first commit after it
  MonoTime unfinished_since_{};       // the last commit before it
  MonoTime formed_at_{};
  bool has_trained_ = false;  // a commit was seen, or the record says that there were some
  GpuTime gpu_time_;
  std::set<std::string> retired_pods_;
  Outputs outputs_;
  View view_;
  MonoTime next_tick_{};
};

}  // namespace rubato::coordinator
