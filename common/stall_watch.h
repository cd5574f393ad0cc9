// StallWatch: since when has this process been awake? A process that was stopped, swapped out or
// got no processor finds everybody else silent when it goes on, and it was itself that slept. Who
// judges others by time counts from the later of their last word and awake_since().
//
// One task that wakes up every kStallPeriod; a wake-up that is more than kStallBound late is the
// end of a stall. Thread-safe; costs one clock reading and a lock per question.
#pragma once

#include "common/executor.h"

#include <mutex>

namespace rubato {

constexpr Duration kStallPeriod = 250ms;
constexpr Duration kStallBound = 500ms;  // below half of any silence that somebody is judged by

class StallWatch {
 public:
  explicit StallWatch(Executor& executor);

  // When the last stall ended; now, if one is just ending and the watch's own task has not run yet.
  // The epoch of the clock when there was none.
  MonoTime awake_since();

 private:
  void look(MonoTime now, bool is_own_turn);

  Executor& executor_;
  std::mutex mutex_;
  MonoTime looked_;  // the watch's task ran last
  MonoTime awake_since_{};
  Task task_;
};

}  // namespace rubato
