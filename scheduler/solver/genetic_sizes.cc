#include "scheduler/solver/genetic_sizes.h"

#include "common/rng.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

namespace rubato::sched {
namespace {

// Nodes counted by what they have left.
class Bins {
 public:
  explicit Bins(const std::vector<Gpus>& nodes) {
    const Gpus most = nodes.empty() ? 0 : *std::ranges::max_element(nodes);
    whole_.assign(static_cast<std::size_t>(std::max<Gpus>(most, 0)) + 1, 0);
    partly_ = whole_;
    for (const Gpus gpus : nodes)
      if (gpus > 0) add(whole_, gpus, 1);
  }

  Gpus most() const { return std::ssize(whole_) - 1; }

  // False: nothing is taken.
  bool take(Gpus gpus) { return gpus > most() ? take_nodes(gpus) : take_one(gpus); }

 private:
  using Counts = std::vector<std::int64_t>;

  static void add(Counts& to, Gpus gpus, std::int64_t count) {
    to[static_cast<std::size_t>(gpus)] += count;
  }

  bool take_one(Gpus gpus) {
    for (Counts* from : {&partly_, &whole_}) {
      for (Gpus room = gpus; room <= most(); ++room) {
        if ((*from)[static_cast<std::size_t>(room)] == 0) continue;
        add(*from, room, -1);
        add(partly_, room - gpus, 1);
        return true;
      }
    }
    return false;
  }

  // Of the smallest node that has so many, nobody being on it.
  void take_part(Gpus gpus) {
    Gpus room = gpus;
    while (whole_[static_cast<std::size_t>(room)] == 0) ++room;
    add(whole_, room, -1);
    add(partly_, room - gpus, 1);
  }

  bool take_nodes(Gpus gpus) {
    const Counts before = whole_;
    Gpus missing = gpus;
    Gpus room = most();
    while (missing > 0 && room > 0) {
      if (whole_[static_cast<std::size_t>(room)] == 0) {
        --room;
        continue;
      }
      if (missing < room) {
        take_part(missing);
        return true;
      }
      add(whole_, room, -1);
      missing -= room;
    }
    if (missing > 0) whole_ = before;
    return missing == 0;
  }

  Counts whole_;   // nobody is on them
  Counts partly_;  // somebody is
};

struct Individual {
  ChosenSizes chosen;
  double score = 0;
};

class Search {
 public:
  Search(const std::vector<Gpus>& nodes, const std::vector<ScoredSizes>& jobs,
         const GeneticOptions& options)
      : jobs_(jobs), options_(options), empty_(nodes), rng_(options.seed) {
    for (const Gpus gpus : nodes) capacity_ += gpus;
  }

  ChosenSizes run(const ChosenSizes& now) {
    add(now);
    add(least());
    const double weight = 1.0 / static_cast<double>(std::max<std::size_t>(jobs_.size(), 1));
    while (all_.size() < kPopulation) add(mutated(all_[all_.size() % 2].chosen, 4 * weight));
    sort();
    int idle = 0;
    for (int i = 0; i < options_.generations && idle < kIdleGenerations; ++i) {
      const double best = all_.front().score;
      for (std::size_t n = 0; n < kPopulation; ++n)
        add(mutated(crossed(parent(), parent()), 2 * weight));
      sort();
      all_.resize(std::min(all_.size(), kPopulation));
      idle = all_.front().score > best ? 0 : idle + 1;
    }
    return std::move(all_.front().chosen);
  }

 private:
  Gpus size(const ChosenSizes& chosen, std::size_t j) const { return jobs_[j][chosen[j]].gpus; }

  ChosenSizes least() const {
    ChosenSizes least(jobs_.size(), 0);
    for (std::size_t j = 0; j < jobs_.size(); ++j) least[j] = jobs_[j].size() > 1 ? 1 : 0;
    return least;
  }

  void add(ChosenSizes chosen) {
    repair(chosen);
    double score = 0;
    for (std::size_t j = 0; j < jobs_.size(); ++j) score += jobs_[j][chosen[j]].score;
    all_.push_back({std::move(chosen), score});
  }

