#include "operator/control/avoided_nodes.h"

#include "common/some_of.h"
#include "common/utf8.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>

namespace rubato::control {

namespace {

constexpr std::size_t kNodesNamed = 8;

api::AvoidedNode* find(std::vector<api::AvoidedNode>& nodes, const std::string& node) {
  const auto found = std::ranges::find(nodes, node, &api::AvoidedNode::node);
  return found == nodes.end() ? nullptr : &*found;
}

// The beginning of time: it says nothing.
WallTime until_of(const api::AvoidedNode& node, WallTime now, Duration patience) {
  const WallTime until = node.until.value_or(WallTime{});
  return until > now + std::max(patience, kAvoidMost) ? WallTime{} : until;
}

// The limit counts characters, each of one or more bytes, so this is never too long.
std::string shortened(const std::string& text) {
  constexpr std::string_view kDots = "...";
  if (text.size() <= api::kAvoidedMessageMost) return text;
  return std::string(utf8_prefix(text, api::kAvoidedMessageMost - kDots.size())).append(kDots);
}

bool is_of_worker(const std::string& reason) {
  return reason != kPodGivenUp && reason != kVolumeRefused;
}

// What a worker says of the spec, and a script of runtime pytorch of itself: the same on each node.
constexpr std::array<std::string_view, 16> kOfJob = {
    "BadTraining",          "BatchMismatch",    "GradScaler",        "HiddenState",
    "IterableDataset",      "NoState",          "NotDeterministic",  "NothingToTrain",
    "OverlappingTensors",   "StateChanged",     "StatefulForward",   "UnknownParameter",
    "UnsupportedOptimizer", "UnsupportedState", "UnsupportedTensor", "UnsupportedTrainer"};

// Waiting does not fix these.
Duration limit_of(const std::string& reason) {
  return std::ranges::find(kOfJob, reason) == kOfJob.end() ? kAllRefusedLimit : Duration{0};
}

}  // namespace

WallTime avoid_node(std::vector<api::AvoidedNode>& nodes, const UselessPod& pod, WallTime now,
                    Duration patience) {
  api::AvoidedNode* node = find(nodes, pod.node);
  const auto until = [&](const api::AvoidedNode& one) { return until_of(one, now, patience); };
  if (node != nullptr && until(*node) > now) return until(*node);
  if (node == nullptr) {
    if (nodes.size() >= api::kAvoidedNodesMost)
      nodes.erase(std::ranges::min_element(nodes, {}, until));
    node = &nodes.emplace_back();
    node->node = pod.node;
  }
  const bool is_over = node->times == 0 || now - until(*node) > 2 * patience;
  if (is_over) node->times = 0;
  if (is_over || node->reason != pod.reason || node->since > now) node->since = now;
  ++node->times;
  node->reason = pod.reason;
  node->message = shortened(pod.message);
  const Duration most = std::max(pod.wait, kAvoidMost);
  Duration wait = pod.wait;
  for (int i = 1; i < node->times && wait < most; ++i) wait *= 2;
  node->until = now + std::min(wait, most);
  return *node->until;
}

void forget_old_rows(std::vector<api::AvoidedNode>& nodes, WallTime now, Duration patience) {
  std::erase_if(
      nodes, [&](const auto& node) { return now - until_of(node, now, patience) > 2 * patience; });
}

const api::AvoidedNode* find_avoided(const std::vector<api::AvoidedNode>& nodes,
                                     const std::string& node) {
  const auto found = std::ranges::find(nodes, node, &api::AvoidedNode::node);
  return found == nodes.end() ? nullptr : &*found;
}

bool is_listed(const std::vector<api::AvoidedNode>& nodes, const std::string& node) {
  return find_avoided(nodes, node) != nullptr;
}

bool is_avoided(const api::AvoidedNode& node, WallTime now, Duration patience) {
  return until_of(node, now, patience) > now;
}

std::set<std::string> avoided_at(const std::vector<api::AvoidedNode>& nodes, WallTime now,
                                 Duration patience) {
  std::set<std::string> names;
  for (const auto& node : nodes)
    if (is_avoided(node, now, patience)) names.insert(node.node);
  return names;
}

std::optional<CommonRefusal> common_refusal(const std::vector<api::AvoidedNode>& nodes,
                                            WallTime now, Duration patience) {
  std::vector<const api::AvoidedNode*> refused;
  for (const auto& node : nodes)
    if (is_avoided(node, now, patience)) refused.push_back(&node);
  if (refused.empty() || !is_of_worker(refused.front()->reason)) return std::nullopt;
  std::ranges::sort(refused, {}, &api::AvoidedNode::node);
  CommonRefusal common;
  common.reason = refused.front()->reason;
  common.next_try = until_of(*refused.front(), now, patience);
  common.is_list_full = refused.size() >= api::kAvoidedNodesMost;
  std::vector<std::string> names;
  names.reserve(refused.size());
  for (const api::AvoidedNode* node : refused) {
    if (node->reason != common.reason) return std::nullopt;
    common.since = std::max(common.since, std::min(node->since.value_or(now), now));
    common.next_try = std::min(common.next_try, until_of(*node, now, patience));
    names.push_back(node->node);
  }
  common.text = fmt::format("{}: {}", some_of(names, kNodesNamed), refused.back()->message);
  common.fails_at = common.since + limit_of(common.reason);
  return common;
}

}  // namespace rubato::control
