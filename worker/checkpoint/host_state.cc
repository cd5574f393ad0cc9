#include "worker/checkpoint/host_state.h"

namespace rubato::worker {

Result<HostState> HostState::read(Device& device, Stream& stream, const TrainingState& state) {
  HostState host;
  TRY_OK(stream.synchronize());
  for (const StateSection& section : state.sections()) {
    const ConstBuffer buffer = section.buffer;
    if (const void* view = device.host_view(buffer)) {
      host.sections_.push_back(static_cast<const std::byte*>(view));
      continue;
    }
    auto& copy = host.copies_.emplace_back(buffer.bytes());
    device.copy_to_host(stream, copy.data(), buffer);
    host.sections_.push_back(copy.data());
  }
  TRY_OK(stream.synchronize());
  return host;
}

}  // namespace rubato::worker
