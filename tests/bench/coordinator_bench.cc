// What one message costs the coordinator, a pass over the job included, by the number of members.
//   coordinator_bench [MEMBERS …]
#include "common/log.h"
#include "tests/unit/coordinator/fake_pods.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

int main(int argc, char** argv) {
  using namespace rubato;
  std::vector<int> sizes;
  for (int i = 1; i < argc; ++i) sizes.push_back(std::atoi(argv[i]));
  if (sizes.empty()) sizes = {100, 200, 400};
  configure_log({.level = LogLevel::kError, .json = false});
  for (const int members : sizes) {
    coordinator::FakePods pods(members);
    pods.change_wish(
        [&](coordinator::Wish& wish) { wish.micro_batches = static_cast<std::uint32_t>(members); });
    pods.start_training();
    double least = 1e9;
    for (int round = 0; round < 5; ++round) {
      const std::clock_t began = std::clock();
      pods.beat();  // a heartbeat of each, and a pass after each
      least = std::min(least, static_cast<double>(std::clock() - began) / CLOCKS_PER_SEC);
    }
    std::printf("%d members: %.0f us of CPU a message and pass\n", members, least / members * 1e6);
  }
}
