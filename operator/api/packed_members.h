// The workers of a big job in few bytes: a list of 4 000 members as JSON is 600 KB, twice that
// while one generation follows another, and etcd takes objects of 1.5 MiB. Packed it is 40 bytes a
// member.
#pragma once

#include "common/result.h"
#include "operator/api/job_status.h"

#include <string>

namespace rubato::api {

// Jobs of up to so many members keep them as lists, which a person can read.
constexpr std::size_t kListedMembersMost = 64;
// Of what a packed text unfolds to: some 65 000 members.
constexpr std::size_t kUnpackedBytesMost = 8U << 20U;

struct Members {
  std::vector<MembershipMember> members;
  std::vector<MembershipMember> previous;
  bool operator==(const Members&) const = default;
};

// Base64 of a zlib stream of JSON: {"members":[[pod, podUID, node, slot, incarnation, gpuType], …],
// "previous":[…]}, where one of `previous` that is in `members` too is its rank there.
std::string pack(const Members& members);

// kInvalid: not what pack() made, or too long.
Result<Members> unpack(const std::string& text);

}  // namespace rubato::api
