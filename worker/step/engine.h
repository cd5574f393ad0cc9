// Private to worker/step: the inside of StepEngine. Split over engine_control.cc (commands, fences,
// standings), engine_form.cc (generations), engine_round.cc (the transaction), engine_publish.cc
// (what others see of a decision), engine_checkpoint.cc and engine_follow.cc (joining).
//
// `mutex` guards what stands under "shared"; the rest belongs to the step thread. The step thread
// is in one of three modes, which decide what an Abort waits for:
//   kIdle        waits for orders
//   kWorking     computes or communicates: anything it has not accumulated may be dropped
//   kCommitting  changes replicated state: must finish, so that the standing is true
#pragma once

#include "worker/protocol/members.h"
#include "worker/step/checkpoint_writer.h"
#include "worker/step/commit.h"
#include "worker/step/noise_scale.h"
#include "worker/step/round_share.h"
#include "worker/step/state_server.h"
#include "worker/step/step_engine.h"
#include "worker/step/step_exporter.h"

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

namespace rubato::worker {

WorkerName to_name(const wire::WorkerId& id);
Membership to_membership(const wire::Form& form, const WorkerName& self);

constexpr std::size_t kProbedMost = 64;  // tasks of one question

enum class Mode { kIdle, kWorking, kCommitting };

// A planned generation: its Form, and its communicator once the links are up. A leaver has none.
struct Prepared {
  Membership membership;
  bool is_member = false;
  std::uint64_t stop_steps = 0;  // from then on; 0: as it is
  std::shared_ptr<Communicator> communicator;
  bool is_ready = false;
  int refusals = 0;  // votes that waited for a follower
};

// For the disk of checkpoints, which is asked until it answers.
struct DiskWait {
  explicit DiskWait(MonoTime now) : denied_until(now + kDeniedLimit), told_at(now) {}
  MonoTime denied_until;
  MonoTime told_at;  // that it does not answer
};

struct StepEngine::Impl {
  explicit Impl(EngineParts given);
  ~Impl();
  MonoTime now() const { return parts.executor.now(); }
  // Waits, without end, until `done()`.
  template <class Predicate>
  void wait_for(std::unique_lock<std::mutex>& lock, Predicate done) {
    while (!done()) changed->wait_until(lock, now() + kIdleTick);
  }

  // ---- Control thread (engine_control.cc) ----
  void command(const wire::WorkerCommand& command);
  void abort(std::uint64_t below);
  void probe(const wire::Probe& order);
  void plan(const wire::Form& form);
  void take_change(const wire::Form& form);
  void request(const wire::Request& request);
  void supersede_follow(const wire::WorkerCommand& command);
  void end_follow();  // with the mutex held
  void end_requests(std::uint64_t generation);
  void leave(const std::string& reason);
  void beat();
  bool wait_settled(std::unique_lock<std::mutex>& lock);

  // ---- Any thread ----
  void emit(wire::WorkerEvent event);  // adds the standing
  void fail(const std::string& reason, const std::string& message, wire::FailureScope scope);
  // Ends the process instead where the error is kDeviceLost.
  void fail(const std::string& reason, const Error& error, wire::FailureScope scope);
  void suspect(std::uint64_t generation, const WorkerName& peer, const std::string& why);
  wire::WorkerStanding standing_now() const;  // with the mutex held
  std::uint64_t prepared_vote();              // with the mutex held

  // ---- Step thread: orders (engine_form.cc) ----
  int run();
  void obey(const wire::WorkerCommand& order);
  void configure(const wire::Configure& order);
  void form(const wire::Form& order);
  Status start(const wire::Form& order);
  void fail_start(const wire::Form& order, const Error& error);
  Status level(const wire::Form& order);
  void enter(const Membership& membership, std::shared_ptr<Communicator> communicator,
             std::vector<wire::MicroRange> mine);
  bool is_fresh(std::uint64_t generation) const;  // with the mutex held
  void take_membership(const Membership& next);
  std::shared_ptr<Communicator> take_prepared(std::uint64_t generation, Membership& membership,
                                              bool& is_member);
  void forming_loop();

  // ---- Step thread: rounds (engine_round.cc) ----
  void train();
  Status round();
  Status compute_share();
  Status validate_share();
  bool validation_due() const;
  Result<wire::CommitRecord> reduce_and_vote();
  Result<wire::CommitRecord> fold(const CommitTerms& terms, const wire::CommitVote& vote);
  void note_wrong_sum();
  Status compare_states();
  Status note_parked_digest();
  Error refuse_round(const CommitTerms& terms, const std::vector<wire::CommitVote>& votes,
                     const wire::CommitRecord& record);
  Status decide(const wire::CommitRecord& record);  // changes the state
  Status note_non_finite(const wire::CommitRecord& record);
  double noise_in_tokens() const;  // 0: not known
  bool is_ended() const;           // by the script, before training.stop.steps; with the mutex held
  bool is_interrupted() const;
  bool begin_commit();  // false: the standing was given away already
  void end_commit();
  void set_phase_name(const char* name);
  void book_phase();                    // the time until now, with the mutex held
  void reach(const char* point);        // the step thread's work has a new name
  void reach_aside(const char* point);  // any thread; the name of the phase stays

