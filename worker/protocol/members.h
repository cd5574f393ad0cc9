// A Form as a change of what its worker knows. All members of a generation of thousands are a
// hundred kilobytes, for each of thousands; who is lost or joins is a few bytes. Both sides of the
// wire use these functions, so that they are part of the protocol.
// Private to those who include the generated wire messages.
#pragma once

#include "worker/protocol/wire.pb.h"

#include <cstdint>

namespace rubato::wire {

using Members = google::protobuf::RepeatedPtrField<Member>;

// Of all that a member says of itself, in order.
std::uint64_t digest_of(const Members& members);

// `form`, which names all members, becomes a change from `known`, those of generation `base` (their
// addresses are not looked at). Shares are left out: each is told its own. Cost: O(members). False,
// and it stays as it is, when they have nobody in common at the front.
bool name_change(Form& form, std::uint64_t base, const Members& known);

// A change names all members again. False, and it stays as it is, when `known` are not those of the
// generation that it changes, or the result is not what was meant. At most `known` and what the
// Form names are taken together, whatever it says.
bool name_all(Form& form, std::uint64_t base, const Members& known);

}  // namespace rubato::wire
