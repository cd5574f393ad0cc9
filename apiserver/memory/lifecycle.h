// Lifecycle: how objects end. Preconditions, grace of pods, finalizers, propagation, garbage
// collection by owner uid, namespaces and custom resource definitions that take their content with
// them. Collection happens at once, within the request that caused it. Not thread-safe:
// MemoryServer's mutex guards it.
#pragma once

#include "apiserver/memory/object_store.h"
#include "apiserver/memory/registry.h"
#include "apiserver/memory/write_rules.h"

#include <deque>
#include <string>

namespace rubato::kube {

struct Removal {
  json::Value object;  // the last state, or the present one while it is still terminating
  bool gone = false;
};

class Lifecycle {
 public:
  Lifecycle(Registry& registry, ObjectStore& store, WriteRules& rules, Clock& clock)
      : registry_(registry), store_(store), rules_(rules), clock_(clock) {}

  Answer<Removal> remove(const ResourceInfo& info, const std::string& key,
                         const DeleteOptions& options, bool dry_run);
  // After any write: follows a CRD, completes deletions whose last finalizer went, and collects
  // dependents, until nothing more follows.
  void after_write(const StoreId& id);

 private:
  Removal begin(const ResourceInfo& info, const StoreId& id, json::Value object,
                std::int64_t grace);
  void erase(const StoreId& id, json::Value last);
  void settle();
  void collect(const StoreId& id);            // its owners may be gone
  void advance_owner(const StoreId& id);      // foregroundDeletion, orphan
  void advance_container(const StoreId& id);  // a terminating namespace or CRD
  std::vector<StoreId> content_of(const StoreId& id) const;
  void finish_if_done(const StoreId& id);

  Registry& registry_;
  ObjectStore& store_;
  WriteRules& rules_;
  Clock& clock_;
  std::deque<StoreId> pending_;
  bool settling_ = false;
};

}  // namespace rubato::kube
