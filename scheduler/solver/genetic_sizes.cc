#include "scheduler/solver/genetic_sizes.h"

#include "common/rng.h"

#include <algorithm>
#include <array>
#include <utility>

namespace rubato::sched {
namespace {

constexpr std::size_t kNoNode = static_cast<std::size_t>(-1);

// Lists of nodes by what they have left: the last one put there is the first. How large a node is
// costs nothing, only how many different rooms there are.
class Rooms {
 public:
  struct List {
    Gpus room = 0;
    std::size_t first = kNoNode;
  };
  using Lists = std::vector<List>;

  Rooms() { lists_.reserve(kUsual); }

  // None: end().
  Lists::iterator at_least(Gpus room) {
    return std::ranges::lower_bound(lists_, room, {}, &List::room);
  }
  Lists::iterator end() { return lists_.end(); }
  // The last one with at most so much; none: end().
  Lists::iterator at_most(Gpus room) {
    const auto above = std::ranges::upper_bound(lists_, room, {}, &List::room);
    return above == lists_.begin() ? lists_.end() : above - 1;
  }
  Gpus largest() const { return lists_.empty() ? 0 : lists_.back().room; }

  void push(std::size_t node, Gpus room, std::vector<std::size_t>& next) {
    auto at = at_least(room);
    if (at == lists_.end() || at->room != room) at = lists_.insert(at, List{.room = room});
    next[node] = std::exchange(at->first, node);
  }
  std::size_t pop(Lists::iterator at, const std::vector<std::size_t>& next) {
    const std::size_t node = std::exchange(at->first, next[at->first]);
    if (at->first == kNoNode) lists_.erase(at);
    return node;
  }

 private:
  static constexpr std::size_t kUsual = 9;  // of nodes of 8 GPUs

  Lists lists_;  // by room; none is empty
};

// Nodes by what they have left, and by who is on them.
class Bins {
 public:
  Bins(const std::vector<Gpus>& totals, std::vector<Gpus> left, const std::vector<char>& spanned)
      : most_(totals.empty() ? 0 : std::max<Gpus>(*std::ranges::max_element(totals), 0)),
        left_(std::move(left)),
        next_(totals.size(), kNoNode) {
    for (std::size_t n = totals.size(); n-- > 0;)
      push(left_[n] == totals[n] ? kEmpty : spanned[n] != 0 ? kSpanned : kShared, n);
  }

  // Empty: nothing is taken.
  NodePlaces take(Gpus gpus) { return gpus > most_ ? take_nodes(gpus) : take_one(gpus); }

  // So many GPUs surely find no place.
  bool is_full_for(Gpus gpus) const {
    const Gpus of_one =
        std::max({rooms_[kEmpty].largest(), rooms_[kShared].largest(), rooms_[kSpanned].largest()});
    return gpus > (gpus > most_ ? of_empty_ + rooms_[kShared].largest() : of_one);
  }

 private:
  enum Who : std::size_t { kEmpty, kShared, kSpanned };  // kSpanned: also by a job of several nodes

  void push(Who who, std::size_t node) {
    if (left_[node] <= 0) return;
    if (who == kEmpty) of_empty_ += left_[node];
    rooms_[who].push(node, left_[node], next_);
  }

  // Nobody's any more, until it is pushed again.
  std::size_t pop(Who who, Rooms::Lists::iterator at) {
    const std::size_t node = rooms_[who].pop(at, next_);
    if (who == kEmpty) of_empty_ -= left_[node];
    return node;
  }

  NodePlaces give(std::size_t node, Gpus gpus, Who who) {
    left_[node] -= gpus;
    push(who, node);
    return {{node, gpus}};
  }

  NodePlaces take_one(Gpus gpus) {
    const auto spanned = rooms_[kSpanned].at_least(gpus);
    const auto shared = rooms_[kShared].at_least(gpus);
    const bool is_spanned = spanned != rooms_[kSpanned].end() &&
                            (shared == rooms_[kShared].end() || spanned->room <= shared->room);
    if (is_spanned) return give(pop(kSpanned, spanned), gpus, kSpanned);
    if (shared != rooms_[kShared].end()) return give(pop(kShared, shared), gpus, kShared);
    const auto empty = rooms_[kEmpty].at_least(gpus);
    if (empty != rooms_[kEmpty].end()) return give(pop(kEmpty, empty), gpus, kShared);
    return {};
  }

  // Of the smallest node that has so many and on which no job of several nodes is.
  NodePlaces take_part(Gpus gpus) {
    for (const Who who : {kShared, kEmpty})
      if (const auto at = rooms_[who].at_least(gpus); at != rooms_[who].end())
        return give(pop(who, at), gpus, kSpanned);
    return {};
  }

  NodePlaces take_nodes(Gpus gpus) {
    NodePlaces taken;
    Rooms& empty = rooms_[kEmpty];
    for (auto at = empty.at_most(gpus); gpus > 0 && at != empty.end(); at = empty.at_most(gpus)) {
      const Gpus room = at->room;
      taken.emplace_back(pop(kEmpty, at), room);
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
  Gpus of_empty_ = 0;  // nodes together
  std::vector<Gpus> left_;
  std::vector<std::size_t> next_;
  std::array<Rooms, 3> rooms_;  // by Who
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
      do --chosen[j];
      while (bins.is_full_for(choice(j).gpus));
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
