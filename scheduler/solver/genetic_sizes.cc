#include "scheduler/solver/genetic_sizes.h"

#include "common/rng.h"

#include <algorithm>
#include <array>
#include <utility>

namespace rubato::sched {
namespace {

constexpr std::size_t kNoNode = static_cast<std::size_t>(-1);

// Nodes by what they have left, and by who is on them.
class Bins {
 public:
  Bins(const std::vector<Gpus>& totals, std::vector<Gpus> left, const std::vector<char>& spanned)
      : most_(totals.empty() ? 0 : std::max<Gpus>(*std::ranges::max_element(totals), 0)),
        left_(std::move(left)),
        next_(totals.size(), kNoNode) {
    for (auto& heads : heads_) heads.assign(static_cast<std::size_t>(most_) + 1, kNoNode);
    for (std::size_t n = totals.size(); n-- > 0;)
      push(left_[n] == totals[n] ? kEmpty : spanned[n] != 0 ? kSpanned : kShared, n);
  }

  Gpus most() const { return most_; }

  // Empty: nothing is taken.
  NodePlaces take(Gpus gpus) { return gpus > most_ ? take_nodes(gpus) : take_one(gpus); }

 private:
  enum Who : std::size_t { kEmpty, kShared, kSpanned };  // kSpanned: also by a job of several nodes

  std::size_t& head(Who who, Gpus room) { return heads_[who][static_cast<std::size_t>(room)]; }

  void push(Who who, std::size_t node) {
    if (left_[node] <= 0) return;
    next_[node] = head(who, left_[node]);
    head(who, left_[node]) = node;
  }

  // Nobody's any more, until it is pushed again.
  std::size_t pop(Who who, Gpus room) {
    const std::size_t node = head(who, room);
    head(who, room) = next_[node];
    return node;
  }

  NodePlaces give(std::size_t node, Gpus gpus, Who who) {
    left_[node] -= gpus;
    push(who, node);
    return {{node, gpus}};
  }

  NodePlaces take_one(Gpus gpus) {
    for (Gpus room = gpus; room <= most_; ++room) {
      for (const Who who : {kSpanned, kShared})
        if (head(who, room) != kNoNode) return give(pop(who, room), gpus, who);
    }
    for (Gpus room = gpus; room <= most_; ++room)
      if (head(kEmpty, room) != kNoNode) return give(pop(kEmpty, room), gpus, kShared);
    return {};
  }

  // Of the smallest node that has so many and on which no job of several nodes is.
  NodePlaces take_part(Gpus gpus) {
    for (const Who who : {kShared, kEmpty})
      for (Gpus room = gpus; room <= most_; ++room)
        if (head(who, room) != kNoNode) return give(pop(who, room), gpus, kSpanned);
    return {};
  }

  NodePlaces take_nodes(Gpus gpus) {
    NodePlaces taken;
    for (Gpus room = most_; room > 0 && gpus > 0; --room)
      while (gpus >= room && head(kEmpty, room) != kNoNode) {
        taken.emplace_back(pop(kEmpty, room), room);
        gpus -= room;
      }
    const NodePlaces part = gpus > 0 ? take_part(gpus) : NodePlaces{};
    if (gpus > 0 && part.empty()) {
      for (const auto& [node, room] : taken) push(kEmpty, node);
      return {};
    }
    for (const auto& [node, room] : taken) left_[node] = 0;
    taken.insert(taken.end(), part.begin(), part.end());
    return taken;
  }

  Gpus most_;
  std::vector<Gpus> left_;
  std::vector<std::size_t> next_;
  std::array<std::vector<std::size_t>, 3> heads_;  // by Who, then by what is left
};

// Those that stay: what they leave of each node, and whether one of them spans it.
struct Base {
  std::vector<Gpus> left;
  std::vector<char> spanned;
};

// False, and nothing is taken: it is not there any more.
bool stay(const NodePlaces& held, Base& base) {
  for (const auto& [node, gpus] : held)
    if (base.left[node] < gpus || (held.size() > 1 && base.spanned[node] != 0)) return false;
  for (const auto& [node, gpus] : held) {
    base.left[node] -= gpus;
    if (held.size() > 1) base.spanned[node] = 1;
  }
  return true;
}

// Who does not fit gets less, and in the end nothing, if `may_shrink`; else nothing is placed.
std::optional<std::vector<NodePlaces>> place(const SizedJobs& of, ChosenSizes& chosen,
                                             bool may_shrink) {
  const auto choice = [&](std::size_t j) -> const ScoredSize& { return of.sizes[j][chosen[j]]; };
  std::vector<NodePlaces> places(of.sizes.size());
  Base base{of.nodes, std::vector<char>(of.nodes.size(), 0)};
  std::vector<std::size_t> order;
  for (std::size_t j = 0; j < of.sizes.size(); ++j) {
    if (choice(j).stays && stay(of.held[j], base)) {
      places[j] = of.held[j];
      continue;
    }
    if (choice(j).stays && !may_shrink) return std::nullopt;
    while (choice(j).stays) --chosen[j];
    if (choice(j).gpus > 0) order.push_back(j);
  }
  std::ranges::sort(order, [&](std::size_t a, std::size_t b) {
    return choice(a).gpus != choice(b).gpus ? choice(a).gpus > choice(b).gpus : a < b;
  });
  Bins bins(of.nodes, std::move(base.left), base.spanned);
  for (const std::size_t j : order) {
    while (places[j].empty() && choice(j).gpus > 0) {
      if (!choice(j).stays) places[j] = bins.take(choice(j).gpus);
      if (!places[j].empty()) break;
      if (!may_shrink) return std::nullopt;
      --chosen[j];
    }
  }
  return places;
}

struct Individual {
  ChosenSizes chosen;
  double score = 0;
};

class Search {
 public:
  Search(const SizedJobs& of, const ChosenSizes& now, const GeneticOptions& options)
      : of_(of), jobs_(of.sizes), now_(now), options_(options), rng_(options.seed) {
    for (const Gpus gpus : of.nodes) capacity_ += gpus;
  }

  ChosenSizes run() {
    add(now_);
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

  // As it is now, a step up or down, or any size.
  ChosenSizes mutated(ChosenSizes chosen, double probability) {
    for (std::size_t j = 0; j < chosen.size(); ++j) {
      if (!rng_.chance(probability)) continue;
      const std::size_t last = jobs_[j].size() - 1;
      const std::uint64_t how = rng_.below(4);
      if (how == 0)
        chosen[j] = rng_.below(last + 1);
      else if (how == 3)
        chosen[j] = now_[j];
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
    place(of_, chosen, true);
  }

  const SizedJobs& of_;
  const std::vector<ScoredSizes>& jobs_;
  const ChosenSizes& now_;
  const GeneticOptions& options_;
  Gpus capacity_ = 0;
  Rng rng_;
  std::vector<Individual> all_;
};

}  // namespace

std::optional<std::vector<NodePlaces>> place_all(const SizedJobs& of, const ChosenSizes& chosen) {
  ChosenSizes same = chosen;
  return place(of, same, false);
}

ChosenSizes genetic_sizes(const SizedJobs& of, const ChosenSizes& now,
                          const GeneticOptions& options) {
  if (of.sizes.empty()) return {};
  return Search(of, now, options).run();
}

}  // namespace rubato::sched
