#include "operator/coordinator/link_graph.h"

#include "common/check.h"

#include <algorithm>
#include <bit>
#include <cstdint>

namespace rubato::coordinator {

namespace {

void insert_sorted(std::vector<std::size_t>& list, std::size_t value) {
  const auto at = std::ranges::lower_bound(list, value);
  if (at == list.end() || *at != value) list.insert(at, value);
}

// SplitMix64's finaliser.
std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

}  // namespace

LinkGraph::LinkGraph(std::size_t members) : missed_(members) {}

void LinkGraph::miss(std::size_t a, std::size_t b) {
  CHECK(a < missed_.size() && b < missed_.size() && a != b);
  insert_sorted(missed_[a], b);
  insert_sorted(missed_[b], a);
  insert_sorted(broken_, a);
  insert_sorted(broken_, b);
}

std::vector<bool> LinkGraph::largest_set() const {
  return broken_.size() <= kExactLinks ? exact() : greedy();
}

// All sets of members with broken links, the smallest number first, so that of equals the one
// without the last members stands.
std::vector<bool> LinkGraph::exact() const {
  const std::size_t count = broken_.size();
  std::vector<std::uint32_t> apart(count);  // by position in broken_
  for (std::size_t i = 0; i < count; ++i)
    for (const std::size_t other : missed_[broken_[i]])
      apart[i] |= 1U << (std::ranges::lower_bound(broken_, other) - broken_.begin());
  std::vector<bool> is_whole(std::size_t{1} << count);
  is_whole[0] = true;
  std::uint32_t best = 0;
  for (std::uint32_t set = 1; set < is_whole.size(); ++set) {
    const std::uint32_t without_first = set & (set - 1);
    is_whole[set] = is_whole[without_first] && (apart[std::countr_zero(set)] & set) == 0;
    if (is_whole[set] && std::popcount(set) > std::popcount(best)) best = set;
  }
  std::vector<bool> in(missed_.size(), true);
  for (std::size_t i = 0; i < count; ++i) in[broken_[i]] = (best >> i & 1U) != 0;
  return in;
}

std::vector<bool> LinkGraph::greedy() const {
  std::vector<bool> in(missed_.size(), true);
  std::vector<std::size_t> left(missed_.size());  // broken links to those who are in
  for (const std::size_t member : broken_) left[member] = missed_[member].size();
  for (;;) {
    std::size_t worst = broken_.front();
    for (const std::size_t member : broken_)
      if (in[member] && (!in[worst] || left[member] >= left[worst])) worst = member;
    if (!in[worst] || left[worst] == 0) break;
    in[worst] = false;
    for (const std::size_t other : missed_[worst]) --left[other];
  }
  for (const std::size_t member : broken_) {  // who went too early comes back
    if (in[member] || left[member] != 0) continue;
    in[member] = true;
    for (const std::size_t other : missed_[member]) ++left[other];
  }
  return in;
}

std::vector<std::size_t> probe_targets(std::size_t index, std::size_t members,
                                       std::size_t generation) {
  std::vector<std::size_t> others;
  for (std::size_t i = 1; i < members; ++i) others.push_back((index + i) % members);
  if (others.size() <= kProbedMost) return others;
  std::swap(others[1], others.back());  // the neighbours: first and second
  std::ranges::sort(others.begin() + 2, others.end(), {}, [&](std::size_t other) {
    return mixed(mixed(generation * members + index) + other);
  });
  others.resize(kProbedMost);
  return others;
}

}  // namespace rubato::coordinator
