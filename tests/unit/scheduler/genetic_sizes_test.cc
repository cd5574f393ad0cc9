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

// Scores as Pollux': -1 / value, value a concave or linear speedup, or one with a step in it. Every
// second job holds GPUs, somewhere; to be there is worth a tenth less than to be placed anew, or
// more.
SizedJobs drawn_instance(std::uint64_t seed) {
  Rng rng(seed);
  SizedJobs drawn;
  for (std::uint64_t i = 0, n = 1 + rng.below(3); i < n; ++i)
    drawn.nodes.push_back(1 + static_cast<Gpus>(rng.below(4)));
  std::vector<Gpus> left = drawn.nodes;
  for (std::uint64_t j = 0, n = 1 + rng.below(4); j < n; ++j) {
    NodePlaces& held = drawn.held.emplace_back();
    const std::size_t on = rng.below(left.size());
    if (const Gpus gpus = std::min<Gpus>(left[on], 2); gpus > 0 && rng.chance(0.5)) {
      held.emplace_back(on, gpus);
      left[on] -= gpus;
    }
    ScoredSizes& sizes = drawn.sizes.emplace_back(ScoredSizes{{0, -1000}});
    const double unit = 0.05 + rng.unit();
    for (Gpus gpus = 1 + static_cast<Gpus>(rng.below(held.empty() ? 3 : 1)); gpus <= 8; ++gpus) {
      const double value = unit * static_cast<double>(gpus) * (0.5 + rng.unit());
      sizes.push_back({gpus, -1 / value});
      if (!held.empty() && held.front().second == gpus)
        sizes.push_back({gpus, -1 / (value * (0.9 + rng.unit())), true});
    }
  }
  return drawn;
}

double score(const SizedJobs& of, const ChosenSizes& chosen) {
  double sum = 0;
  for (std::size_t j = 0; j < of.sizes.size(); ++j) sum += of.sizes[j][chosen[j]].score;
  return sum;
}

