// ScriptProcess: a worker whose work is a person's program, PyTorch's elastic scripts above all. It
// speaks the same commands and events as the trainer's (worker/step), holds no state, and never
// follows: when the members of its job change, the program is ended, and started again with its new
// rank. What a generation's Form says becomes the environment of torchrun (launch.h).
//
//   Abort    SIGTERM, SIGKILL after kEndLimit; answered once the program is gone
//   Form     starts the program; the first member's listen address is the rendezvous
//   Request  to stop: as Abort, with all of the grace period; the phase is STOPPED then
//   exit     with 0 FINISHED; else ABORTED and a Failure, which whoever leads charges once
//
// One thread owns it. It waits for nothing: tick() is to be called often.
#pragma once

#include "common/clock.h"
#include "common/result.h"
#include "worker/script/program.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace rubato::worker {

constexpr auto kEndLimit = 30s;      // for a program to end after SIGTERM; torchrun's own limit
constexpr auto kRetireLimit = 3s;    // of one whose pod goes: the agent waits 5 s
constexpr auto kRunsAfter = 3s;      // a program that lives so long counts as one that runs
constexpr auto kSpareAfter = 10s;    // then a spare is made: the program has begun by now
constexpr auto kStandingPause = 1s;  // between signs of life
constexpr std::size_t kFailureTextMost = 800;
constexpr std::size_t kProgressTextMost = 4096;  // of the end of its file that is read

// As kEndLimit, when the job stops: who asked waits a grace period, and is to see the end.
constexpr Duration stop_limit_of(Duration grace_period) {
  return std::max<Duration>(grace_period - 5s, grace_period * 3 / 4);
}

struct ScriptParts {
  std::string pod_uid;
  std::uint32_t slot = 0;
  std::uint64_t incarnation = 1;
  std::string host;                  // where the other ranks reach rank 0
  std::vector<std::string> command;  // as the template has it
  std::string problem;               // why it can never run; "": it can
  std::string job_uid;
  std::uint64_t restarts_most = 0;
  std::string error_file;        // where `record` writes; read when the program fails
  std::string progress_file;     // where the program may tell how far it is (launch.h)
  bool sets_threads = true;      // as in LaunchFacts
  bool sets_nccl_errors = true;  // as in LaunchFacts
  bool has_spares = false;       // of the program, to be started again sooner
  Duration end_limit = kEndLimit;
  Duration stop_limit = kEndLimit;  // instead of it, when the job stops
  Program& program;
  std::function<Result<HeldPort>()> hold_port = HeldPort::any;
  // A serialised wire::WorkerEvent for the agent. Must not block.
  std::function<void(const std::string& event)> send;
};

class ScriptProcess {
 public:
  ScriptProcess(ScriptParts parts, MonoTime now);
  ~ScriptProcess();
  // A serialised wire::WorkerCommand; one that cannot be read is ignored.
  void command(MonoTime now, const std::string& body);
  void tick(MonoTime now);
  bool is_over() const;  // retired, and the program is gone

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rubato::worker
