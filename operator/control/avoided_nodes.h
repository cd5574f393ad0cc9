// Nodes that a job gets nothing new on for a while, because a pod of it was of no use there: it was
// not made, not started or not heard of in time, or its worker cannot take part. They stand in
// status.avoidedNodes, so that a new leader neither tries them at once nor forgets how often they
// were tried. The times there may be of another leader's clock: an `until` beyond the longest wait
// that there is says nothing, and a `since` that is yet to come counts as now. Pure functions.
//
// `patience` is how long a pod may take to come; a row is over when more than twice that was quiet.
#pragma once

#include "operator/api/training_job.h"

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace rubato::control {

constexpr std::string_view kPodGivenUp = "PodGivenUp";  // reason of a pod that did not come in time

constexpr std::string_view kVolumeRefused =
    "VolumeRefused";  // no volume for it there, or not its volume

constexpr Duration kRefusalWait = std::chrono::seconds(30);  // after the first refusal in a row
constexpr Duration kAvoidMost = std::chrono::minutes(30);    // or the first wait, if longer

// A job whose every node refused it holds no GPUs, so waiting costs nobody anything; but one that
// can never run should say so. In this time each node was tried six times (30 s, 1, 2, 4, 8 and
// 16 min), and who was told by the events has had time to put the data, the memory or the nodes
// there.
constexpr Duration kAllRefusedLimit = std::chrono::minutes(30);

struct UselessPod {
  std::string node;
  std::string reason;
  std::string message;
  Duration wait{};  // until the node is tried again, the first time; doubled each time in a row
};

// Several pods of one round count once. Returns until when the node is avoided.
WallTime avoid_node(std::vector<api::AvoidedNode>& nodes, const UselessPod& pod, WallTime now,
                    Duration patience);
void forget_old_rows(std::vector<api::AvoidedNode>& nodes, WallTime now, Duration patience);

// Null: it is not listed.
const api::AvoidedNode* find_avoided(const std::vector<api::AvoidedNode>& nodes,
                                     const std::string& node);
bool is_listed(const std::vector<api::AvoidedNode>& nodes, const std::string& node);
bool is_avoided(const api::AvoidedNode& node, WallTime now, Duration patience);
std::set<std::string> avoided_at(const std::vector<api::AvoidedNode>& nodes, WallTime now,
                                 Duration patience);

// The workers of all that are avoided at `now` refused, for one and the same reason.
struct CommonRefusal {
  std::string reason;
  std::string text;           // the nodes and the last message
  WallTime since{};           // from then on all of them did
  WallTime next_try{};        // the first that may be tried again
  WallTime fails_at{};        // if nothing changes
  bool is_list_full = false;  // there may be more nodes; no more than these are asked
};
std::optional<CommonRefusal> common_refusal(const std::vector<api::AvoidedNode>& nodes,
                                            WallTime now, Duration patience);

}  // namespace rubato::control