  // ---- Step thread: what follows a decision (engine_publish.cc) ----
  Status publish(const wire::CommitRecord& record, double seconds, double computing);
  void print_step(const StepRecord& record, double seconds);
  void print_validation(std::uint64_t step, std::int64_t loss_q, std::uint32_t batches);
  void print_replayed(const StepRecord& record);
  void print_history();
  void export_history();
  void push_to_followers(const wire::CommitRecord& record);
  void serve_snapshots();
  Status finish();
  void validate_final();
  void stop(bool is_asked_to_save);
  void switch_generation(std::uint64_t generation);

  // ---- Step thread: checkpoints (engine_checkpoint.cc) ----
  void checkpoint_done(std::uint64_t step, const Result<std::string>& path, double seconds);
  bool checkpoint_due(const wire::CommitRecord& record) const;
  Status checkpoint_if_due();
  void begin_checkpoint(bool is_asked_for);
  void forget_checkpoints();
  Status submit_checkpoint();
  void say_unsaved();
  Status save_last();
  void live_until(MonoTime deadline, const std::function<bool(MonoTime until)>& done);
  void fail_save(const std::string& what, const Error& error, wire::FailureScope scope);
  Result<std::optional<FoundCheckpoint>> find_checkpoint();
  Status set_aside(std::uint64_t step, const std::string& why);
  void note_found(const std::optional<FoundCheckpoint>& found, std::uint64_t number);
  bool fails_denied(const Error& error, DiskWait& wait);
  void look(std::uint64_t number);
  Status check_nothing_to_load();

  // ---- Step thread: joining (engine_follow.cc) ----
  void follow(const wire::Follow& order);
  Status follow_donor(const wire::Follow& order);
  Status follow_link(Link& link, const wire::Follow& order);
  void pause_for_busy();
  void note_caught_up(std::uint64_t generation, std::uint64_t donor_seq);
  Status take_snapshot(Link& link, const wire::SnapshotHead& head);
  Status take_round(Link& link, const wire::RoundHead& head);
  void note_pulled();
  bool begin_if_switched(const wire::CommitRecord& record);

  EngineParts parts;

  // ---- Shared ----
  mutable std::mutex mutex;
  const std::unique_ptr<Condition> changed;
  wire::WorkerStanding standing;  // the master copy of everything it names
  // Time in each phase since the start, up to `phase_since`; bounded by the names there are.
  std::map<std::string, double, std::less<>> phase_seconds;
  MonoTime phase_since{};
  Mode mode = Mode::kIdle;
  // The highest Abort after which nothing below it can change any more: what a standing says.
  std::uint64_t settled_below = 0;
  bool frozen = false;  // a standing was given for an Abort while working: commit nothing
  bool retired = false;
  bool has_lost_device = false;  // and so retires
  bool wants_checkpoint = false;
  bool wants_stop = false;
  wire::Members known_members;  // of generation standing.members_of()
  std::deque<wire::WorkerCommand> orders;
  std::deque<wire::Form> planned;           // for the forming thread
  std::uint64_t forming_generation = 0;     // the forming thread is at it; 0: none
  std::optional<std::uint64_t> saved_step;  // the last that the writer wrote
  std::optional<Error> save_error;          // of its last try
  std::optional<std::stop_source> follow_cancel;
  wire::Follow followed;  // the last that was obeyed
  Link* follow_connection = nullptr;

  // ---- Step thread ----
  JobPlan job;
  std::unique_ptr<SampleLedger> ledger;
  std::unique_ptr<Replica> replica;
  // Shared, and of the replica's device, which they must not outlive.
  std::unique_ptr<CommunicatorFactory> factory;
  std::shared_ptr<Communicator> communicator;  // of the generation in use
  std::optional<Prepared> prepared;
  Membership membership;
  std::vector<wire::MicroRange> mine;  // this round's micro-batches
  RoundShare share;
  std::optional<std::uint64_t> judged_seq;  // the round whose mean gradient the replica holds
  std::vector<StepRecord> history;
  std::uint32_t redo_attempts = 0;
  std::uint32_t wrong_sums = 0;  // of the open round, in a row
  std::optional<wire::CommitRecord> last_non_finite;
  std::uint32_t non_finite_count = 0;
  NoiseScale noise;
  std::int64_t validation_q = 0;
  std::uint32_t validation_done = 0;
  std::deque<double> step_seconds;     // of the last rounds, for the median
  std::deque<double> compute_seconds;  // …, in which we computed
  MonoTime last_commit{};
  bool first_after_change = false;
  std::optional<std::uint64_t> last_checkpoint;  // step, handed to the writer
  std::optional<MonoTime> owed_checkpoint;    // asked for and skipped: when it is asked for again
  std::optional<std::uint64_t> compared_seq;  // in this generation, or nothing was due there
  MonoTime follow_begun{};
  MonoTime pull_noted{};
  std::uint64_t follow_bytes = 0;
  int busy_answers = 0;         // of donors, in a row
  bool warned_of_copy = false;  // that newcomers cannot be served

  std::unique_ptr<CheckpointWriter> writer;
  std::unique_ptr<StepExporter> exporter;  // may be null
  std::unique_ptr<StateServer> server;
  Task forming;
  Task probing;  // of the control thread
};

}  // namespace rubato::worker
