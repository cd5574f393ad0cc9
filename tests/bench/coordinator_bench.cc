// What one message costs the coordinator, its share of the passes over the job included, by the
// number of members: agents that beat every 250 ms, one after the other.
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
  if (sizes.empty()) sizes = {10, 100, 1000, 4000};
  configure_log({.level = LogLevel::kError, .json = false});
  for (const int members : sizes) {
    coordinator::FakePods pods(members);
    pods.start_many();
    if (pods.view().members.size() != static_cast<std::size_t>(members)) {
      std::fprintf(stderr, "%d members do not train\n", members);
      return 1;
    }
    double least = 1e9;
    for (int round = 0; round < 5; ++round) {
      const std::clock_t began = std::clock();
      pods.beat_in_turn(250ms);
      least = std::min(least, static_cast<double>(std::clock() - began) / CLOCKS_PER_SEC);
    }
    std::printf("%5d members: %6.1f us of CPU a message\n", members, least / members * 1e6);
  }
}
