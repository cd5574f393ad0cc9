// Who reaches whom among the members of a generation, and the largest set in which all reach each
// other: it can train, the others wait. Pure. Private to this folder.
#pragma once

#include <cstddef>
#include <vector>

namespace rubato::coordinator {

// Exact when no more than so many members have a broken link; else greedy.
constexpr std::size_t kExactLinks = 16;

class LinkGraph {
 public:
  explicit LinkGraph(std::size_t members);
  // A link needs both directions, and one end alone cannot tell whose fault it is: the word of
  // either breaks it for both.
  void miss(std::size_t a, std::size_t b);
  bool is_whole() const { return broken_.empty(); }

  // True for who is in the set. Members without a broken link always are. Greedy: the one with the
  // most broken links to those who are left goes, of equals the last, until no link is broken; a
  // partition into two, a few bad members and a star come out exactly so too.
  std::vector<bool> largest_set() const;

 private:
  std::vector<bool> exact() const;
  std::vector<bool> greedy() const;

  std::vector<std::vector<std::size_t>> missed_;  // by member: to whom its link is broken, sorted
  std::vector<std::size_t> broken_;               // members with a broken link, sorted
};

// Whom member `index` of `members` probes: all others, or, where they are more than kProbedMost,
// its two neighbours in the ring and others chosen by a hash of (index, generation). Of two parts
// that are cut off from each other, one with a share p of the members is missed altogether by one
// prober with (1 - p)^62, 0.15 % at a tenth, and each pair is looked at from both ends: the count
// of broken links tells the smaller part from the larger one all the same.
constexpr std::size_t kProbedMost = 64;
std::vector<std::size_t> probe_targets(std::size_t index, std::size_t members,
                                       std::size_t generation);

}  // namespace rubato::coordinator