  // Alike ones count once: they would fill the population.
  void sort() {
    std::ranges::stable_sort(all_, [](const Individual& a, const Individual& b) {
      return a.score != b.score ? a.score > b.score : a.chosen > b.chosen;
    });
    const auto alike = std::ranges::unique(all_, {}, &Individual::chosen);
    all_.erase(alike.begin(), alike.end());
  }

  const ChosenSizes& parent() {
    const std::size_t a = rng_.below(all_.size()), b = rng_.below(all_.size());
    return all_[std::min(a, b)].chosen;  // they are in order
  }

  // Up to a point from the one, from there on from the other.
  ChosenSizes crossed(const ChosenSizes& a, const ChosenSizes& b) {
    ChosenSizes child = a;
    const auto from = static_cast<std::ptrdiff_t>(rng_.below(a.size() + 1));
    std::copy(b.begin() + from, b.end(), child.begin() + from);
    return child;
  }

  // A step up or down, or any size.
  ChosenSizes mutated(ChosenSizes chosen, double probability) {
    for (std::size_t j = 0; j < chosen.size(); ++j) {
      if (!rng_.chance(probability)) continue;
      const std::size_t last = jobs_[j].size() - 1;
      const std::uint64_t how = rng_.below(3);
      if (how == 0)
        chosen[j] = rng_.below(last + 1);
      else if (how == 1)
        chosen[j] = std::min(chosen[j] + 1, last);
      else if (chosen[j] > 0)
        --chosen[j];
    }
    return chosen;
  }

  // Sums first, by chance, down to the least sizes; then whoever does not find a place.
  void repair(ChosenSizes& chosen) {
    Gpus sum = 0;
    std::vector<std::size_t> above;
    for (std::size_t j = 0; j < jobs_.size(); ++j) {
      sum += size(chosen, j);
      if (chosen[j] > 1) above.push_back(j);
    }
    while (sum > capacity_ && !above.empty()) {
      const std::size_t at = rng_.below(above.size());
      const std::size_t j = above[at];
      sum -= size(chosen, j) - jobs_[j][chosen[j] - 1].gpus;
      if (--chosen[j] > 1) continue;
      above[at] = above.back();
      above.pop_back();
    }
    for (std::size_t j = jobs_.size(); j-- > 0 && sum > capacity_;) {
      sum -= size(chosen, j);
      chosen[j] = 0;
    }
    pack(chosen);
  }

  void pack(ChosenSizes& chosen) {
    std::vector<std::size_t> order(jobs_.size());
    std::iota(order.begin(), order.end(), 0);
    const auto larger = [&](std::size_t a, std::size_t b) {
      const Gpus of_a = size(chosen, a), of_b = size(chosen, b);
      return of_a != of_b ? of_a > of_b : a < b;
    };
    std::ranges::sort(order, larger);
    Bins bins = empty_;
    for (const std::size_t j : order)
      while (chosen[j] > 0 && !bins.take(size(chosen, j))) --chosen[j];
  }

  const std::vector<ScoredSizes>& jobs_;
  const GeneticOptions& options_;
  const Bins empty_;
  Gpus capacity_ = 0;
  Rng rng_;
  std::vector<Individual> all_;
};

}  // namespace

bool fits_nodes(const std::vector<Gpus>& nodes, const std::vector<ScoredSizes>& jobs,
                const ChosenSizes& chosen) {
  std::vector<Gpus> sizes;
  for (std::size_t j = 0; j < jobs.size(); ++j)
    if (jobs[j][chosen[j]].gpus > 0) sizes.push_back(jobs[j][chosen[j]].gpus);
  std::ranges::sort(sizes, std::greater<>());
  Bins bins(nodes);
  return std::ranges::all_of(sizes, [&](Gpus gpus) { return bins.take(gpus); });
}

ChosenSizes genetic_sizes(const std::vector<Gpus>& nodes, const std::vector<ScoredSizes>& jobs,
                          const ChosenSizes& now, const GeneticOptions& options) {
  if (jobs.empty()) return {};
  return Search(nodes, jobs, options).run(now);
}

}  // namespace rubato::sched
