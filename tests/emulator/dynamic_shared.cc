// What worker/backend/cuda/launch.cuh declares: as much of it as a block may ask for.
#include "tests/emulator/block.h"

namespace rubato::worker::cuda {

extern thread_local float dynamic_shared[];
alignas(16) thread_local float dynamic_shared[emulator::kSharedMax / sizeof(float)];

}  // namespace rubato::worker::cuda
