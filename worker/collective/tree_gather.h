// Private to worker/collective: a gather over a binary tree of ranks, rank 0 at its root. Messages
// go up concatenated, each member's together with those of its subtree; then all of them come down.
// 2 floor(log2(n)) hops where a ring has n-1, and 2(n-1) frames where a ring has n(n-1).
//
// While a member waits it sees the end of any of its links: of its parent's and of all its
// children's, until the last byte for them has left.
#pragma once

#include "worker/collective/operation.h"

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace rubato::worker {

// From so many members on votes travel by the tree: two have one edge, which is the ring's.
constexpr std::uint32_t kTreeMembers = 3;

std::vector<std::uint32_t> tree_children(std::uint32_t rank, std::uint32_t size);

class TreeGather {
 public:
  // `up` and `down` differ in their kind alone; the sizes are filled in. `parent.link` is null at
  // the root. `messages`: one place per rank, with this member's own in it.
  TreeGather(Clock& clock, const Header& up, const Header& down, std::uint32_t rank,
             Neighbour parent, std::span<const Neighbour> children,
             std::vector<std::string>& messages)
      : clock_(clock),
        up_(up),
        down_(down),
        rank_(rank),
        parent_(parent),
        children_(children),
        messages_(messages) {}

  // `messages` is complete afterwards, or the failure says which link broke. Who has all messages
  // has not failed, even where it cannot hand them on.
  std::optional<Failure> run(MonoTime deadline);

 private:
  // One frame on its way, in or out.
  struct Frame {
    Neighbour with;
    Header header;
    std::string bytes;  // out: with the header; in: the body
    std::size_t moved = 0;
    bool is_in = false;
    bool is_done = false;
  };
  Frame receive(Neighbour from, const Header& header) const;
  Frame send(Neighbour to, Header header, std::span<const std::uint32_t> ranks) const;
  Result<bool> advance(Frame& frame) const;
  Result<bool> advance_in(Frame& frame) const;
  std::optional<Failure> move(std::vector<Frame>& frames, std::span<const Neighbour> watched,
                              MonoTime deadline) const;
  std::optional<Failure> wait(const std::vector<Frame>& frames, std::span<const Neighbour> watched,
                              MonoTime deadline) const;
  Status unpack(const Frame& frame, std::span<const std::uint32_t> ranks);
  std::vector<std::uint32_t> subtree(std::uint32_t root) const;
  void hand_down(MonoTime deadline) const;

  Clock& clock_;
  const Header up_;
  const Header down_;
  const std::uint32_t rank_;
  const Neighbour parent_;
  const std::span<const Neighbour> children_;
  std::vector<std::string>& messages_;
};

}  // namespace rubato::worker
