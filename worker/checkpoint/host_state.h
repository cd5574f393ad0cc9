// A training state as host memory: its own where the device shares it, else copies.
#pragma once

#include "worker/model/training_state.h"

#include <cstddef>
#include <vector>

namespace rubato::worker {

class HostState {
 public:
  // Waits for the stream; the device's error. The state must outlive it and stay as it is.
  static Result<HostState> read(Device& device, Stream& stream, const TrainingState& state);
  // Section i in the order of TrainingState::sections().
  const std::byte* section(std::size_t i) const { return sections_[i]; }

 private:
  std::vector<std::vector<std::byte>> copies_;
  std::vector<const std::byte*> sections_;
};

}  // namespace rubato::worker
