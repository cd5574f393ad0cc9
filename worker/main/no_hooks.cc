#include "worker/main/hooks.h"

namespace rubato::worker {

Hooks make_hooks() { return {}; }

}  // namespace rubato::worker
