// JobMachine: the coordinator's mind for one job. Inputs are what agents say, what the controller
// wishes, what the record's writes gave, and time; outputs are messages, one write of the record at
// a time, and the view. It has no thread, no I/O and no chance: equal inputs give equal outputs.
//
// Inputs are taken down, and each batch of them ends in tick(): one pass over all that is known
// ("look at the world, not at the news"), so an input that comes twice, late or out of order
// changes nothing. What agents said carries the time at which it arrived, however long it waited to
// be taken down; the lack of a word is judged after all that had arrived, and never over a time in
// which we slept. Not thread-safe.
// Private to this folder: includes the generated wire messages.
#pragma once

#include "operator/coordinator/coordinator.h"
#include "operator/coordinator/record.h"
#include "worker/protocol/members.h"

#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

namespace rubato::coordinator {

inline constexpr const char* kLog = "coordinator";        // component of the log lines
inline constexpr const char* kLinkFailed = "LinkFailed";  // View::recovers_from
inline constexpr const char* kDiverged = "Diverged";      // of failures and refusals
inline constexpr const char* kDeviceLost = "DeviceLost";  // … and its process ends by itself

// The next rank. What all members' builds know, the Form asks for.
void add_member(wire::Form& form, const wire::WorkerStanding& standing);

constexpr auto kJoinSettle = 300ms;     // newcomers that are nearly ready are taken along
constexpr auto kSuspectSettle = 150ms;  // a broken link: time to learn who died
constexpr auto kRetireDeadline = 10s;   // a retired worker's exit
constexpr auto kLookDeadline = 10s;     // for a look at the checkpoints, where others have looked
constexpr auto kLeaveSafety = 3s;       // of a pod's grace period: kept for its exit
constexpr std::uint64_t kGenerationLeap = 1ULL << 32;  // more than a job can use up
constexpr std::uint64_t kRestoredGap = 1000;           // more than are begun between two backups
constexpr auto kProbeFloor = 1s;        // a probe; twice as long after each attempt without a step
constexpr auto kProbeReturn = 1s;       // and for the way of the question and the answer
constexpr auto kLinksRetry = 5s;        // who was left out for its links asks for them again, first
constexpr auto kLinksRetryMost = 2min;  // doubled each time, up to this
constexpr auto kLinksQuiet = 10min;     // then a row of times is over
constexpr auto kFollowLong = 1min;  // whom a donor cuts off sooner was turned away, or it was lost
constexpr int kFollowsInVain = 3;   // then its pod is given back
constexpr int kDonorsLost = 3;      // likewise, once kFollowLong has passed since the first
constexpr std::size_t kCheckpointsTold = 64;  // of one batch of inputs
// Newcomers of a job whose programs start again for them: those of one decision come together.
constexpr auto kRestartSettle = 2s;
constexpr auto kProgramEndLimit = 40s;  // for a program to be gone; its worker kills it after 30 s
constexpr int kAttemptsMax = 64;        // starts and recoveries without a commit, before Failed
// Of recoveries that no lost member has caused: between the begin of one and the next, while no
// step is committed. Doubled each time, up to the second.
constexpr Duration kRecoveryPause = 200ms;
constexpr Duration kRecoveryPauseMost = 30s;
constexpr auto kDataGiveUp = 30min;  // data that cannot be read may come back until then
constexpr auto kLookLong = 30s;      // a look at the checkpoints that is not over by then is told
constexpr auto kIdleLong = 1min;     // and a process that has shown no sign of work by then

struct Send {
  std::string pod_uid;
  wire::CoordinatorMessage message;
  // What many are told alike, serialized once: another part of the same message, to be merged.
  std::shared_ptr<const std::string> rest;

