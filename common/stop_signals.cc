#include "common/stop_signals.h"

#include <chrono>

namespace rubato {

StopSignals::StopSignals() {
  sigemptyset(&signals_);
  sigaddset(&signals_, SIGTERM);
  sigaddset(&signals_, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
}

int StopSignals::wait() const {
  int signal = 0;
  sigwait(&signals_, &signal);
  return signal;
}

std::optional<int> StopSignals::wait(Duration limit) const {
  const auto whole = std::chrono::duration_cast<std::chrono::seconds>(limit);
  const timespec time{whole.count(), (limit - whole) / 1ns};
  const int signal = sigtimedwait(&signals_, nullptr, &time);
  return signal > 0 ? std::optional(signal) : std::nullopt;
}

}  // namespace rubato
