// WorkerSlot: the workers of one slot of a pod, one process after another: when the next may start,
// and what the coordinator is told of one that ended or never began. Private to this folder:
// includes the generated wire messages.
#pragma once

#include "worker/agent/worker_host.h"
#include "worker/protocol/wire.pb.h"

#include <cstdint>
#include <optional>
#include <string>

namespace rubato::worker {

struct WorkerSlot {
  std::uint64_t incarnation = 0;
  bool alive = false;
  bool retired = false;       // ended as it should; not started again
  bool failed = false;        // said that it can never work; not started again
  bool ordered = false;       // the coordinator had it killed
  bool is_to_retire = false;  // the coordinator has told it
  // As it was told, of a worker that nothing can be expected of, or whose program has failed:
  // whoever leads next hears it, too.
  std::optional<wire::WorkerEvent> lasting_failure;
  std::string last_failure;  // that the present process told
  int restarts = 0;
  std::optional<MonoTime> start_at;  // waits for its backoff
  wire::WorkerStanding standing;

  // The next incarnation takes the place of the one before; `is_alive`: there is a process of it.
  void begin(const std::string& pod_uid, std::uint32_t index, bool is_alive);
  // Its process is gone, and all that it held.
  void end();
  // Is what it told of `lasting_failure` still so?
  bool has_lasting_failure() const;
  // The first restart is at once; later ones wait longer and longer.
  void plan_restart(MonoTime now);
  bool may_restart() const;
  // There is nobody who could say so itself: what a worker would that can take no part here.
  wire::WorkerEvent missing_program(const std::string& why) const;
  wire::Exited exited(const HostEvent& end, bool is_restarted) const;  // all but Exited.crashes
};

// "Retired", "Error", "Killed", "Crash".
const char* reason_of(const HostEvent& end);

}  // namespace rubato::worker