  std::string frame() const;
};

struct Outputs {
  std::vector<Send> sends;
  std::optional<Record> swap;      // write this; the answer comes by swapped(). One at a time.
  std::vector<std::string> drops;  // pods whose connection is to be closed
  bool changed = false;            // the view, in more than its Progress
  // By workers, since the last outputs: how long each that was written took, and those left out.
  std::vector<double> checkpoints_written;
  std::uint64_t checkpoints_skipped = 0;
};

enum class SwapResult { kDone, kConflict };

class JobMachine {
 public:
  // `record` is what stands now, with our epoch as leader. Nobody is called dead before two
  // silence deadlines have passed since the first agent came.
  JobMachine(Timing timing, Wish wish, Record record, MonoTime now);

  void wish(MonoTime now, const Wish& wish);
  void connected(MonoTime arrived, const wire::Hello& hello);
  void disconnected(MonoTime arrived, const std::string& pod_uid, const std::string& why);
  void message(MonoTime arrived, const std::string& pod_uid, const wire::AgentMessage& message);
  void swapped(SwapResult result);
  // We slept until `since` (StallWatch); the same again is no news.
  void awake(MonoTime now, MonoTime since);
  // Agents of whatever jobs came thick and fast, last then: others wait to be let in.
  void crowded(MonoTime at) { crowded_at_ = at; }
  // The pass: after every batch of inputs, and at next_tick(). All that arrived before `heard` has
  // been taken down.
  void tick(MonoTime now, MonoTime heard);

  // When tick() is due at the latest.
  MonoTime next_tick() const { return next_tick_; }
  // When the next pass is worth its work, which grows with the job: at once in a small one, and
  // soon when something was said since the last that may ask for a decision.
  MonoTime next_pass() const;
  Duration quiet_pace() const;  // between passes while there is no news
  Outputs take_outputs();
  const View& view() const { return view_; }
  const Record& record() const { return record_; }
  // A write met another writer's: nothing is done until a new machine is made from what stands.
  bool must_reload() const { return conflict_; }

