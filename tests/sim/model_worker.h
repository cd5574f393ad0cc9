// ModelWorker: a worker as docs/protocol.md describes it, at the level of messages: commands in,
// events out, rounds over the World's board, compute and transfers as virtual time. It follows the
// document, not the code of worker/step, so that the two can disagree.
// Driven by step() from a fiber of its pod, when next_wake() says and after each command.
#pragma once

#include "tests/sim/world.h"
#include "worker/protocol/shares.h"

#include <deque>
#include <functional>

namespace rubato::sim {

struct WorkerTimes {
  Duration start = 300ms;  // process start and configuration
  Duration micro = 25ms;   // one micro-batch
  Duration form = 10ms;    // links of a generation
  Duration pull = 300ms;   // a snapshot
  Duration checkpoint = 80ms;
};

class ModelWorker {
 public:
  ModelWorker(World& world, wire::WorkerId id, std::string host, WorkerTimes times,
              std::function<void(const wire::WorkerEvent&)> emit);

  void command(const wire::WorkerCommand& command) { commands_.push_back(command); }
  // What is due at `now`. Returns false when the worker exits with status 0.
  bool step(MonoTime now);
  // When step() has something to do or to look at.
  MonoTime next_wake(MonoTime now) const;
  void die();  // its links end
  // From now on it answers nobody and does nothing; its process and its links stay.
  void hang() { hangs_ = true; }
  bool hangs() const { return hangs_; }

 private:
  enum class At { kIdle, kForm, kCompute, kReduce, kCommit };
  struct Generation {
    std::uint64_t number = 0;
    std::vector<WorkerTuple> members;
    std::size_t rank = 0;
    bool is_member = false;
  };

  bool obey(const wire::WorkerCommand& command, MonoTime now);
  void abort(std::uint64_t below);
  void form(const wire::Form& form, MonoTime now);
  void follow(const wire::Follow& follow, MonoTime now);
  void follow_on(MonoTime now);
  void stop_following();
  void work(MonoTime now);
  void prepare();
  void compute(MonoTime now);
  void enter(Generation generation, MonoTime now);
  void next_round(MonoTime now);
  void begin_round(std::vector<std::uint32_t> share, MonoTime now);
  void contribute();
  bool reduce();
  void try_decide(MonoTime now);
  void apply(const wire::CommitRecord& record, std::uint64_t sum, MonoTime now);
  void after_commit(const wire::CommitRecord& record, MonoTime now);
  void watch_links();
  void stop(MonoTime now);
  void emit(wire::WorkerEvent event = {});
  void set_phase(wire::WorkerPhase phase);
  void publish();
  void show_held();
  bool is_cut_off() const { return standing_.generation() < standing_.fenced_below(); }
  static Generation generation_of(const wire::Form& form, const WorkerTuple& self);

  World& world_;
  const WorkerTuple self_;
  const std::string host_;
  const WorkerTimes times_;
  const std::function<void(const wire::WorkerEvent&)> emit_;
  std::deque<wire::WorkerCommand> commands_;
  wire::WorkerStanding standing_;
  TrainState state_;
  At at_ = At::kIdle;
  MonoTime due_{};
  MonoTime last_commit_{};
  bool hangs_ = false;
  Generation generation_;
  std::optional<Generation> planned_;
  bool prepared_ = false;
  bool suspected_ = false;
  std::vector<std::uint32_t> todo_;
  std::set<std::uint32_t> held_;
  std::uint64_t accumulated_ = 0;
  std::optional<std::uint64_t> reduced_;
  std::optional<WorkerTuple> donor_;
  std::optional<wire::Follow> next_follow_;
  std::uint64_t follow_generation_ = 0;
  bool pulled_ = false;
  bool wants_checkpoint_ = false;
  bool wants_stop_ = false;
  std::optional<MonoTime> configured_at_;
  std::optional<MonoTime> checkpoint_at_;              // rank 0 writes until then
  std::optional<wire::WorkerPhase> after_checkpoint_;  // what rank 0 says once it is written
  TrainState checkpoint_of_;
};

}  // namespace rubato::sim
