#include "common/stall_watch.h"

#include "common/log.h"

#include <algorithm>

namespace rubato {

StallWatch::StallWatch(Executor& executor) : executor_(executor), looked_(executor.now()) {
  task_ = executor_.spawn("stall watch", [this](const std::stop_token& stop) {
    while (executor_.sleep_for(kStallPeriod, stop)) look(executor_.now(), true);
  });
}

MonoTime StallWatch::awake_since() {
  look(executor_.now(), false);
  const std::lock_guard lock(mutex_);
  return awake_since_;
}

void StallWatch::look(MonoTime now, bool is_own_turn) {
  const std::lock_guard lock(mutex_);
  const Duration gap = now - looked_;
  if (gap > kStallPeriod + kStallBound) {
    awake_since_ = now;
    if (is_own_turn)
      LOG_WARNING("stall", "this process slept for {:.1f} s: nobody is judged by that time",
                  std::chrono::duration<double>(gap).count());
  }
  if (is_own_turn) looked_ = std::max(looked_, now);
}

}  // namespace rubato
