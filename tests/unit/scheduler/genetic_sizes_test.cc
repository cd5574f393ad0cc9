// genetic_sizes against all choices there are.
#include "scheduler/solver/genetic_sizes.h"

#include "common/rng.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <string>

#include <gtest/gtest.h>

namespace rubato::sched {
namespace {

struct Instance {
  std::vector<Gpus> nodes;
  std::vector<ScoredSizes> jobs;
};

// Scores as Pollux': -1 / value, value a concave or linear speedup, or one with a step in it.
Instance drawn_instance(std::uint64_t seed) {
  Rng rng(seed);
  Instance drawn;
  for (std::uint64_t i = 0, n = 1 + rng.below(3); i < n; ++i)
    drawn.nodes.push_back(1 + static_cast<Gpus>(rng.below(4)));
  for (std::uint64_t j = 0, n = 1 + rng.below(4); j < n; ++j) {
    ScoredSizes& sizes = drawn.jobs.emplace_back(ScoredSizes{{0, -1000}});
    const double unit = 0.05 + rng.unit();
    for (Gpus gpus = 1 + static_cast<Gpus>(rng.below(3)); gpus <= 8; ++gpus)
      sizes.push_back({gpus, -1 / (unit * static_cast<double>(gpus) * (0.5 + rng.unit()))});
  }
  return drawn;
}

double score(const Instance& of, const ChosenSizes& chosen) {
  double sum = 0;
  for (std::size_t j = 0; j < of.jobs.size(); ++j) sum += of.jobs[j][chosen[j]].score;
  return sum;
}

// Every way to put jobs on nodes by the rule; shares no code with the search.
bool can_be_placed(std::vector<Gpus> left, std::vector<char> spanned, std::vector<Gpus> sizes,
                   const std::vector<Gpus>& nodes) {
  if (sizes.empty()) return true;
  const Gpus size = sizes.back();
  sizes.pop_back();
  const Gpus largest = *std::ranges::max_element(nodes);
  if (size <= largest) {
    for (std::size_t n = 0; n < left.size(); ++n) {
      if (left[n] < size) continue;
      std::vector<Gpus> then = left;
      then[n] -= size;
      if (can_be_placed(then, spanned, sizes, nodes)) return true;
    }
    return false;
  }
  // Whole nodes and a part of one more, none of them another spanning job's.
  for (std::uint32_t set = 1; set < (1U << left.size()); ++set) {
    for (std::size_t part = 0; part < left.size(); ++part) {
      if ((set >> part & 1U) == 0) continue;
      std::vector<Gpus> then = left;
      std::vector<char> taken = spanned;
      Gpus missing = size;
      bool is_free = true;
      for (std::size_t n = 0; n < left.size(); ++n) {
        if ((set >> n & 1U) == 0) continue;
        is_free = is_free && taken[n] == 0 && (n == part || left[n] == nodes[n]);
        taken[n] = 1;
        if (n == part) continue;
        missing -= nodes[n];
        then[n] = 0;
      }
      if (!is_free || missing <= 0 || missing > left[part]) continue;
      then[part] -= missing;
      if (can_be_placed(then, taken, sizes, nodes)) return true;
    }
  }
  return false;
}

bool is_feasible(const Instance& of, const ChosenSizes& chosen) {
  std::vector<Gpus> sizes;
  for (std::size_t j = 0; j < of.jobs.size(); ++j)
    if (of.jobs[j][chosen[j]].gpus > 0) sizes.push_back(of.jobs[j][chosen[j]].gpus);
  return can_be_placed(of.nodes, std::vector<char>(of.nodes.size(), 0), sizes, of.nodes);
}

using IsAdmitted = std::function<bool(const Instance&, const ChosenSizes&)>;

double best_of_all(const Instance& of, const IsAdmitted& is_admitted, ChosenSizes& chosen,
                   std::size_t j = 0) {
  if (j == of.jobs.size())
    return is_admitted(of, chosen) ? score(of, chosen) : -std::numeric_limits<double>::infinity();
  double best = -std::numeric_limits<double>::infinity();
  for (chosen[j] = 0; chosen[j] < of.jobs[j].size(); ++chosen[j])
    best = std::max(best, best_of_all(of, is_admitted, chosen, j + 1));
  chosen[j] = 0;
  return best;
}

// By shares of the best power mean (p = -1: its inverse is the sum of scores). What is lost is
// lost by the packing, which takes some plans for impossible, and by the search.
TEST(GeneticSizes, AlmostAsGoodAsTheBestOfAllAndAlwaysFits) {
  constexpr std::uint64_t kInstances = 240;
  const IsAdmitted is_packed = [](const Instance& of, const ChosenSizes& chosen) {
    return fits_nodes(of.nodes, of.jobs, chosen);
  };
  double of_packed = 0, of_all = 0;
  for (std::uint64_t seed = 1; seed <= kInstances; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Instance of = drawn_instance(seed);
    ChosenSizes none(of.jobs.size(), 0);
    const ChosenSizes chosen = genetic_sizes(of.nodes, of.jobs, none, {.seed = seed});
    EXPECT_TRUE(is_packed(of, chosen));
    EXPECT_TRUE(is_feasible(of, chosen));
    const double reached = score(of, chosen);
    of_packed += best_of_all(of, is_packed, none) / reached / kInstances;
    of_all += best_of_all(of, is_feasible, none) / reached / kInstances;
    EXPECT_GE(best_of_all(of, is_packed, none) / reached, 0.9);
  }
  EXPECT_GE(of_packed, 0.99);
  EXPECT_LE(of_packed, 1 + 1e-9);
  EXPECT_GE(of_all, 0.98);
  EXPECT_LE(of_all, 1 + 1e-9);
}

TEST(GeneticSizes, EqualSeedsEqualAnswers) {
  const Instance of = drawn_instance(7);
  const ChosenSizes none(of.jobs.size(), 0);
  EXPECT_EQ(genetic_sizes(of.nodes, of.jobs, none, {.seed = 3}),
            genetic_sizes(of.nodes, of.jobs, none, {.seed = 3}));
}

// Two jobs of 5 GPUs on three nodes of 4 would share one.
TEST(GeneticSizes, NoNodeHasTwoJobsThatSpanNodes) {
  const std::vector<ScoredSizes> jobs(2, {{0, -1000}, {4, -2}, {5, -1}});
  const std::vector<Gpus> nodes = {4, 4, 4};
  EXPECT_FALSE(fits_nodes(nodes, jobs, {2, 2}));
  EXPECT_TRUE(fits_nodes(nodes, jobs, {1, 2}));
  const ChosenSizes chosen = genetic_sizes(nodes, jobs, {0, 0}, {});
  EXPECT_EQ(chosen[0] + chosen[1], 3);
}

TEST(GeneticSizes, WhoDoesNotFitAtAllIsLeftOutFromTheEnd) {
  const std::vector<ScoredSizes> jobs(3, {{0, -1000}, {1, -1}, {2, -0.5}});
  EXPECT_EQ(genetic_sizes({2}, jobs, {0, 0, 0}, {.generations = 0}), (ChosenSizes{1, 1, 0}));
  EXPECT_EQ(genetic_sizes({}, jobs, {1, 1, 1}, {}), (ChosenSizes{0, 0, 0}));
  EXPECT_EQ(genetic_sizes({4}, {}, {}, {}), ChosenSizes{});
}

}  // namespace
}  // namespace rubato::sched
