// What a test makes of the emulated NCCL.
#pragma once

#include <cstddef>

namespace rubato::emulator {

enum class NcclTrouble {
  kNone,
  kNeverConnects,  // this process, from now on
  kSilent,         // a member that is gone is never told: the GPU waits until somebody aborts
  kHangsInAbort,
};
void make_trouble(NcclTrouble trouble);
// Communicators that nobody has aborted yet.
std::size_t live_communicators();

}  // namespace rubato::emulator
