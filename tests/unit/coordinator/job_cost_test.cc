// JobMachine: what a message costs does not grow with the job.
#include "tests/unit/coordinator/fake_pods.h"

#include <algorithm>
#include <ctime>

#include <gtest/gtest.h>

namespace rubato::coordinator {
namespace {

// CPU time of a heartbeat in a job of so many, its share of the passes included: the least of some.
double seconds_a_message(int members) {
  FakePods pods(members);
  pods.start_many();
  EXPECT_EQ(pods.view().members.size(), static_cast<std::size_t>(members));
  double least = 1e9;
  for (int round = 0; round < 5; ++round) {
    const std::clock_t began = std::clock();
    pods.beat_in_turn(250ms);
    least = std::min(least, static_cast<double>(std::clock() - began) / CLOCKS_PER_SEC);
  }
  return least / members;
}

// It took 0.39 ms at 100 members and 3.7 ms at 400. `make bench-coordinator` has the figures.
TEST(JobMachineCost, AMessageCostsTheSameInAJobOfAnySize) {
  const double small = seconds_a_message(50);
  const double big = seconds_a_message(1000);
  EXPECT_LT(big, 5 * small) << "twenty times as many members: " << small << " s and " << big
                            << " s";
}

}  // namespace
}  // namespace rubato::coordinator
