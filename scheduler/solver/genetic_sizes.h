// Which size each job has, so that all fit onto nodes and the sum of their scores is the largest
// found: a genetic search, for scores that no ordering of steps finds the best of.
//
// A job that fits onto one node is on one; one that is larger than every node has whole nodes and
// at most a part of one more, and no second such job is on any of its nodes (Pollux' avoidance of
// interference, OSDI'21 §4.2.1). Deterministic: chance comes from the seed alone.
#pragma once

#include "scheduler/model/cluster_state.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace rubato::sched {

struct ScoredSize {
  Gpus gpus = 0;
  double score = 0;
};

// By size, each once, 0 GPUs the first.
using ScoredSizes = std::vector<ScoredSize>;
// By job: the position of a size in its ScoredSizes.
using ChosenSizes = std::vector<std::size_t>;

struct GeneticOptions {
  int generations = 100;
  std::uint64_t seed = 0;
};

constexpr std::size_t kPopulation = 100;
constexpr int kIdleGenerations = 20;  // without anything better: the search ends

// Whether all fit as above: the largest first, each single node the one with least room for it. A
// heuristic: jobs of sizes that do not divide each other may fit although it says no.
bool fits_nodes(const std::vector<Gpus>& nodes, const std::vector<ScoredSizes>& jobs,
                const ChosenSizes& chosen);

// Starts from `now`, made to fit, and from `least`, where each job has its first size above 0, the
// last jobs left out if those do not fit. The answer always fits and is never worse than these.
// O(generations * kPopulation * J * log J) for J jobs.
ChosenSizes genetic_sizes(const std::vector<Gpus>& nodes, const std::vector<ScoredSizes>& jobs,
                          const ChosenSizes& now, const GeneticOptions& options);

}  // namespace rubato::sched
