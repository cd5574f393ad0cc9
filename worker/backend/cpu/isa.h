// The instruction sets that this process may compute with.
#pragma once

#include "common/result.h"
#include "worker/backend/device.h"

#include <string>

namespace rubato::worker::cpu {

// Weakest first, as oneDNN names them. Those of bf16 multiply in nothing else, those before them in
// f32 alone.
enum class Isa { kSse41, kAvx2, kAvx512, kAvx512Bf16, kAmx };
const char* name_of(Isa isa);
Precision precision_of(Isa isa);
// The best this machine has for it; kInvalid when it lacks SSE4.1, or bf16.
Result<Isa> best_isa(Precision precision = Precision::kF32);
// "auto" and the names of that precision; kInvalid.
Result<Isa> parse_isa(const std::string& text, Precision precision = Precision::kF32);

// Pins the instruction set for this process, matrix products included. They take it once, so a
// second call with another one is kConflict.
Status pin_isa(Isa isa);

}  // namespace rubato::worker::cpu
