// The step and recovery protocol of docs/protocol.md as a small state machine: three workers, a
// coordinator and the durable record, with every message that can be late modelled as a note on a
// board that may be read at any later time, or never. A transition is one atomic act of one party.
//
// What is abstracted: gradients are counts of micro-batches; a ring all-reduce is "everybody's
// contribution is on the board"; heartbeats are "the coordinator may suspect anybody at any time".
#pragma once

#include "worker/protocol/shares.h"

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace rubato::protocol_model {

constexpr int kRanks = 3;
constexpr int kMicro = 3;  // micro-batches of a step
constexpr int kMaxGen = 4;
constexpr int kMaxRounds = 3;
using Byte = std::uint8_t;
using Mask = std::uint8_t;

// Deliberate mistakes, to see that the checks would find them.
enum class Bug {
  kNone,
  kVoteBeforeReduction,      // a vote says "my part is sent" and not "my result is complete"
  kSalvageWithoutSeq,        // micro-batches of another round are counted as held
  kNoFence,                  // a worker answers an Abort and goes on all the same
  kApplyWithoutDecision,     // a worker with a complete reduction applies it when aborted
  kKeepReductionBuffer,      // reports a reduction as held while it is being overwritten
  kKeepForeignMicroBatches,  // keeps accumulators that its new share does not contain
  kSwitchWithoutAll,         // switches generation when anybody is prepared
};

struct Options {
  int steps = 2;
  bool redo = false;   // the first round overflows: one round more
  bool join = false;   // worker 2 is no member at first: it follows 0 and joins by a planned change
  bool leave = false;  // worker 2 leaves by a planned change
  int leader_crashes = 1;
  int only_dies = -1;   // no other worker may die; -1: all may
  int generations = 3;  // at most kMaxGen: bounds the number of recoveries
  Bug bug = Bug::kNone;
  int rounds() const { return steps + (redo ? 1 : 0); }
};

// Completing the reduction and voting are one act here: a vote that nobody reads is the same as one
// not given. So are the last micro-batch and the contribution.
enum class Stage : Byte { kIdle, kCompute, kReduce, kVoted };

struct Worker {
  Byte alive = 1;
  Byte has_state = 1;
  Byte seq = 0;
  Byte gen = 0;
  Byte fenced = 0;
  Stage stage = Stage::kIdle;
  Mask share = 0;
  Mask held = 0;
  Byte reduced = 0;    // 0: none; else kReducedBit | count of each micro-batch, two bits each
  Byte formed = 0;     // planned generation it has been told of
  Byte prepared = 0;   // planned generation whose links are up
  Byte following = 0;  // a newcomer that takes the donor's stream
  Mask stale = 0;      // only with a bug: held, but of another round
};

struct Standing {  // as it was when the worker answered
  Byte known = 0;
  Byte has_state = 0;
  Byte seq = 0;
  Byte gen = 0;
  Byte reduced = 0;
  Mask held = 0;
};

struct FormNote {
  Mask members = 0;
  Mask previous = 0;  // planned: the members of the generation before
  Byte planned = 0;
  Byte base = 0;
  std::array<Mask, kRanks> share{};
};

struct State {
  std::array<Worker, kRanks> worker;
  // Boards. contribution: 0x80 | micro-batches; vote: 0x80 | 0x40 overflow | prepared generation.
  Byte contribution[kMaxGen + 1][kRanks][kMaxRounds] = {};
  Byte vote[kMaxGen + 1][kRanks][kMaxRounds] = {};
  Byte stream[kMaxRounds] = {};  // what the donor sent: 0x80 | switch generation
  std::array<FormNote, kMaxGen + 1> form;
  std::array<Byte, kRanks> abort_below{};
  // The durable record.
  Byte record_gen = 1;
  Mask record_members = 0;
  Mask record_previous = 0;  // while a planned change is under way
  // The coordinator's memory; lost when it dies.
  Byte leader_up = 1;
  Byte leader_crashes = 0;
  Byte target = 0;  // generation being recovered to; 0: none
  Mask trusted = 0;
  Byte swapped = 0;   // 1: the record names `target`; 2: a planned change, not yet told
  Byte fallback = 0;  // nobody of the record had state: others were asked
  std::array<Standing, kRanks> standing;
  // What the world has seen: outcome of each round, 0 none, 1 apply, 2 redo.
  std::array<Byte, kMaxRounds> decided{};
};
static_assert(sizeof(State) < 256);

struct Step {
  std::string name;
  State next;
};

class Model {
 public:
  explicit Model(Options options) : options_(options) {}
  State initial() const;
  // All transitions out of `state`. A broken invariant is appended to `violations`.
  void successors(const State& state, std::vector<Step>& steps,
                  std::vector<std::string>& violations) const;
  // Some living worker of the present membership has applied every round.
  bool complete(const State& state) const;
  // Enough is alive, and the bound on generations leaves room, to get there.
  bool must_be_able_to_complete(const State& state) const;

 private:
  struct Sink;
  void forget_the_unreadable(State& s) const;
  void forget_generation(State& s, int g) const;
  // model_worker.cc
  void worker_steps(const State& s, int i, Sink& out) const;
  void round_steps(const State& s, int i, Sink& out) const;
  void follow_steps(const State& s, int i, Sink& out) const;
  void planned_steps(const State& s, int i, Sink& out) const;
  Byte vote_of(const State& s, int i) const;
  void decide(const State& s, int i, Sink& out) const;
  void apply(State& s, int i, Byte outcome, Byte switch_to, Sink& out) const;
  void take_abort(const State& s, int i, Sink& out) const;
  void take_form(const State& s, int i, int gen, Sink& out) const;
  // model_leader.cc
  void leader_steps(const State& s, Sink& out) const;
  void recovery_steps(const State& s, Sink& out) const;
  void planned_change_steps(const State& s, Sink& out) const;
  void abort_steps(const State& s, Sink& out) const;
  std::vector<std::vector<wire::MicroRange>> shares_of(const State& s,
                                                       const std::vector<int>& members,
                                                       int base) const;
  void form_recovery(const State& s, Sink& out) const;

  Options options_;
};

}  // namespace rubato::protocol_model
