// Which size each job has, and where, so that all fit onto nodes and the sum of their scores is the
// largest found: a genetic search, for scores that no ordering of steps finds the best of.
//
// A job stays where it is, or is placed anew: on one node, if it fits onto one; a job larger than
// every node has whole nodes and at most a part of one more. No node has two jobs that span nodes
// (Pollux' avoidance of interference, OSDI'21 §4.2.1). Deterministic: chance comes from the seed
// alone.
#pragma once

#include "scheduler/model/cluster_state.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace rubato::sched {

struct ScoredSize {
  Gpus gpus = 0;
  double score = 0;
  bool stays = false;  // where the job is: its size is what it holds, and nobody moves
};

// By size, 0 GPUs the first; of one size the one that stays is the last.
using ScoredSizes = std::vector<ScoredSize>;
// By job: the position of a size in its ScoredSizes.
using ChosenSizes = std::vector<std::size_t>;
// GPUs on nodes, each by its position, once.
using NodePlaces = std::vector<std::pair<std::size_t, Gpus>>;

// What is placed where.
struct SizedJobs {
  std::vector<Gpus> nodes;  // what each has for these jobs, what they hold included
  std::vector<ScoredSizes> sizes;
  std::vector<NodePlaces> held;  // by job
};

struct GeneticOptions {
  int generations = 100;
  std::uint64_t seed = 0;
};

constexpr std::size_t kPopulation = 100;
constexpr int kIdleGenerations = 20;  // without anything better: the search ends

// Where each job is, if all fit: who stays first, then the largest first, each single node the one
// with least room for it. None: they do not fit, says this heuristic, which jobs of sizes that do
// not divide each other may all the same.
std::optional<std::vector<NodePlaces>> place_all(const SizedJobs& of, const ChosenSizes& chosen);

// Starts from `now`, made to fit, and from `least`, where each job has its first size above 0, the
// last jobs left out if those do not fit. The answer always fits and is never worse than these.
// O(generations * kPopulation * (N * log K + J * log J + S)) for J jobs on N nodes that have K
// different numbers of GPUs left, S the steps from sizes that do not fit to such that do: the sizes
// of all jobs together at most. How many GPUs a node has makes no difference.
ChosenSizes genetic_sizes(const SizedJobs& of, const ChosenSizes& now,
                          const GeneticOptions& options);

}  // namespace rubato::sched