 private:
  // Left out of its generation because it and others did not reach each other. It keeps its state,
  // and follows anew when it reaches all members.
  struct LeftOut {
    MonoTime retry_at{};
    std::optional<MonoTime> answer_by;  // it was asked whom it reaches
  };
  // Links to donors that a newcomer did not get, or that broke before it had caught up: in a row,
  // while one generation stood.
  struct LostDonors {
    std::uint64_t generation = 0;
    int times = 0;
    MonoTime first{};
    MonoTime last{};
    std::set<WorkerKey> donors = {};
    std::string why = {};  // of the last
  };
  struct Worker {
    wire::WorkerStanding standing;
    bool exited = false;
    bool ended = false;            // its agent said so
    bool configured = false;       // over this connection,
    std::string told_fingerprint;  // with this one
    bool asked_stop = false;
    bool asked_save = false;  // for a checkpoint, in its generation and over this connection
    bool retired = false;
    bool caught_up = false;
    std::optional<Refusal> refusal;  // it cannot take part: never a member
    bool diverged = false;  // its state was not the others': it begins anew, nobody until then
    std::optional<LeftOut> left_out;
    bool reaches_all = false;  // it said so, or cannot say, since it was last left out
    int times_left_out = 0;    // in a row
    MonoTime last_left_out{};
    std::optional<std::uint64_t> known_checkpoint;  // the newest one when it was configured
    std::uint64_t asked_look = 0;                   // number of the last Look over this connection
    std::string unread;                             // why its disk has not answered, as it says
    std::optional<MonoTime> configured_at;  // by us; after it, it looked at the disk by itself
    bool start_failed = false;              // it could not begin with what it was told to
    bool restart_sent = false;              // over this connection
    std::uint64_t restart_ordered = 0;      // highest incarnation that we had killed ourselves
    MonoTime asked_at{};                    // the last Abort or Look; its status answers them
    std::uint64_t abort_below = 0;          // highest sent over this connection
    std::uint64_t settled_below = 0;        // highest Abort that it has answered: it stands still
    std::uint64_t form_generation = 0;      // highest Form sent over this connection
    bool told_change = false;               // that one said what changes, and not all
    std::optional<MonoTime> form_since;     // of the first in this recovery; none: it took one up
    std::uint64_t follow_generation = 0;    // of the Follow that it was told and that still holds
    std::optional<WorkerKey> donor;         // of that Follow; none: a leader before told it
    std::uint64_t donor_incarnation = 0;    // of that donor: the process after it knows no follower
    MonoTime follow_since{};
    int follows_in_vain = 0;  // in a row, of all its processes: it did not catch up
    LostDonors lost_donors;
    std::uint64_t progress_mark = 0;
    MonoTime progress_at{};
  };
  struct Agent {
    const Wish::Pod* pod = nullptr;  // of wish_; null: it is not wished
    std::string name;
    std::string node;
    bool connected = false;
    bool dead = false;
    bool suspected = false;  // a peer's link to it broke
    bool leaving = false;    // it was told to end
    MonoTime leave_deadline{};
    MonoTime last_seen{};
    MonoTime acked_at{};    // a heartbeat
    MonoTime trained_at{};  // a commit told that its workers live though it is not heard
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
    MonoTime answered{};  // a recovery: all standings are here, …
    MonoTime written{};   // … the record is written
    wire::Form form;
    std::shared_ptr<const std::string> told_form;    // Send::rest of it, once it is told,
    std::shared_ptr<const std::string> told_change;  // and of what it changes from formed_members_,
    bool is_unlike = false;                          // unless it keeps nobody of these
    Change change;
  };
  // Links broke and nobody died of it: who reaches whom?
  struct Probing {
    std::uint64_t generation = 0;
    std::vector<Member> members;
    std::map<WorkerKey, std::set<WorkerKey>> missed;  // by who has answered
    MonoTime deadline{};
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
  std::string why_not_whole();
  std::string why_unparked() const;
  // job_evidence.cc
  void note_round(std::uint64_t generation, MonoTime told);
  MonoTime dead_at(const Agent& agent) const;
  void mark_dead(MonoTime heard);
  void call_dead(const std::string& uid, Agent& agent);
  // job_inputs.cc
  void forget_gone();
  static bool speaks_for(const std::string& pod_uid, const Agent& agent, const wire::WorkerId& id);
  void take_standing(Agent& agent, const wire::WorkerStanding& said);
  void note_skipped(Worker& worker, std::uint64_t before);
  void take_event(Agent& agent, const wire::WorkerEvent& event);
  void take_failure(MonoTime now, Agent& agent, Worker& worker, const wire::Failure& failure);
  void refuse(const WorkerKey& key, const std::string& reason, const std::string& message);
  static bool is_of_node(const Refusal& refusal);
  void take_exit(const std::string& pod_uid, Agent& agent, const wire::Exited& exited);
  void take_crashes(std::uint64_t count, bool is_last_known, PodFailure failure);
  void note_damaged(const wire::CheckpointDamaged& news);
  void configure_new(MonoTime now);
  bool holding(MonoTime now);
  // job_diverged.cc
  void take_diverged(std::uint64_t generation, const wire::CommitRecord& record,
                     const std::string& difference);
  bool happens_again(const std::string& node, const std::string& time);
  bool compare_parked();
  void drop_state(const WorkerKey& key, Worker& worker);
  void note_undecided(std::uint64_t generation, const std::string& where);
  void restart_diverged(MonoTime now);
  // job_blame.cc
  Duration patience(Duration floor) const;
  void restart_unready(MonoTime now);
  void restart_unanswering(MonoTime now, const WorkerKey& key, const std::string& reason);
  void blame_the_stuck(MonoTime now);
  // job_links.cc
  void note_broken_link(const WorkerKey& a, const WorkerKey& b);
  void recover_links(MonoTime now);
  void begin_probing(MonoTime now);
  bool is_probed(MonoTime now);
  void take_reach(MonoTime now, const WorkerKey& key, const wire::Reach& reach);
  bool leave_out(MonoTime now);
  void leave_out(MonoTime now, const WorkerKey& key);
  void probe(const WorkerKey& key, std::uint64_t generation, const std::vector<Member>& members,
             std::size_t index);
  Duration probe_limit() const;
  std::vector<Member> take_left_out(std::vector<WorkerKey>& asked);
  void ask_left_out(MonoTime now);
  // Who
  const Wish::Pod* wished(const std::string& pod_uid) const;
  void index_wish();     // after each change of wish_
  void index_members();  // after each change of record_.members
  Agent* agent_of(const std::string& pod_uid);
  Worker* worker_of(const WorkerKey& key);  // alive, in a wished pod; else null
  Worker* member(const Member& m);          // and of the right incarnation, and not refused
  bool is_leaving(const std::string& pod_uid) const;
  bool is_member(const WorkerKey& key) const;
  bool joins(const WorkerKey& key) const;  // a member of the planned generation alone
  bool others_hold_state(const WorkerKey& key);
  Member as_member(const WorkerKey& key);
  std::string why_lost(const Member& m);
  std::vector<WorkerKey> living();  // in the order of the wish
  // Of these, who has started, is connected, and is neither refused nor retired nor about to leave.
  std::vector<WorkerKey> ready_workers();
  // Output
  void order(const WorkerKey& key, wire::WorkerCommand command);
  void tell_form(const WorkerKey& key, std::size_t rank);
  bool is_told(const Worker& worker, std::uint64_t generation) const;
  void note_formed(std::uint64_t generation, const std::vector<Member>& members);
  // Charged to the job unless it is `infrastructure`.
  void restart(const WorkerKey& key, const std::string& reason, bool infrastructure = false);
  void send_restart(const std::string& pod_uid, Worker& worker, const std::string& reason);
  void abort(const WorkerKey& key, std::uint64_t below);
  void ask_swap();
  void wake_at(MonoTime time);
  void write(Record next);
  void write_phase(Phase phase);
  void write_news();
  void add_failure(PodFailure failure, std::uint64_t times = 1);
  bool note_generations(const wire::WorkerStanding& standing);
  std::uint64_t next_generation();
  std::uint64_t oldest_of_interest() const;

