#include "scheduler/policy/liquid_places.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

namespace rubato::sched {
namespace {

constexpr double kLoadWeight = 0.01;   // of what is left of a node, as a part of it
constexpr double kAroundANode = 0.75;  // else by best fit: a job that is placed anew

}  // namespace

LiquidSearch::LiquidSearch(const Problem& problem, const LiquidSettings& settings)
    : problem_(problem), settings_(settings), rng_(mix64(settings.seed)) {
  room_.reserve(problem.end_of_nodes().value);
  for (NodeIndex n; n < problem.end_of_nodes(); ++n) {
    Resources free = problem.node(n).free;
    free.raise_to_zero();
    room_.push_back(free);
  }
}

// Nodes of the type; where the job must be in one domain, or on one node, those of each.
std::vector<LiquidSearch::Nodes> LiquidSearch::regions_of(JobIndex j, TypeIndex type,
                                                          bool prefer_domains) const {
  const Job& job = problem_.job(j);
  std::map<DomainIndex, Nodes> by_domain;
  for (const NodeIndex n : problem_.group(j).admitted) {
    if (problem_.type_of(n) != type) continue;
    if (!prefer_domains) {
      by_domain[problem_.confines(job, n)].push_back(n);
    } else if (const auto domain =
                   problem_.domain_of(problem_.level_named(job.topology->level), n)) {
      by_domain[*domain].push_back(n);
    }
  }
  std::vector<Nodes> regions;
  regions.reserve(by_domain.size());
  for (auto& [domain, nodes] : by_domain) regions.push_back(std::move(nodes));
  return regions;
}

bool LiquidSearch::add(JobIndex j, TypeIndex type, Gpus gpus, double traffic) {
  const Job& job = problem_.job(j);
  const std::size_t i = jobs_.size();
  jobs_.push_back({.job = &job, .pods = gpus / job.per_pod.gpus, .traffic = traffic});
  Nodes places;
  const auto fits_in = [&](bool prefer_domains) {
    jobs_[i].regions = regions_of(j, type, prefer_domains);
    return best_fit(i, places);
  };
  const bool prefers = job.topology && !is_confined(job);
  if ((prefers && fits_in(true)) || fits_in(false)) {
    first_.push_back(std::move(places));
    return true;
  }
  jobs_.pop_back();
  return false;
}

std::vector<LiquidSearch::Nodes> LiquidSearch::run() {
  for (const ToStart& one : jobs_)
    rng_ = Rng(mix64(rng_.next() + static_cast<std::uint64_t>(one.pods)));
  all_.push_back({.places = first_});
  all_[0].cost = cost_of(all_[0]);
  for (std::size_t i = 0; i < jobs_.size(); ++i) vacate(i, first_[i]);
  std::vector<std::size_t> everybody(jobs_.size());
  for (std::size_t i = 0; i < everybody.size(); ++i) everybody[i] = i;
  while (all_.size() < kPopulation) {
    Individual individual{.places = std::vector<Nodes>(jobs_.size())};
    if (!place_anew(everybody, individual, 1)) individual = all_[0];
    all_.push_back(std::move(individual));
  }
  keep_best();
  int without_gain = 0;
  for (int i = 0; i < settings_.generations && without_gain < kGenerationsWithoutGain; ++i) {
    const double best = all_[0].cost;
    const std::size_t parents = all_.size();
    for (std::size_t n = 0; n < kMutants; ++n)
      add_mutant(all_[std::min(rng_.below(parents), rng_.below(parents))]);
    keep_best();
    without_gain = all_[0].cost < best ? 0 : without_gain + 1;
  }
  return std::move(all_[0].places);
}

// The cheapest, each once.
void LiquidSearch::keep_best() {
  std::ranges::stable_sort(all_, [](const Individual& a, const Individual& b) {
    return a.cost != b.cost ? a.cost < b.cost : a.places < b.places;
  });
  const auto alike = std::ranges::unique(all_, {}, &Individual::places);
  all_.erase(alike.begin(), alike.end());
  if (all_.size() > kPopulation) all_.resize(kPopulation);
}

// All jobs that have pods on a node leave it, and are placed anew, in any order.
void LiquidSearch::add_mutant(Individual mutant) {
  const Nodes& of_one = mutant.places[rng_.below(jobs_.size())];
  const NodeIndex emptied = of_one[rng_.below(of_one.size())];
  std::vector<std::size_t> some;
  for (std::size_t i = 0; i < jobs_.size(); ++i)
    if (std::ranges::binary_search(mutant.places[i], emptied)) some.push_back(i);
  for (const std::size_t i : some) mutant.places[i].clear();
  if (place_anew(std::move(some), mutant, kAroundANode)) all_.push_back(std::move(mutant));
}

// `some` of its jobs have no places. False: not all of them find any.
bool LiquidSearch::place_anew(std::vector<std::size_t> some, Individual& individual,
                              double by_chance) {
  occupy(individual);
  for (std::size_t left = some.size(); left > 1; --left)
    std::swap(some[left - 1], some[rng_.below(left)]);
  const bool all_fit = std::ranges::all_of(some, [&](std::size_t i) {
    Nodes& to = individual.places[i];
    return rng_.chance(by_chance) ? random_fit(i, to) : best_fit(i, to);
  });
  if (all_fit) individual.cost = cost_of(individual);
  for (std::size_t i = 0; i < jobs_.size(); ++i) {
    Nodes taken = individual.places[i];
    vacate(i, taken);
  }
  return all_fit;
}

void LiquidSearch::occupy(const Individual& individual) {
  for (std::size_t i = 0; i < jobs_.size(); ++i)
    for (const NodeIndex n : individual.places[i]) room_[n] -= jobs_[i].job->per_pod;
}

void LiquidSearch::vacate(std::size_t i, Nodes& places) {
  for (const NodeIndex n : places) room_[n] += jobs_[i].job->per_pod;
  places.clear();
}

std::int64_t LiquidSearch::copies(std::size_t i, NodeIndex node) const {
  return room_[node].copies_of(jobs_[i].job->per_pod);
}

void LiquidSearch::put(std::size_t i, NodeIndex node, std::int64_t pods, Nodes& to) {
  for (std::int64_t pod = 0; pod < pods; ++pod) {
    room_[node] -= jobs_[i].job->per_pod;
    to.push_back(node);
  }
}

// False: there is no room, and nothing is placed. Else `to` is in order.
bool LiquidSearch::best_fit(std::size_t i, Nodes& to) {
  return std::ranges::any_of(jobs_[i].regions,
                             [&](const Nodes& region) { return best_fit_in(i, region, to); });
}

// One node that holds them all, the fullest; else the fullest one after the other.
bool LiquidSearch::best_fit_in(std::size_t i, const Nodes& region, Nodes& to) {
  std::vector<std::pair<std::int64_t, NodeIndex>> fitting;
  std::int64_t fits = 0;
  for (const NodeIndex n : region)
    if (const std::int64_t here = copies(i, n); here > 0) {
      fitting.emplace_back(here, n);
      fits += here;
    }
  std::int64_t left = jobs_[i].pods;
  if (fits < left) return false;
  std::ranges::sort(fitting);
  const auto whole = std::ranges::lower_bound(fitting, std::pair(left, NodeIndex{}));
  if (whole != fitting.end()) {
    put(i, whole->second, left, to);
    return true;
  }
  for (const auto& [here, n] : fitting) {
    const std::int64_t pods = std::min(here, left);
    put(i, n, pods, to);
    left -= pods;
  }
  std::ranges::sort(to);
  return true;
}

bool LiquidSearch::random_fit(std::size_t i, Nodes& to) {
  const std::vector<Nodes>& regions = jobs_[i].regions;
  const std::size_t first = rng_.below(regions.size());
  for (std::size_t k = 0; k < regions.size(); ++k)
    if (fill_around(i, regions[(first + k) % regions.size()], to)) return true;
  return false;
}

// Any node that has room, then the nearest to it, of these those with most room.
bool LiquidSearch::fill_around(std::size_t i, const Nodes& region, Nodes& to) {
  std::vector<std::pair<std::int64_t, NodeIndex>> fitting;
  std::int64_t fits = 0;
  for (const NodeIndex n : region)
    if (const std::int64_t here = copies(i, n); here > 0) {
      fitting.emplace_back(-here, n);
      fits += here;
    }
  std::int64_t left = jobs_[i].pods;
  if (fits < left) return false;
  const NodeIndex middle = fitting[rng_.below(fitting.size())].second;
  std::vector<std::vector<std::pair<std::int64_t, NodeIndex>>> rings(
      problem_.state().levels.size() + 2);
  for (const auto& one : fitting)
    rings[one.second == middle ? 0 : 1 + levels_between(one.second, middle)].push_back(one);
  for (auto& ring : rings) {
    if (left == 0) break;
    std::ranges::sort(ring);
    for (const auto& [less_room, n] : ring) {
      const std::int64_t pods = std::min(-less_room, left);
      put(i, n, pods, to);
      left -= pods;
    }
  }
  std::ranges::sort(to);
  return true;
}

// Levels of which they are in two domains, the narrowest first.
std::size_t LiquidSearch::levels_between(NodeIndex a, NodeIndex b) const {
  const std::size_t levels = problem_.state().levels.size();
  for (std::size_t level = levels; level-- > 0;) {
    const auto of_a = problem_.domain_of(level, a);
    if (of_a && of_a == problem_.domain_of(level, b)) return levels - 1 - level;
  }
  return levels;
}

double LiquidSearch::distance(NodeIndex a, NodeIndex b) const {
  const std::array by_levels{1.0, settings_.across_racks, settings_.across_zones};
  return by_levels[std::min<std::size_t>(levels_between(a, b), by_levels.size() - 1)];
}

// Its pods are taken of room_.
double LiquidSearch::cost_of(const Individual& individual) const {
  double cost = 0;
  Nodes used;
  for (std::size_t i = 0; i < jobs_.size(); ++i) {
    cost += cost_of(i, individual.places[i]);
    used.insert(used.end(), individual.places[i].begin(), individual.places[i].end());
  }
  std::ranges::sort(used);
  const auto again = std::ranges::unique(used);
  used.erase(again.begin(), again.end());
  for (const NodeIndex n : used)
    cost += kLoadWeight * static_cast<double>(room_[n].gpus) /
            static_cast<double>(problem_.node(n).gpus_total);
  return cost;
}

double LiquidSearch::cost_of(std::size_t i, const Nodes& places) const {
  std::vector<std::pair<NodeIndex, double>> nodes;
  for (const NodeIndex n : places) {
    if (nodes.empty() || nodes.back().first != n) nodes.emplace_back(n, 0);
    ++nodes.back().second;
  }
  double sum = 0;
  for (std::size_t a = 0; a < nodes.size(); ++a)
    for (std::size_t b = a + 1; b < nodes.size(); ++b)
      sum += nodes[a].second * nodes[b].second * distance(nodes[a].first, nodes[b].first);
  const double pods = static_cast<double>(places.size());
  const double mean = pods > 1 ? sum / (pods * (pods - 1) / 2) : 0;
  return jobs_[i].traffic * mean + static_cast<double>(nodes.size()) / pods;
}

}  // namespace rubato::sched
