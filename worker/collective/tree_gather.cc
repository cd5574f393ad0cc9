#include "worker/collective/tree_gather.h"

#include "common/planted.h"
#include "worker/collective/communicator.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <utility>

namespace rubato::worker {

namespace {
// Before each message of a frame.
struct Entry {
  std::uint32_t rank = 0;
  std::uint32_t bytes = 0;
};
constexpr std::size_t kLinksMax = 3;  // of one member: its parent's and its children's
}  // namespace

std::vector<std::uint32_t> tree_children(std::uint32_t rank, std::uint32_t size) {
  std::vector<std::uint32_t> children;
  for (std::uint32_t child = 2 * rank + 1; child <= 2 * rank + 2 && child < size; ++child) {
    children.push_back(child);
  }
  return children;
}

// Breadth first: the order in which both ends list a frame's messages.
std::vector<std::uint32_t> TreeGather::subtree(std::uint32_t root) const {
  std::vector<std::uint32_t> ranks{root};
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const auto children = tree_children(ranks[i], static_cast<std::uint32_t>(messages_.size()));
    ranks.insert(ranks.end(), children.begin(), children.end());
  }
  return ranks;
}

std::optional<Failure> TreeGather::run(MonoTime deadline) {
  const bool is_root = parent_.link == nullptr;
  std::vector<Frame> frames;
  for (const Neighbour& child : children_) frames.push_back(receive(child, up_));
  std::vector<Neighbour> watched(children_.begin(), children_.end());
  if (!is_root) watched.push_back(parent_);
  if (auto failure = move(frames, watched, deadline)) return failure;
  for (const Frame& frame : frames) {
    const Status taken = unpack(frame, subtree(frame.with.rank));
    if (!taken.ok()) return Failure{frame.with.rank, taken.error()};
  }
  if (!is_root) {
    frames = {send(parent_, up_, subtree(rank_))};
    if (auto failure = move(frames, watched, deadline)) return failure;
    frames = {receive(parent_, down_)};
    if (auto failure = move(frames, children_, deadline)) return failure;
    const Status taken = unpack(frames.front(), subtree(0));
    if (!taken.ok()) return Failure{parent_.rank, taken.error()};
  }
  hand_down(deadline);
  return std::nullopt;
}

// All messages are here, so the gather has succeeded: a child that cannot be told keeps none of the
// others from being told, and says itself that its link broke.
void TreeGather::hand_down(MonoTime deadline) const {
  const auto all = subtree(0);
  std::vector<Frame> frames;
  for (const Neighbour& child : children_) frames.push_back(send(child, down_, all));
  while (auto failure = move(frames, {}, deadline)) {
    std::erase_if(frames, [&](const Frame& frame) { return frame.with.rank == failure->rank; });
  }
}

TreeGather::Frame TreeGather::receive(Neighbour from, const Header& header) const {
  Frame frame;
  frame.with = from;
  frame.header = header;
  frame.bytes.resize(sizeof header);
  frame.is_in = true;
  return frame;
}

TreeGather::Frame TreeGather::send(Neighbour to, Header header,
                                   std::span<const std::uint32_t> ranks) const {
  Frame frame;
  frame.with = to;
  frame.bytes.resize(sizeof header);
  for (const std::uint32_t rank : ranks) {
    const Entry entry{rank, static_cast<std::uint32_t>(messages_[rank].size())};
    frame.bytes.append(reinterpret_cast<const char*>(&entry), sizeof entry);
    frame.bytes.append(messages_[rank]);
  }
  header.size = frame.bytes.size() - sizeof header;
  std::memcpy(frame.bytes.data(), &header, sizeof header);
  return frame;
}

