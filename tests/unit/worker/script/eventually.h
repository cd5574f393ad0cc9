// What another process does is seen by asking.
#pragma once

#include "common/executor.h"

namespace rubato::worker {

// Asks until it holds; false: it did not within 20 s.
template <class Condition>
bool eventually(Condition holds) {
  ThreadExecutor executor;
  for (const MonoTime deadline = executor.now() + 20s; !holds(); executor.sleep_for(1ms))
    if (executor.now() >= deadline) return false;
  return true;
}

}  // namespace rubato::worker