  // job_recover.cc
  bool any_state(const std::vector<WorkerKey>& workers);
  std::optional<WorkerKey> ahead_of(const std::vector<WorkerKey>& asked);
  std::vector<WorkerKey> ask_for_state(bool with_joiners);
  void note_never_back(const Member& m);
  // `cause`: as View::recovers_from; empty: it is found from who is lost. `reason`: a sentence.
  void begin_recovery(MonoTime now, std::string_view cause, const std::string& reason,
                      bool with_joiners = false);
  void note_cause(std::string_view given);
  bool is_last_attempt_over(MonoTime now, const std::string& reason);
  std::string cause_of_loss();
  MonoTime suspect_due() const;
  bool has_ended(const Member& m);  // for certain
  void advance_recovery(MonoTime now);
  bool all_answered(MonoTime now);
  bool awaits_followers(MonoTime now);
  void form_recovery(MonoTime now);
  bool restart_deaf(MonoTime now, const std::vector<WorkerKey>& missing);
  void await_formed(MonoTime now);
  void complete_operation(MonoTime now);
  std::string phases_of(const Operation& op) const;
  // job_restart.cc
  void restart_programs(MonoTime now, const std::string& kind, const std::string& reason);
  void start_programs(MonoTime now, const std::string& kind, const std::string& reason,
                      std::vector<WorkerKey> workers);
  bool more_soon();
  bool programs_are_gone(MonoTime now);
  bool await_all_heard(MonoTime now);
  void change_programs(MonoTime now);
  // job_change.cc
  bool is_following(const Worker& worker);
  void note_followed(Worker& worker);
  void note_lost_donor(Worker& worker, const wire::Suspect& suspect);
  bool refuse_unfit(MonoTime now, const WorkerKey& key, Worker& worker);
  bool any_member_leaves() const;
  bool is_fenced_off(const Worker& worker) const;
  bool newcomer_refuses_us();
  void followers(MonoTime now);
  std::map<WorkerKey, std::size_t> followers_of_donors();
  const Member& donor_for(const Worker& worker, const std::map<WorkerKey, std::size_t>& load) const;
  Moves possible_moves();
  bool begin_planned(MonoTime now);
  void plan_switch(MonoTime now, const Moves& moves);
  bool all_switched(const std::vector<Member>& all);
  void advance_planned(MonoTime now);
  // job_leave.cc
  bool await_replacements(MonoTime now, const Moves& moves);
  void retire_left(MonoTime now);
  std::vector<Member> leavers_beside(const std::vector<WorkerKey>& asked);
  std::optional<MonoTime> all_end_by();
  void save_before_end(MonoTime now);
  void ask_to_save();
  void stop_by_itself(const std::string& reason, Duration grace);
  void keep_own_stop();
  bool begins_again_with(const std::string& pod_uid) const;
  // job_ends.cc
  std::vector<WorkerKey> ready_to_start(MonoTime now);
  bool may_start(MonoTime now, std::size_t ready);
  bool has_looked(const Worker& worker, std::uint64_t number) const;
  void ask_to_look(MonoTime now, const WorkerKey& key, std::uint64_t number);
  bool all_looked(MonoTime now, std::vector<WorkerKey>& ready);
  std::optional<std::uint64_t> newest_checkpoint(std::vector<WorkerKey>& ready);
  void try_start(MonoTime now);
  void start(MonoTime now, std::optional<std::uint64_t> checkpoint,
             const std::vector<WorkerKey>& workers);
  void advance_start(MonoTime now);
  bool is_trained() const;
  std::uint64_t stop_steps() const;  // of the job; 0: as workers are configured
  void note_ended(const wire::WorkerStanding& standing);
  bool try_finish(MonoTime now);
  bool has_left(const wire::WorkerStanding& standing) const;
  void advance_stop(MonoTime now);
  void take_back_stop(MonoTime now);
  void end(MonoTime now, Phase phase, const std::string& reason);
  void retire_all(MonoTime now, const std::string& reason);
  void pin_fingerprint();
  std::string fingerprint_of(const std::vector<WorkerKey>& keys);
  void refuse_others_than(const std::string& fingerprint);
  // job_view.cc
  void refresh_view(MonoTime now);
  // Writes only what is another now: the view of a large job is large.
  template <class T>
  void show(T& shown, T now) {
    if (shown == now) return;
    shown = std::move(now);
    outputs_.changed = true;
  }
  void refresh_phase(MonoTime now);
  void refresh_end(MonoTime now);  // the phase of a job that has ended
  std::string forming_reason() const;
  std::string why_unread(MonoTime now) const;
  std::string who_idles(MonoTime now) const;
  bool is_starting(MonoTime now) const;
  void enter(Phase phase, std::string reason);
  void note_marks(const wire::WorkerStanding& standing);
  const wire::WorkerStanding* furthest_member();
  void show_progress(const wire::WorkerStanding& ahead);
  void note_commits(MonoTime now);
  void note_sharing(const Agent& agent, const Worker& worker);
  void note_unshared(const std::string& pod, const std::string& node, std::uint64_t step);
  bool any_member_works();
  GpuUse gpu_use();
  void end_change(MonoTime now, double usual);
  GpuUse cost_of(const Change& change) const;
  void book_gpu_time();
  double waiting_share();

