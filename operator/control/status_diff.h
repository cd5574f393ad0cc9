// What of an object's status is to be written: what differs, of what this release and the server
// both know. Members at the top that this release does not know are a newer one's, and stay. What
// the server drops, as the CRD is older than this release, is seen by its answers, told of in the
// log once, and left out for kDroppedFor: it would differ, and be written, at each look.
// Thread-safe.
#pragma once

#include "common/clock.h"
#include "common/json.h"
#include "kube/client.h"

#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>

namespace rubato::control {

constexpr auto kDroppedFor = std::chrono::minutes(10);  // then tried again: CRDs are upgraded, too
constexpr auto kUnwrittenFor = std::chrono::seconds(10);  // after a write that failed

class StatusDiff {
 public:
  // The merge patch that turns `seen`, the status as the server has it, into `wanted`, of a kind
  // that has one; empty: there is nothing to write.
  json::Value patch(const kube::ResourceType& type, const json::Value& seen,
                    const json::Value& wanted, MonoTime now);
  // That patch was written: `kept` is the status in the answer.
  void note_written(const kube::ResourceType& type, const json::Value& patch,
                    const json::Value& wanted, const json::Value& kept, MonoTime now);

  // Of objects that are looked at in each round, of which there may be twenty a second: one that
  // could not be written rests.
  void note_unwritten(const kube::ResourceType& type, const std::string& name, MonoTime now);
  bool rests(const kube::ResourceType& type, const std::string& name, MonoTime now);

 private:
  std::mutex mutex_;
  std::map<std::string, std::map<std::string, MonoTime>> dropped_;  // by kind and path: when seen
  std::set<std::string> told_;
  std::map<std::pair<std::string, std::string>, MonoTime> unwritten_;  // by kind and name: when
};

}  // namespace rubato::control
