// The instruction sets that this process may compute with.
#pragma once

#include "common/result.h"

#include <string>

namespace rubato::worker::cpu {

// Weakest first, as oneDNN names them.
enum class Isa { kSse41, kAvx2, kAvx512 };
const char* name_of(Isa isa);
// The best this machine has; kInvalid when it lacks SSE4.1.
Result<Isa> best_isa();
Result<Isa> parse_isa(const std::string& text);  // "auto" and the names; kInvalid

// Pins the instruction set for this process, matrix products included. They take it once, so a
// second call with another one is kConflict.
Status pin_isa(Isa isa);

}  // namespace rubato::worker::cpu
