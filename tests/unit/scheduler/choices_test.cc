// The multiple-choice program, against all choices.
#include "scheduler/solver/choices.h"

#include "common/rng.h"

#include <algorithm>
#include <limits>

#include <gtest/gtest.h>

namespace rubato::sched {
namespace {

constexpr std::uint64_t kPrograms = 300;

using Picks = std::vector<std::optional<std::size_t>>;

// Two groups, 4 of one thing. Each would have 3 for itself; 2 each are cheapest together.
TEST(Choices, WhatFitsTogetherCostsLeast) {
  ChoiceProgram program{.capacities = {4}, .groups = {}};
  for (int i = 0; i < 2; ++i)
    program.groups.push_back(
        {.cost_of_none = 10,
         .choices = {{8, {{0, 1}}}, {5, {{0, 2}}}, {3, {{0, 3}}}, {2.5, {{0, 4}}}}});
  const Chosen chosen = least_cost_choices(program);
  EXPECT_EQ(chosen.choices, (Picks{1, 1}));
  EXPECT_DOUBLE_EQ(chosen.cost, 10);
  EXPECT_NEAR(chosen.bound, 10, 1e-3);
}

TEST(Choices, WhatCostsMoreThanNothingIsNotTaken) {
  const ChoiceProgram program{.capacities = {4},
                              .groups = {{.cost_of_none = 1, .choices = {{2, {{0, 1}}}}}, {}}};
  const Chosen chosen = least_cost_choices(program);
  EXPECT_EQ(chosen.choices, (Picks{std::nullopt, std::nullopt}));
  EXPECT_DOUBLE_EQ(chosen.cost, 1);
}

TEST(Choices, NothingIsNothing) {
  const Chosen chosen = least_cost_choices({});
  EXPECT_TRUE(chosen.choices.empty());
  EXPECT_EQ(chosen.cost, 0);
}

// Amounts that are not whole are no table's.
constexpr double kWholeAmount = 1, kDivided = 0.4;

ChoiceProgram drawn_program(std::uint64_t seed, double unit) {
  Rng rng(seed);
  const auto below = [&](std::uint64_t bound) { return static_cast<double>(rng.below(bound)); };
  ChoiceProgram program;
  for (std::uint64_t i = 0; i < 1 + rng.below(3); ++i)
    program.capacities.push_back(unit * below(12));
  for (std::uint64_t g = 0; g < 1 + rng.below(6); ++g) {
    ChoiceGroup group{.cost_of_none = 1 + below(10), .choices = {}};
    for (std::uint64_t c = 0; c < rng.below(6); ++c) {
      GroupChoice choice{.cost = below(1000) / 100, .uses = {}};
      for (std::size_t i = 0; i < program.capacities.size(); ++i)
        if (rng.chance(0.6)) choice.uses.push_back({i, unit * (1 + below(6))});
      group.choices.push_back(choice);
    }
    program.groups.push_back(group);
  }
  return program;
}

double least_from(const ChoiceProgram& program, std::size_t g, std::vector<double> left) {
  if (std::ranges::any_of(left, [](double amount) { return amount < -1e-9; }))
    return std::numeric_limits<double>::infinity();
  if (g == program.groups.size()) return 0;
  double least = program.groups[g].cost_of_none + least_from(program, g + 1, left);
  for (const GroupChoice& choice : program.groups[g].choices) {
    std::vector<double> then = left;
    for (const CapacityUse& use : choice.uses) then[use.capacity] -= use.amount;
    least = std::min(least, choice.cost + least_from(program, g + 1, then));
  }
  return least;
}

// What it says it costs is what its choices cost, and they fit.
void expect_true(const ChoiceProgram& program, const Chosen& chosen) {
  std::vector<double> left = program.capacities;
  double cost = 0;
  ASSERT_EQ(chosen.choices.size(), program.groups.size());
  for (std::size_t g = 0; g < program.groups.size(); ++g) {
    const ChoiceGroup& group = program.groups[g];
    cost += chosen.choices[g] ? group.choices.at(*chosen.choices[g]).cost : group.cost_of_none;
    if (!chosen.choices[g]) continue;
    for (const CapacityUse& use : group.choices[*chosen.choices[g]].uses)
      left[use.capacity] -= use.amount;
  }
  for (const double amount : left) EXPECT_GE(amount, -1e-9);
  EXPECT_NEAR(cost, chosen.cost, 1e-9);
}

TEST(Choices, NoneCostLess) {
  for (const double unit : {kWholeAmount, kDivided}) {
    for (std::uint64_t seed = 1; seed <= kPrograms; ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", unit " + std::to_string(unit));
      const ChoiceProgram program = drawn_program(seed, unit);
      const Chosen chosen = least_cost_choices(program);
      expect_true(program, chosen);
      const double least = least_from(program, 0, program.capacities);
      EXPECT_LE(chosen.cost, least * (1 + kChoiceGap) + 1e-9);
      EXPECT_LE(chosen.bound, least + 1e-6);
      EXPECT_GE(chosen.bound, chosen.cost * (1 - kChoiceGap) - 1e-6);
      if (unit == kWholeAmount) {
        EXPECT_EQ(chosen.programs, 0);
        EXPECT_NEAR(chosen.cost, least, 1e-9);
      }
    }
  }
}

// Without a program to look into it has what fits, and a bound that is true.
TEST(Choices, ItsLimitIsKept) {
  for (const int most : {0, 1, 2}) {
    for (std::uint64_t seed = 1; seed <= kPrograms; ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      const ChoiceProgram program = drawn_program(seed, kDivided);
      const Chosen chosen = least_cost_choices(program, most);
      expect_true(program, chosen);
      EXPECT_LE(chosen.programs, most);
      EXPECT_LE(chosen.bound, least_from(program, 0, program.capacities) + 1e-6);
    }
  }
}

}  // namespace
}  // namespace rubato::sched
