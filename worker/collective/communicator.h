// Communicator: what the members of one generation use to add their gradients and to vote. It is
// made for one membership, never changed, and thrown away with it. The one there is stands in
// tcp_communicator.h: votes go over links, gradients over links or by what the device has of its
// own (worker/backend/device_collectives.h). Operations block the calling thread until they are
// complete *here*, and `abort` frees that thread from another one without touching the device.
//
// Thread: operations belong to one thread and are called in the same order by all members; abort()
// and fault() may be called from any thread at any time while the communicator lives.
// Errors: kCancelled after abort(); kUnavailable when a link failed (fault() then names the peer);
// kInternal when a member sent what it should not. After any error only abort() and the destructor
// are left: partial sums are garbage.
#pragma once

#include "common/clock.h"
#include "common/result.h"
#include "worker/backend/device.h"
#include "worker/collective/peer.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rubato::worker {

// Why an operation failed, as far as this member can see.
struct LinkFault {
  std::uint32_t rank = 0;  // the peer at the other end of the failed link
  WorkerName peer;
  std::string why;
};

// What went over a member's links in an all-reduce, as weighted sums modulo 2^32 of the integers.
// What one sends, the next one gets; and who adds rightly has no excess. All zero: nothing went
// over links.
struct HopSums {
  std::uint32_t sent = 0;    // to the next member
  std::uint32_t got = 0;     // from the previous one
  std::uint32_t excess = 0;  // of what was sent and what is kept, over what was got and given
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual std::uint64_t generation() const = 0;
  virtual std::uint32_t rank() const = 0;
  virtual std::uint32_t size() const = 0;

  // out[i] = sum over members of in[i], modulo 2^32; `in` stays as it is. Both are kI32 of equal
  // count, equal on all members, and do not overlap. Work enqueued on `stream` before the call is
  // waited for; `out` is complete when the call returns. Bytes sent per member:
  // 2 (size-1) / size x 4 count. `hops`: null, or what to write these into, which takes the time of
  // some additions more.
  virtual Status all_reduce_int32(Stream& stream, ConstBuffer in, Buffer out,
                                  HopSums* hops = nullptr) = 0;

  // Every member's message, by rank, on every member. At most kGatherBytes each and
  // kGatherTotalBytes together. A member's message leaves it only once it has called gather, so
  // whoever holds all of them knows that all members had finished everything before. Who holds all
  // of them gets them, even where it could not hand them on to another.
  virtual Result<std::vector<std::string>> gather(std::string_view mine) = 0;
  // From the next gather on messages take O(log size) hops instead of size-1. Called by all members
  // after the same gather, the first or a later one, or by none: one of an older build knows but
  // the ring.
  virtual void vote_by_tree() = 0;

  // Ends all operations here and at the neighbours in milliseconds. Idempotent, never blocks.
  virtual void abort() = 0;
  virtual std::optional<LinkFault> fault() const = 0;
};
constexpr std::size_t kGatherBytes = 64u << 10;
constexpr std::size_t kGatherTotalBytes = 16u << 20;
constexpr const char* kNextUnreachable = "NextUnreachable";
constexpr const char* kParentUnreachable = "ParentUnreachable";
constexpr auto kReachLimit = 10s;

// In the tree of votes; not of rank 0.
constexpr std::uint32_t tree_parent(std::uint32_t rank) { return (rank - 1) / 2; }

// Makes communicators; one per worker process. Thread-safe.
class CommunicatorFactory {
 public:
  virtual ~CommunicatorFactory() = default;
  // Connects this member with its neighbours in `membership`, beside any communicator in use.
  // Blocks until this member's links are up, on the ring and to its parent in the tree of votes.
  // kExpired: the generation is fenced here or at a peer; kTimeout at `deadline`; kUnavailable or
  // kTimeout with the reason kNextUnreachable or kParentUnreachable: the next member, or the
  // parent, did not answer for kReachLimit. (A member that is slow to begin answers at once, and is
  // waited for until `deadline`.)
  virtual Result<std::unique_ptr<Communicator>> create(const Membership& membership,
                                                       MonoTime deadline) = 0;
  // Refuses anything of a generation below `below` from now on: pending create() calls end with
  // kExpired. Communicators already handed out are not touched: abort() is their owner's.
  virtual void fence(std::uint64_t below) = 0;
  // What this member can add by at present, beside links, for Membership::collective; empty:
  // nothing.
  virtual std::string collective() const { return {}; }
  // That has added wrongly again: it is not offered for some time.
  virtual void note_wrong_sums() {}
};

}  // namespace rubato::worker
