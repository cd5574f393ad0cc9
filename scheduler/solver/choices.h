// Each group takes one of its choices or none, what all take fits into the capacities, and the cost
// is least: the knapsack problem with multiple choices and several capacities. Sia's program of a
// round is one (policy/sia.h): groups are jobs, choices are GPUs of a type, capacities are GPUs.
//
// By dynamic programming, exactly, where amounts are whole and groups, choices and what may be left
// of the capacities are few: up to 5 * 10^7 steps. Else by branch and bound over the linear program
// (lp.h), the least bound first. A vertex leaves about as many groups between choices as capacities
// bind, so its bound is close where groups are many, and rounding it is nearly best. A choice whose
// reduced cost is above what is between the first bound and the best that was found is in nothing
// better, and is not looked at again (Dantzig, Fulkerson and Johnson, 1954).
//
// Equal programs give equal answers: no clock, no chance, programs are counted. Of equally good
// answers, which one it is depends on the order of groups and choices.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace rubato::sched {

struct CapacityUse {
  std::size_t capacity = 0;
  double amount = 0;  // > 0
};

struct GroupChoice {
  double cost = 0;
  std::vector<CapacityUse> uses;  // each capacity once at most
};

struct ChoiceGroup {
  double cost_of_none = 0;
  std::vector<GroupChoice> choices;
};

struct ChoiceProgram {
  std::vector<double> capacities;  // >= 0
  std::vector<ChoiceGroup> groups;
};

struct Chosen {
  std::vector<std::optional<std::size_t>> choices;  // by group
  double cost = 0;
  double bound = 0;  // nothing costs less; above `cost` by rounding at most
  int programs = 0;  // linear programs that it took
};

// Branch and bound ends where the cost is proved to be so close to the least one, as a part of it
// (the gap that Sia's artifact asks its solver for) …
inline constexpr double kChoiceGap = 1e-4;
// … or after so many linear programs.
inline constexpr int kChoiceProgramsMost = 200;

Chosen least_cost_choices(const ChoiceProgram& program, int programs_most = kChoiceProgramsMost);

}  // namespace rubato::sched