Status TreeGather::unpack(const Frame& frame, std::span<const std::uint32_t> ranks) {
  std::string_view left(frame.bytes);
  left.remove_prefix(sizeof(Header));
  for (const std::uint32_t rank : ranks) {
    Entry entry;
    if (left.size() < sizeof entry) return Error(Code::kInternal, "peer sent too few messages");
    std::memcpy(&entry, left.data(), sizeof entry);
    left.remove_prefix(sizeof entry);
    if (entry.rank != rank || entry.bytes > kGatherBytes || entry.bytes > left.size()) {
      return Error(Code::kInternal, "peer sent other messages than its own");
    }
    messages_[rank] = left.substr(0, entry.bytes);
    if (planted(Bug::kTreeOwnVote) && rank == 2 * rank_ + 1) messages_[rank] = messages_[rank_];
    left.remove_prefix(entry.bytes);
  }
  if (!left.empty()) return Error(Code::kInternal, "peer sent too many messages");
  return ok();
}

// True when something moved.
Result<bool> TreeGather::advance(Frame& frame) const {
  if (frame.is_done) return false;
  if (frame.is_in) return advance_in(frame);
  TRY(const std::size_t moved, frame.with.link->try_write(frame.bytes.data() + frame.moved,
                                                          frame.bytes.size() - frame.moved));
  frame.moved += moved;
  frame.is_done = frame.moved == frame.bytes.size();
  return moved > 0;
}

Result<bool> TreeGather::advance_in(Frame& frame) const {
  TRY(const std::size_t moved, frame.with.link->try_read(frame.bytes.data() + frame.moved,
                                                         frame.bytes.size() - frame.moved));
  frame.moved += moved;
  if (frame.moved < frame.bytes.size()) return moved > 0;
  if (frame.moved == sizeof(Header)) {
    Header theirs;
    std::memcpy(&theirs, frame.bytes.data(), sizeof theirs);
    frame.header.size = theirs.size;
    if (theirs != frame.header || theirs.size > kGatherTotalBytes) {
      return Error(Code::kInternal, "peer is in another operation");
    }
    frame.bytes.resize(sizeof(Header) + theirs.size);
  }
  frame.is_done = frame.moved == frame.bytes.size();
  return true;
}

// Until all frames are through. `watched`: links whose end is a failure although nothing is to be
// moved on them now.
std::optional<Failure> TreeGather::move(std::vector<Frame>& frames,
                                        std::span<const Neighbour> watched,
                                        MonoTime deadline) const {
  for (;;) {
    bool moved = false;
    for (Frame& frame : frames) {
      const auto advanced = advance(frame);
      if (!advanced.ok()) return Failure{frame.with.rank, advanced.error()};
      moved = moved || advanced.value();
    }
    if (std::ranges::all_of(frames, &Frame::is_done)) return std::nullopt;
    if (moved) continue;
    if (auto failure = wait(frames, watched, deadline)) return failure;
  }
}

std::optional<Failure> TreeGather::wait(const std::vector<Frame>& frames,
                                        std::span<const Neighbour> watched,
                                        MonoTime deadline) const {
  std::array<LinkWait, kLinksMax> waits;
  std::array<std::uint32_t, kLinksMax> ranks{};
  std::size_t count = 0;
  const auto add = [&](const Neighbour& with, bool progress, bool end) {
    CHECK_LT(count, kLinksMax);
    ranks[count] = with.rank;
    waits[count++] = {.link = with.link, .progress = progress, .end = end};
  };
  // What is being read tells its end itself, after its last bytes.
  for (const Frame& frame : frames) {
    if (!frame.is_done) add(frame.with, true, !frame.is_in);
  }
  for (const Neighbour& with : watched) {
    const bool is_moving = std::ranges::any_of(
        frames, [&](const Frame& frame) { return !frame.is_done && frame.with.rank == with.rank; });
    if (!is_moving) add(with, false, true);
  }
  if (clock_.now() > deadline) {
    return Failure{ranks[0], Error(Code::kTimeout, "nothing moved for too long")};
  }
  waits[0].link->wait_among(std::span(waits).first(count), clock_.now() + kPollTick);
  for (std::size_t i = 0; i < count; ++i) {
    if (waits[i].end && waits[i].ended) {
      return Failure{ranks[i], Error(Code::kUnavailable, "peer closed its link")};
    }
  }
  return std::nullopt;
}

}  // namespace rubato::worker
