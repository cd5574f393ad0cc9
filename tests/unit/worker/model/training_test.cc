// Training as a whole on one process: the loss falls, and its bits depend on nothing but the job.
#include "tests/unit/worker/model/training_fixture.h"

#include <algorithm>
#include <cmath>

namespace rubato::worker::testing {
namespace {

OptimizerConfig fast() { return {.learning_rate = 3e-3, .min_learning_rate = 3e-4}; }

class Training : public EachFamily {};
RUBATO_EACH_FAMILY(Training);

TEST_P(Training, LossFalls) {
  SmallJob job(GetParam(), 2, 4, fast());
  const double first = job.step(job.one_worker());
  EXPECT_NEAR(first, std::log(61.0), 0.1);  // knows nothing yet
  double last = first;
  for (int i = 1; i < 120; ++i) last = job.step(job.one_worker());
  EXPECT_LT(last, 1.6);  // two successors are equally likely: ln 2 is the floor
  EXPECT_EQ(job.state.step(), 120);
}

// The same twelve micro-batches on 1, 3 and 5 workers, dealt anew (with another seed) each step.
std::uint64_t train_dealt(const ModelConfig& config, int workers, std::uint64_t seed,
                          std::vector<double>* losses, int* redos) {
  SmallJob job(config, 1, 12, fast());
  Rng rng(seed);
  for (int s = 0; s < 12; ++s) {
    std::vector<std::int64_t> order = job.one_worker()[0];
    if (seed != 0)
      for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng.below(i)]);
    std::vector<std::vector<std::int64_t>> groups(static_cast<std::size_t>(workers));
    for (const std::int64_t m : order) groups[rng.below(groups.size())].push_back(m);
    losses->push_back(job.step(groups));
  }
  *redos = job.redos;
  return job.hash();
}

TEST_P(Training, AnyDealingOfMicroBatchesGivesTheSameBits) {
  std::vector<double> alone;
  int redos_alone = 0;
  const std::uint64_t hash = train_dealt(GetParam(), 1, 0, &alone, &redos_alone);
  for (const int workers : {1, 2, 3, 5, 12}) {
    std::vector<double> losses;
    int redos = 0;
    EXPECT_EQ(
        train_dealt(GetParam(), workers, 99u + static_cast<unsigned>(workers), &losses, &redos),
        hash)
        << workers << " workers";
    EXPECT_EQ(losses, alone);
    EXPECT_EQ(redos, redos_alone);
  }
}

}  // namespace
}  // namespace rubato::worker::testing
