#include "worker/backend/cpu/isa.h"

#include "worker/backend/cpu/gemm.h"

#include <mutex>
#include <optional>

#include <asm/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

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

// AMX, where the operating system lets this process use its tiles (Linux, x86/xstate.rst).
bool has_amx() {
  constexpr long kTileData = 18;
  return __builtin_cpu_supports("amx-bf16") &&
         ::syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, kTileData) == 0;
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
    case Isa::kAvx512Bf16:
      return "avx512_core_bf16";
    case Isa::kAmx:
      return "avx512_core_amx";
  }
  return "?";
}

Precision precision_of(Isa isa) {
  return isa < Isa::kAvx512Bf16 ? Precision::kF32 : Precision::kBf16;
}

Result<Isa> best_isa(Precision precision) {
  __builtin_cpu_init();
  if (precision == Precision::kBf16) {
    if (__builtin_cpu_supports("avx512bf16")) return has_amx() ? Isa::kAmx : Isa::kAvx512Bf16;
    return Error(Code::kInvalid,
                 "this CPU has no instructions for bf16 (AVX512-BF16 or AMX); train in f32, or on "
                 "nodes that have them");
  }
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    return Isa::kAvx512;
  if (__builtin_cpu_supports("avx2")) return Isa::kAvx2;
  if (__builtin_cpu_supports("sse4.1")) return Isa::kSse41;
  return Error(Code::kInvalid, "this CPU has no SSE4.1");
}

Result<Isa> parse_isa(const std::string& text, Precision precision) {
  TRY(const Isa best, best_isa(precision));
  if (text == "auto") return best;
  std::string names;
  for (const Isa isa : {Isa::kSse41, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmx}) {
    if (precision_of(isa) != precision) continue;
    names += std::string(", ") + name_of(isa);
    if (text != name_of(isa)) continue;
    if (isa > best)
      return Error(Code::kInvalid, "instruction set " + text +
                                       " is asked for, but this CPU has at most " + name_of(best));
    return isa;
  }
  return Error(Code::kInvalid, "unknown instruction set '" + text + "' for " +
                                   (precision == Precision::kF32 ? "f32" : "bf16") + ": auto" +
                                   names);
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
