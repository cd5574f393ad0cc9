// ObjectStore: objects of all kinds under one resourceVersion, with a bounded history per kind from
// which watches are served, an index by uid and by owner uid, and a commit hook for the journal. It
// knows nothing of API rules. Not thread-safe: MemoryServer's mutex guards it.
#pragma once

#include "common/json.h"
#include "kube/client.h"

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace rubato::kube {

// "ns/name" or "name": the order of a listing, as in etcd.
std::string store_key(const std::string& ns, const std::string& name);

struct StoreId {
  std::string kind;  // ResourceInfo::storage_id
  std::string key;   // store_key
  auto operator<=>(const StoreId&) const = default;
};

struct StoredChange {
  std::uint64_t version = 0;
  EventType type = EventType::kAdded;
  json::Value object;  // of a deletion: the last state, with the version of the deletion
  json::Value before;  // null for kAdded
};

class ObjectStore {
 public:
  using Objects = std::map<std::string, json::Value>;
  using Commit = std::function<Status(const StoreId&, std::uint64_t version, const json::Value*)>;
  // Versions of a store that was restored go on this far above those it knows: clients may hold
  // some that it does not.
  static constexpr std::uint64_t kVersionBump = 1000;

  explicit ObjectStore(std::size_t history_limit) : history_limit_(history_limit) {}

  std::uint64_t version() const { return version_; }
  const json::Value* find(const StoreId& id) const;
  const Objects& objects(const std::string& kind) const;
  std::vector<std::string> kinds() const;

  // Stores `object` with the next resourceVersion and returns what was stored.
  json::Value put(const StoreId& id, json::Value object);
  // Removes it; the event carries `last` (its final state) with the deletion's resourceVersion.
  json::Value erase(const StoreId& id, json::Value last);

  // Changes of a kind, oldest first; complete for versions above floor().
  const std::deque<StoredChange>& history(const std::string& kind) const;
  std::uint64_t floor(const std::string& kind) const;

  // `wake` runs at every change of the kind, under the caller's mutex: it must only signal.
  std::uint64_t subscribe(const std::string& kind, std::function<void()> wake);
  void unsubscribe(const std::string& kind, std::uint64_t id);

  const StoreId* by_uid(const std::string& uid) const;
  std::vector<StoreId> dependents(const std::string& owner_uid) const;

  void on_commit(Commit commit) { commit_ = std::move(commit); }
  // The first failure of the commit hook, which is not called after it: what was stored since is in
  // memory alone.
  const std::optional<Error>& lost() const { return lost_; }
  // Reloading: no events, no commit; history before `version` counts as lost.
  void restore(const StoreId& id, json::Value object);
  void restore_version(std::uint64_t version);
  // All objects, and the way back to them: as a snapshot of etcd is restored with --bump-revision
  // and --mark-compacted. Versions go on above all that were given, and every watch ends with 410.
  using Backup = std::vector<std::pair<StoreId, json::Value>>;
  Backup backup() const;
  void go_back_to(const Backup& backup);

 private:
  struct Table {
    Objects objects;
    std::deque<StoredChange> history;
    std::uint64_t floor = 0;
    std::map<std::uint64_t, std::function<void()>> wakes;
  };
  void record(Table& table, StoredChange change);
  void commit(const StoreId& id, const json::Value* object);
  void index(const StoreId& id, const json::Value& object);
  void unindex(const StoreId& id, const json::Value& object);

  std::size_t history_limit_;
  std::uint64_t version_ = 0;
  std::uint64_t floor_ = 0;
  std::uint64_t next_subscription_ = 0;
  std::map<std::string, Table> tables_;
  std::map<std::string, StoreId> by_uid_;
  std::map<std::string, std::set<StoreId>> by_owner_;
  Commit commit_;
  std::optional<Error> lost_;
};

}  // namespace rubato::kube