  Timing timing_;
  Wish wish_;
  std::unordered_map<std::string, std::size_t> wished_at_;  // wish_.pods by uid
  Record record_;
  std::set<WorkerKey> member_keys_;  // of record_.members
  MonoTime led_since_;
  MonoTime passed_;         // the last pass
  bool has_news_ = true;    // since then: more than progress
  MonoTime awake_since_{};  // the end of our last sleep
  MonoTime told_;           // arrival of what is taken down now
  struct RoundBegun {
    std::uint64_t generation = 0;
    MonoTime at{};
  };
  std::optional<RoundBegun> round_begun_;  // the one that the newest commit opened
  std::optional<MonoTime> first_back_;     // the first agent that found us
  MonoTime last_back_{};                   // … the last, of a member
  MonoTime crowded_at_{};
  std::optional<MonoTime> seen_whole_;  // a step of the recorded generation was seen committed
  bool taking_over_ = true;             // some members of the record may come back yet,
  bool held_ = true;                    // and are waited for
  std::size_t failures_since_commit_ = 0;
  std::map<std::string, std::uint64_t> crashes_;  // Record::crashes of now
  std::string fingerprint_;                       // Record::fingerprint of now
  std::set<std::string> never_back_;  // pods whose loss to the last leader was noted, by uid
  bool conflict_ = false;
  std::map<std::string, Agent> agents_;
  std::unordered_map<std::string, Agent*> agent_at_;  // the same, for who looks one up
  std::optional<Operation> op_;
  std::optional<Record> in_flight_;  // the write that is under way
  std::uint64_t highest_generation_ = 0;
  std::uint64_t formed_generation_ = 0;  // the one that trains; news of older ones is old
  wire::Members formed_members_;         // its members, without addresses
  std::optional<MonoTime> suspect_since_;
  std::string suspect_cause_;  // as View::recovers_from
  std::string suspect_why_;
  std::optional<MonoTime> diverged_at_;
  struct Undecided {  // rounds in which no majority held one state, since the last checkpoint
    std::size_t times = 0;
    std::uint64_t generation = 0;  // of the last
    std::uint64_t checkpoint_step = 0;
  } undecided_;
  struct NodeTrouble {
    std::string time;  // the last: what has the same name happened at once
    MonoTime at{};
    bool is_again = false;
  };
  // Nodes whose members' states differed, or whose devices were lost, within an hour.
  std::map<std::string, NodeTrouble> troubled_;
  std::map<std::string, std::string> fingerprint_of_node_;  // what each has said last
  std::set<std::pair<WorkerKey, WorkerKey>> broken_links_;  // said since the last commit
  std::optional<Probing> probing_;
  // The first program of a generation that failed by itself: charged unless a member was lost.
  struct ProgramFailure {
    std::uint64_t generation = 0;
    MonoTime at{};
    PodFailure failure;
  };
  std::optional<ProgramFailure> program_failed_;
  std::optional<MonoTime> join_since_;
  std::optional<MonoTime> start_since_;
  MonoTime start_not_before_{};         // backs off when a start fails
  std::string start_why_;               // why it starts anew, until a step is committed
  std::optional<MonoTime> look_since_;  // workers look at the checkpoints before a start
  std::uint64_t looks_ = 0;
  struct OwnStop {
    std::string reason;
    Duration grace{};
  };
  std::optional<OwnStop> own_stop_;          // no Wish asks for it, and none takes it back
  std::optional<MonoTime> all_told_since_;   // all who hold the state were told to end
  std::optional<MonoTime> replacing_since_;  // leavers train on until others come
  std::optional<MonoTime> stop_since_;
  std::optional<MonoTime> stop_asked_;  // also while no stop can begin: the grace counts from it
  std::optional<MonoTime> retire_since_;
  MonoTime quiet_since_{};                 // no member showed progress since
  MonoTime last_commit_{};                 // when a commit was last seen
  int attempts_ = 0;                       // starts and recoveries since the last commit
  int data_attempts_ = 0;                  // of attempts_: for data, which have a time instead
  std::optional<MonoTime> first_attempt_;  // the first since the last commit, start or park
  MonoTime last_attempt_{};                // the last one
  int alarms_ = 0;                         // of attempts_: those that nobody's end has caused
  bool lost_all_ = false;                  // the state, as each pass finds until some may start
  bool parked_ = false;
  bool abandons_step_ = false;  // a stop cannot wait for it: the next generation does not compute
  bool stuck_once_ = false;
  Phase ended_ = Phase::kWaiting;     // kStopped, kFinished, kFailed: over
  std::optional<Change> unfinished_;  // waits for the first commit after it
  MonoTime unfinished_since_{};       // the last commit before it, or the end of the change before
  MonoTime formed_at_{};
  bool has_trained_ = false;  // a commit was seen, or the record says that there were some
  GpuTime gpu_time_;
  std::set<std::string> retired_pods_;
  Outputs outputs_;
  View view_;
  MonoTime next_tick_{};
};

}  // namespace rubato::coordinator
