// What agents say is bounded before it is computed with, kept or shown to others: numbers are
// finite, no text is long, and no list has more entries than there can be. Pure.
// Private to this folder: includes the generated wire messages.
#pragma once

#include "worker/protocol/wire.pb.h"

#include <string>
#include <string_view>

namespace rubato::coordinator {

// Workers of a pod, at most.
constexpr std::uint32_t kSlotsMax = 256;
// Fields of an agent's message and of what it is about: a hello or a heartbeat has one for each of
// its workers. An empty one is two bytes of a frame and hundreds in memory.
constexpr std::size_t kPartsMax = 4 * std::size_t{kSlotsMax};

// May the frame be parsed? False: it has more parts than that, or it is no message at all. Cost:
// O(kPartsMax), whatever its length.
bool has_few_parts(std::string_view frame);

// Of what reaches a status; a longer text is cut (clipped()).
std::string bounded(std::string_view text);
// At least 0; what is no number is 0.
double bounded_seconds(double seconds);
// All that is used of it. Names that are too long to be true are dropped, so are lists longer than
// a job of so many micro-batches can have, and fields that we do not know. It takes no more memory
// than what it says.
wire::WorkerStanding bounded(const wire::WorkerStanding& said, std::uint32_t micro_batches);

}  // namespace rubato::coordinator
