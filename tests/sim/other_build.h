// What other builds than this one say and hear, as docs/protocol.md has it: "additive only: version
// N and N-1 interoperate". The build before this one lacks fields and words; the next one has some
// that nobody here knows.
#pragma once

#include "tests/sim/edited_network.h"
#include "worker/collective/communicator.h"
#include "worker/protocol/wire.pb.h"

#include <memory>
#include <optional>
#include <string>

namespace rubato::sim {

// ---- The next build

// What its operator says: unknown fields in every message, and words that are unknown as a whole.
std::vector<std::string> as_next_operator(std::string frame);
// What its agents say.
std::vector<std::string> as_next_agent(std::string frame);

// ---- A build of other times

// What its agents say: no version of the protocol that anybody here speaks.
std::vector<std::string> as_foreign_agent(std::string frame);

// ---- The build before

// Of a worker: its standing lacks what came later, and news that it does not know it does not tell.
wire::WorkerEvent as_old_event(wire::WorkerEvent event);
// What is left of a command for such a worker; none: it does not know it.
std::optional<wire::WorkerCommand> as_old_command(wire::WorkerCommand command);
// Its votes carry no digest of the state, and it does not see others'.
std::unique_ptr<worker::CommunicatorFactory> as_old_factory(
    std::unique_ptr<worker::CommunicatorFactory> factory);

}  // namespace rubato::sim
