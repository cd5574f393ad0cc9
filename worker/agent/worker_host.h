// WorkerHost: how the agent starts, reaches and ends worker processes. ProcessHost does it for
// real; the simulation has the real workers in simulated processes behind the same interface.
#pragma once

#include "common/clock.h"
#include "common/result.h"

#include <cstdint>
#include <string>

namespace rubato::worker {

struct HostEvent {
  enum class Kind { kMessage, kExited };
  Kind kind = Kind::kMessage;
  std::uint32_t slot = 0;
  std::uint64_t incarnation = 0;
  std::string message;  // a serialised wire::WorkerEvent
  int exit_code = 0;    // -1: ended by `signal`
  int signal = 0;
  std::string last_words = {};  // of the output of one that ended (error_output.h)
};

// Thread-safe: one task calls next(), another the rest.
class WorkerHost {
 public:
  virtual ~WorkerHost() = default;
  // kNotFound: there is no such program, or it may not be started. kUnavailable: no memory,
  // processes, threads or file descriptors are left now; nothing was started.
  virtual Status spawn(std::uint32_t slot, std::uint64_t incarnation) = 0;
  // A serialised wire::WorkerCommand to the slot's present worker. Never blocks for long; a worker
  // that does not read for kSendLimit is killed.
  virtual Status send(std::uint32_t slot, const std::string& command) = 0;
  // SIGKILL; the exit arrives as an event. Nothing when no worker lives in the slot.
  virtual void kill(std::uint32_t slot) = 0;
  // kTimeout at the deadline.
  virtual Result<HostEvent> next(MonoTime deadline) = 0;
};

}  // namespace rubato::worker
