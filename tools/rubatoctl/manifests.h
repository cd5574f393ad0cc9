// TrainingJobs as manifests: what `apply` sends, and what is in one. Pure functions.
#pragma once

#include "common/json.h"

#include <string>
#include <vector>

namespace rubato::ctl {

inline constexpr const char* kLastApplied = "kubectl.kubernetes.io/last-applied-configuration";

// The documents of a file, with the items of a List each for itself. kInvalid names what lacks, and
// what of the metadata is of another type than it has to be.
Result<std::vector<json::Value>> read_manifests(const std::string& text);

// The manifest with kubectl's annotation that remembers it, so that both may be used in turn.
json::Value with_last_applied(const json::Value& manifest);

// The merge patch (RFC 7386) that brings the live object to what the manifest says: what it has is
// set, what it had last time and has no more is removed, what others set stays. Null: no change.
json::Value three_way_patch(const json::Value& last, const json::Value& manifest,
                            const json::Value& live);

// Where an object of a manifest goes: where it says, else to `usual`. kInvalid: it names another
// namespace than `asked`, the one of -n ("": not given).
Result<std::string> namespace_for(const json::Value& manifest, const std::string& asked,
                                  const std::string& usual);

// The container that trains: the one called "worker", else the first; null: there is none.
const json::Value& worker_of(const json::Value& job);

// A server's refusal for people: each cause of "x is invalid: [a, b]" on a line of its own, and of
// a refused patch what follows the object that the server quotes.
std::string readable_refusal(const std::string& message);

}  // namespace rubato::ctl
