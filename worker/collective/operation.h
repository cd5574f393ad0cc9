// Private to worker/collective: what all operations of a communicator share: the header that stands
// before each of them on each link, and how one fails.
#pragma once

#include "common/clock.h"
#include "common/result.h"
#include "worker/collective/link.h"

#include <cstdint>

namespace rubato::worker {

// The last resort of every wait: the coordinator's progress deadline aborts long before.
constexpr auto kOperationLimit = 30min;
constexpr auto kPollTick =
    1s;  // abort and link ends wake a poll at once; this is for the unforeseen
constexpr std::uint32_t kOperationMagic = 0x52554254;  // "RUBT"

enum class OperationKind : std::uint32_t {
  kReduce = 1,
  kGather = 2,      // a message that goes round the ring
  kGatherUp = 3,    // all messages of a subtree, to its root's parent
  kGatherDown = 4,  // all messages, to a child
};

// Members that lost step with each other are found at once instead of adding the wrong bytes.
struct Header {
  std::uint32_t magic = kOperationMagic;
  OperationKind kind = OperationKind::kReduce;
  std::uint64_t generation = 0;
  std::uint64_t operation = 0;
  std::uint64_t size = 0;  // elements to reduce, or bytes of the message that follows
  bool operator==(const Header&) const = default;
};
static_assert(sizeof(Header) == 32);

// A member at the other end of a link.
struct Neighbour {
  Link* link = nullptr;
  std::uint32_t rank = 0;
};

struct Failure {
  std::uint32_t rank = 0;  // of the peer whose link failed
  Error error;
};

}  // namespace rubato::worker
