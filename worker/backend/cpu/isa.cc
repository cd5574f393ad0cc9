#include "worker/backend/cpu/isa.h"

#include "worker/backend/cpu/gemm.h"

#include <mutex>
#include <optional>

namespace rubato::worker::cpu {

namespace {

struct Pin {
  std::mutex mutex;
  std::optional<Isa> isa;
};
Pin& pin() {
  static Pin one;  // oneDNN's own setting is global to the process
  return one;
}

}  // namespace

const char* name_of(Isa isa) {
  switch (isa) {
    case Isa::kSse41:
      return "sse41";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512_core";
  }
  return "?";
}

Result<Isa> best_isa() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    return Isa::kAvx512;
  if (__builtin_cpu_supports("avx2")) return Isa::kAvx2;
  if (__builtin_cpu_supports("sse4.1")) return Isa::kSse41;
  return Error(Code::kInvalid, "this CPU has no SSE4.1");
}

Result<Isa> parse_isa(const std::string& text) {
  TRY(const Isa best, best_isa());
  if (text == "auto") return best;
  for (const Isa isa : {Isa::kSse41, Isa::kAvx2, Isa::kAvx512}) {
    if (text != name_of(isa)) continue;
    if (isa > best)
      return Error(Code::kInvalid, "instruction set " + text +
                                       " is asked for, but this CPU has at most " + name_of(best));
    return isa;
  }
  return Error(Code::kInvalid,
               "unknown instruction set '" + text + "': auto, sse41, avx2 or avx512_core");
}

Status pin_isa(Isa isa) {
  Pin& one = pin();
  const std::lock_guard lock(one.mutex);
  if (one.isa == isa) return ok();
  if (one.isa.has_value())
    return Error(Code::kConflict, std::string("this process already computes with ") +
                                      name_of(*one.isa) + "; " + name_of(isa) +
                                      " needs a process of its own");
  if (!limit_gemm(isa))
    return Error(Code::kConflict, "oneDNN was used before its instruction set was pinned");
  one.isa = isa;
  return ok();
}

}  // namespace rubato::worker::cpu
