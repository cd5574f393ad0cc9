// Prints the numerics fingerprint and the weights after a few steps: built twice, with different
// optimisation, and compared (builds_agree.sh).
#include "tests/unit/worker/model/training_fixture.h"
#include "worker/model/fingerprint.h"

#include <iostream>

int main() {
  using namespace rubato::worker;
  using namespace rubato::worker::testing;
  for (const ModelConfig& config : {tiny_config(), tiny_llama()}) {
    SmallJob job(config, 2, 4, {.learning_rate = 3e-3});
    std::cout << take(numerics_fingerprint(*job.device, *job.stream, *job.model, {})) << "\n";
    for (int i = 0; i < 5; ++i) job.step(job.one_worker());
    std::cout << to_hex(job.hash()) << "\n";
  }
}
