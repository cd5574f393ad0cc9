// What a coordinator and other workers may say to a worker, as far as it is read before an engine
// acts on it.
#include "tests/fuzz/fuzz.h"
#include "worker/protocol/shares.h"
#include "worker/protocol/wire.pb.h"
#include "worker/step/training_config.h"

#include <vector>

namespace rubato::worker {

FUZZ_TARGET(worker_command) {
  const int size = static_cast<int>(input.size());
  wire::CoordinatorMessage message;
  if (message.ParseFromArray(input.data(), size))
    CHECK(message.SerializeAsString().size() <= 4 * input.size() + 64);
  wire::StateFrame frame;
  (void)frame.ParseFromArray(input.data(), size);
  wire::LinkHello hello;
  (void)hello.ParseFromArray(input.data(), size);
  wire::WorkerCommand command;
  if (command.ParseFromArray(input.data(), size) && command.has_configure())
    (void)parse_training(command.configure().training());
}

// Held ranges as an agreed round has them: disjoint, within the round. Each micro-batch is
// somebody's, once.
FUZZ_TARGET(shares) {
  fuzz::Choices choices(input);
  const std::uint32_t micro_batches = choices.byte() + 1;
  const std::uint32_t members = choices.byte() % std::min(micro_batches, 16u) + 1;
  std::vector<std::vector<wire::MicroRange>> held(members);
  std::uint32_t at = 0;
  while (!choices.empty() && at < micro_batches) {
    const std::uint32_t begin = std::min(at + choices.byte() % 8, micro_batches);
    at = std::min(begin + choices.byte() % 8, micro_batches);
    if (begin < at) held[choices.byte() % members].push_back({begin, at});
  }
  std::vector<int> owners(micro_batches, 0);
  for (const auto& ranges : wire::salvage_shares(held, micro_batches))
    for (const auto& range : ranges)
      for (std::uint32_t micro = range.begin; micro < range.end; ++micro) ++owners.at(micro);
  for (const int count : owners) CHECK_EQ(count, 1);
}

}  // namespace rubato::worker
