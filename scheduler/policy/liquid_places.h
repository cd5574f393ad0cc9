// Where Liquid's jobs start (Gu et al., TPDS'22): a genetic search over maps from jobs to nodes for
// the one that costs least (Descriptor of liquid.cc). Private to liquid.cc.
#pragma once

#include "common/rng.h"
#include "scheduler/model/problem.h"

#include <cstdint>
#include <vector>

namespace rubato::sched {

struct LiquidSettings {
  int generations = 50;
  std::uint64_t seed = 0;
  double across_racks = 4;
  double across_zones = 40;
};

// Deterministic: chance comes from the seed and the jobs. Cost: generations times kMutants times
// (the nodes of a type, and the pairs of nodes of the jobs that are placed anew).
class LiquidSearch {
 public:
  static constexpr std::size_t kPopulation = 20;
  static constexpr std::size_t kMutants = 20;         // in a generation
  static constexpr int kGenerationsWithoutGain = 20;  // then the search ends

  LiquidSearch(const Problem& problem, const LiquidSettings& settings);

  // False: it does not fit beside those before it, each by best fit.
  bool add(JobIndex j, TypeIndex type, Gpus gpus, double traffic);

  // By job, as they were added: the node of each of its pods, in order.
  std::vector<std::vector<NodeIndex>> run();

 private:
  using Nodes = std::vector<NodeIndex>;
  struct ToStart {
    const Job* job = nullptr;
    std::int64_t pods = 0;
    double traffic = 0;
    std::vector<Nodes> regions;  // one of these holds all its pods
  };
  struct Individual {
    std::vector<Nodes> places;
    double cost = 0;
  };

  std::vector<Nodes> regions_of(JobIndex j, TypeIndex type, bool prefer_domains) const;
  std::int64_t copies(std::size_t i, NodeIndex node) const;
  bool best_fit(std::size_t i, Nodes& to);
  bool best_fit_in(std::size_t i, const Nodes& region, Nodes& to);
  bool random_fit(std::size_t i, Nodes& to);
  bool fill_around(std::size_t i, const Nodes& region, Nodes& to);
  void put(std::size_t i, NodeIndex node, std::int64_t pods, Nodes& to);
  void occupy(const Individual& individual);
  void vacate(std::size_t i, Nodes& places);
  bool place_anew(std::vector<std::size_t> some, Individual& individual, double by_chance);
  void add_mutant(Individual mutant);
  std::size_t levels_between(NodeIndex a, NodeIndex b) const;
  double distance(NodeIndex a, NodeIndex b) const;
  double cost_of(const Individual& individual) const;
  double cost_of(std::size_t i, const Nodes& places) const;
  void keep_best();

  const Problem& problem_;
  const LiquidSettings& settings_;
  Table<NodeIndex, Resources> room_;
  std::vector<ToStart> jobs_;
  std::vector<Nodes> first_;  // by best fit
  std::vector<Individual> all_;
  Rng rng_;
};

}  // namespace rubato::sched
