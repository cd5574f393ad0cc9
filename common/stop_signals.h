// StopSignals: SIGTERM and SIGINT as something that main() waits for.
#pragma once

#include "common/clock.h"

#include <optional>

#include <signal.h>

namespace rubato {

class StopSignals {
 public:
  // Blocks both in the calling thread and in all that it starts later: make it before any other.
  StopSignals();
  // Which of them came: each is taken once.
  int wait() const;
  std::optional<int> wait(Duration limit) const;  // none: neither came

 private:
  sigset_t signals_;
};

}  // namespace rubato
