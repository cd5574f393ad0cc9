// WriteTracker: read your own writes. Remembers, per key, the resourceVersion that the last write
// to each resource type returned; a reconcile that runs before the informers have caught up would
// act on the past. Cheaper and simpler than expectations (compare KEP-5647). Thread-safe.
//
//   tracker.note(key, "pods", resource_version_of(created));
//   if (tracker.is_behind(key, "pods", pods.store().version())) return
//   Outcome::requeue_after(50ms);
#pragma once

#include "operator/kube/objects/meta.h"

#include <map>
#include <mutex>
#include <string>

namespace rubato::kube {

class WriteTracker {
 public:
  void note(const Key& key, const std::string& plural, const std::string& version) {
    std::lock_guard lock(mutex_);
    std::string& last = written_[key][plural];
    if (is_older_version(last, version)) last = version;
  }
  // True while `seen` (Store::version()) is older than our last write. Forgets what was caught up.
  bool is_behind(const Key& key, const std::string& plural, std::string_view seen) {
    std::lock_guard lock(mutex_);
    const auto at = written_.find(key);
    if (at == written_.end()) return false;
    const auto version = at->second.find(plural);
    if (version == at->second.end()) return false;
    if (is_older_version(seen, version->second)) return true;
    at->second.erase(version);
    if (at->second.empty()) written_.erase(at);
    return false;
  }
  void forget(const Key& key) {
    std::lock_guard lock(mutex_);
    written_.erase(key);
  }

 private:
  std::mutex mutex_;
  std::map<Key, std::map<std::string, std::string>> written_;
};

}  // namespace rubato::kube
