// What agents say is bounded before it is computed with or shown to others: numbers are finite and
// no text is long. Pure. Private to this folder: includes the generated wire messages.
#pragma once

#include "worker/protocol/wire.pb.h"

#include <string>
#include <string_view>

namespace rubato::coordinator {

// Of what reaches a status; a longer text is cut (clipped()).
std::string bounded(std::string_view text);
// At least 0; what is no number is 0.
double bounded_seconds(double seconds);
// All that is used of it. Names that are too long to be true are dropped.
void bound(wire::WorkerStanding& status);

}  // namespace rubato::coordinator
