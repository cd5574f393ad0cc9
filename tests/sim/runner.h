// Runner: many stories, each in a process of its own (a crash of the code under test ends one
// story, and what crashed processes own goes with it), several at a time; and the search for the
// fewest faults with which a story still fails.
#pragma once

#include "tests/sim/whole_cluster.h"

#include <functional>
#include <vector>

namespace rubato::sim {

// A story that takes longer is killed and counts as failed: of processor time, and of real time,
// which a loaded machine takes many times over.
constexpr auto kStoryLimit = 120s;
constexpr auto kStoryRealLimit = 1200s;

struct Trial {
  std::uint64_t seed = 1;
  int faults = -1;        // how many are drawn; below zero: as the seed says
  bool selected = false;  // only those in `keep`
  std::vector<int> keep;  // numbers of the faults that happen
  bool aloud = false;
  bool sweep = false;                       // the story of sweep_scenario(), whatever the seed …
  std::optional<std::uint64_t> crash = {};  // … with this crash
  std::string record = {};  // a folder: what its operators decide on, in seed-N.jsonl
};

struct Outcome {
  Trial trial;
  RunResult result = {};  // without its story
  double real_seconds = 0;
};

std::string joined(const std::vector<int>& numbers);
std::string replay_command(const Trial& trial);
Scenario scenario_of(const Trial& trial);
RunResult run_here(const Trial& trial);
// Does now what many stories need, for their processes to have when they begin.
void prepare(const Scenario& scenario);

// Runs what `next` gives until it gives nothing, at most `jobs` at a time; `done` hears of each end
// and says whether to go on. In order of ending.
void run_all(int jobs, const std::function<std::optional<Trial>()>& next,
             const std::function<bool(const Outcome&)>& done);
Outcome run_apart(const Trial& trial);

// Drops faults, halves first, then one by one, as long as the story still fails; at most `tries`
// runs. The numbers of those that are left.
Trial shrink(Trial trial, int jobs, int tries);

}  // namespace rubato::sim