SizedJobs jobs_on(std::vector<Gpus> nodes, std::vector<ScoredSizes> sizes) {
  const std::size_t count = sizes.size();
  return {std::move(nodes), std::move(sizes), std::vector<NodePlaces>(count)};
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

bool is_feasible(const SizedJobs& of, const ChosenSizes& chosen) {
  std::vector<Gpus> sizes;
  std::vector<Gpus> left = of.nodes;
  for (std::size_t j = 0; j < of.sizes.size(); ++j) {
    const ScoredSize& size = of.sizes[j][chosen[j]];
    if (size.stays)
      left[of.held[j].front().first] -= size.gpus;
    else if (size.gpus > 0)
      sizes.push_back(size.gpus);
  }
  return can_be_placed(left, std::vector<char>(of.nodes.size(), 0), sizes, of.nodes);
}

// By the rule, whoever stays where it is.
void expect_places(const SizedJobs& of, const ChosenSizes& chosen) {
  const auto places = place_all(of, chosen);
  ASSERT_TRUE(places);
  std::vector<Gpus> taken(of.nodes.size(), 0);
  std::vector<int> spanned(of.nodes.size(), 0);
  for (std::size_t j = 0; j < chosen.size(); ++j) {
    const ScoredSize& size = of.sizes[j][chosen[j]];
    if (size.stays) {
      EXPECT_EQ((*places)[j], of.held[j]);
    }
    Gpus sum = 0;
    for (const auto& [node, gpus] : (*places)[j]) {
      sum += gpus;
      taken[node] += gpus;
      if ((*places)[j].size() > 1) ++spanned[node];
    }
    EXPECT_EQ(sum, size.gpus);
  }
  for (std::size_t n = 0; n < taken.size(); ++n) {
    EXPECT_LE(taken[n], of.nodes[n]);
    EXPECT_LE(spanned[n], 1);
  }
}

using IsAdmitted = std::function<bool(const SizedJobs&, const ChosenSizes&)>;

double best_of_all(const SizedJobs& of, const IsAdmitted& is_admitted, ChosenSizes& chosen,
                   std::size_t j = 0) {
  if (j == of.sizes.size())
    return is_admitted(of, chosen) ? score(of, chosen) : -std::numeric_limits<double>::infinity();
  double best = -std::numeric_limits<double>::infinity();
  for (chosen[j] = 0; chosen[j] < of.sizes[j].size(); ++chosen[j])
    best = std::max(best, best_of_all(of, is_admitted, chosen, j + 1));
  chosen[j] = 0;
  return best;
}

// By shares of the best power mean (p = -1: its inverse is the sum of scores). What is lost is
// lost by the packing, which takes some plans for impossible, and by the search.
TEST(GeneticSizes, AlmostAsGoodAsTheBestOfAllAndAlwaysFits) {
  constexpr std::uint64_t kInstances = 240;
  const IsAdmitted is_packed = [](const SizedJobs& of, const ChosenSizes& chosen) {
    return place_all(of, chosen).has_value();
  };
  double of_packed = 0, of_all = 0;
  for (std::uint64_t seed = 1; seed <= kInstances; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const SizedJobs of = drawn_instance(seed);
    ChosenSizes none(of.sizes.size(), 0);
    const ChosenSizes chosen = genetic_sizes(of, none, {.seed = seed});
    EXPECT_TRUE(is_feasible(of, chosen));
    expect_places(of, chosen);
    const double reached = score(of, chosen);
    of_packed += best_of_all(of, is_packed, none) / reached / kInstances;
    of_all += best_of_all(of, is_feasible, none) / reached / kInstances;
    EXPECT_GE(best_of_all(of, is_packed, none) / reached, 0.9);
  }
  EXPECT_GE(of_packed, 0.99);
  EXPECT_LE(of_packed, 1 + 1e-9);
  EXPECT_GE(of_all, 0.98);
  EXPECT_LE(of_all, 1 + 1e-9);
  RecordProperty("ofPacked", std::to_string(of_packed));
  RecordProperty("ofAll", std::to_string(of_all));
}

TEST(GeneticSizes, EqualSeedsEqualAnswers) {
  const SizedJobs of = drawn_instance(7);
  const ChosenSizes none(of.sizes.size(), 0);
  EXPECT_EQ(genetic_sizes(of, none, {.seed = 3}), genetic_sizes(of, none, {.seed = 3}));
}

// Two jobs of 5 GPUs on three nodes of 4 would share one.
TEST(GeneticSizes, NoNodeHasTwoJobsThatSpanNodes) {
  const SizedJobs of =
      jobs_on({4, 4, 4}, std::vector<ScoredSizes>(2, {{0, -1000}, {4, -2}, {5, -1}}));
  EXPECT_FALSE(place_all(of, {2, 2}));
  EXPECT_TRUE(place_all(of, {1, 2}));
  const ChosenSizes chosen = genetic_sizes(of, {0, 0}, {});
  EXPECT_EQ(chosen[0] + chosen[1], 3);
}

// The part of a job that spans nodes goes beside a small one, so that a whole node is left.
TEST(GeneticSizes, APartGoesWhereSomebodyIs) {
  SizedJobs of =
      jobs_on({4, 4, 4},
              {{{0, -1000}, {1, -1}, {1, -1, true}}, {{0, -1000}, {6, -1}}, {{0, -1000}, {4, -1}}});
  of.held[0] = {{1, 1}};
  const auto places = place_all(of, {2, 1, 1});
  ASSERT_TRUE(places);
  EXPECT_EQ((*places)[0], (NodePlaces{{1, 1}}));
  EXPECT_EQ((*places)[1], (NodePlaces{{0, 4}, {1, 2}}));
  EXPECT_EQ((*places)[2], (NodePlaces{{2, 4}}));
}

// It holds 2 GPUs on each of two nodes, and another one is on the third. On one node 4 GPUs are
// worth more: the other one does not have to make room, it may move.
TEST(GeneticSizes, WhoMovesMakesRoomForWhoIsWorthMore) {
  SizedJobs of = jobs_on(
      {4, 4}, {{{0, -1000}, {4, -1}, {4, -3, true}}, {{0, -1000}, {2, -1.5}, {2, -1, true}}});
  of.held = {{{0, 2}, {1, 2}}, {{1, 2}}};
  const ChosenSizes chosen = genetic_sizes(of, {2, 2}, {});
  EXPECT_EQ(chosen, (ChosenSizes{1, 2}));
  expect_places(of, chosen);
}

TEST(GeneticSizes, WhoDoesNotFitAtAllIsLeftOutFromTheEnd) {
  const std::vector<ScoredSizes> sizes(3, {{0, -1000}, {1, -1}, {2, -0.5}});
  EXPECT_EQ(genetic_sizes(jobs_on({2}, sizes), {0, 0, 0}, {.generations = 0}),
            (ChosenSizes{1, 1, 0}));
  EXPECT_EQ(genetic_sizes(jobs_on({}, sizes), {1, 1, 1}, {}), (ChosenSizes{0, 0, 0}));
  EXPECT_EQ(genetic_sizes(jobs_on({4}, {}), {}, {}), ChosenSizes{});
}

}  // namespace
}  // namespace rubato::sched
