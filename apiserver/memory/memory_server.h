// MemoryServer: a Kubernetes API server in memory, for simulation and for the local mode. It holds
// objects, one resourceVersion, uids, conflicts, watches with history, subresources, finalizers,
// garbage collection, custom types from their CRDs. What it does and what it leaves out: README.md.
//
// Thread-safe: one mutex, no call waits. Deterministic: time and randomness are parameters. Errors
// are the real server's Status texts. Cost: a write is O(size of the object + watchers of its
// kind), a list is O(objects of the kind). Values are shared copy-on-write, nothing is serialised.
#pragma once

#include "apiserver/memory/api_error.h"
#include "apiserver/memory/lifecycle.h"
#include "apiserver/memory/object_store.h"
#include "apiserver/memory/registry.h"
#include "apiserver/memory/write_rules.h"
#include "common/clock.h"
#include "common/rng.h"
#include "kube/selector.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace rubato::kube {

struct ServerOptions {
  std::uint64_t seed = 1;             // uids and generated names
  std::size_t history_events = 2048;  // per kind; an older watch gets 410
  Duration bookmark_period = 60s;
  Duration event_lifetime = 1h;  // Event objects are dropped this long after their last write
};

struct Listing {
  std::vector<json::Value> items;
  std::string resource_version;
  std::string continue_token;
  std::int64_t remaining = -1;  // items after this page; -1: unknown (selectors) or none
};

struct WatchRequest {
  std::string ns;  // empty: all
  std::string label_selector;
  std::string field_selector;
  std::string resource_version;  // "" and "0": begin with ADDED for what exists
  bool bookmarks = false;
  bool send_initial_events = false;  // WatchList: what exists, then a marked bookmark
  std::string match;                 // resourceVersionMatch
};

struct WatchItem {
  EventType type = EventType::kAdded;
  json::Value object;
};

class MemoryServer;

// An open watch. poll() never waits; set_wake's callback says that a poll may now succeed. A watch
// that falls behind the history ends with 410. The server must outlive it.
class Watcher {
 public:
  ~Watcher();
  // Nothing yet: nullopt. Thread-safe against the server, not against another poll.
  Answer<std::optional<WatchItem>> poll();
  // Runs under the server's mutex: it must only signal, and may not call the server. Null: none.
  void set_wake(std::function<void()> wake);
  // When the next bookmark is due, for waiters.
  MonoTime bookmark_due() const { return bookmark_due_; }

 private:
  friend class MemoryServer;
  Watcher(MemoryServer& server, InfoPtr info, WatchRequest request);
  std::optional<WatchItem> from_change(const StoredChange& change) const;
  bool matches(const json::Value& object) const;
  json::Value bookmark(bool initial_end) const;

  MemoryServer& server_;
  InfoPtr info_;
  WatchRequest request_;
  Selector labels_;
  Selector fields_;
  std::uint64_t cursor_ = 0;          // last version seen
  std::vector<json::Value> initial_;  // still to be sent as ADDED, in reverse
  bool initial_mark_ = false;         // the marked bookmark is still to be sent
  MonoTime bookmark_due_;
  std::uint64_t subscription_ = 0;
};

struct Written {
  json::Value object;
  bool created = false;
  std::vector<std::string> warnings;
};

class MemoryServer {
 public:
  explicit MemoryServer(Clock& clock, ServerOptions options = {});

  // What is served; null when unknown.
  InfoPtr resource(const ResourceType& type) const;
  std::vector<InfoPtr> resources() const;
  std::uint64_t resource_version() const;

  Answer<json::Value> get(const ResourceType& type, const Key& key,
                          const std::string& subresource = "") const;
  // `match`: resourceVersionMatch.
  Answer<Listing> list(const ResourceType& type, const std::string& ns, const ListOptions& options,
                       const std::string& match = "");
  Answer<std::unique_ptr<Watcher>> watch(const ResourceType& type, const WatchRequest& request);
  Answer<Written> create(const ResourceType& type, const std::string& ns, const json::Value& object,
                         const WriteOptions& options = {});
  // `key` names the object when the body does not (requests over the wire).
  Answer<Written> update(const ResourceType& type, const Key& key, const json::Value& object,
                         const WriteOptions& options = {});
  Answer<Written> patch(const ResourceType& type, const Key& key, PatchType kind,
                        const json::Value& body, const WriteOptions& options = {});
  Answer<Removal> remove(const ResourceType& type, const Key& key,
                         const DeleteOptions& options = {}, bool dry_run = false);
  // Removes what matches; the objects as they were.
  Answer<std::vector<json::Value>> remove_collection(const ResourceType& type,
                                                     const std::string& ns,
                                                     const ListOptions& which,
                                                     const DeleteOptions& options = {},
                                                     bool dry_run = false);

  // Native rules that stand in for the CEL rules of a CRD ("trainingjobs.rubato.dev").
  void set_validator(const std::string& storage_id, Validator validator);

  // For the journal: `fill` restores a saved state before the first request; `commit` runs at every
  // change, under the mutex. Missing namespaces and priority classes are created afterwards. A
  // write whose commit fails is answered with 500, and so is every later one.
  void load(const std::function<void(ObjectStore&)>& fill, ObjectStore::Commit commit);
  void follow(ObjectStore::Commit commit);
  // All objects, for compaction; runs under the mutex.
  void visit(const std::function<void(const ObjectStore&)>& reader) const;
  // Back to what ObjectStore::backup() gave; nobody is told but by watches that end.
  void go_back_to(const ObjectStore::Backup& backup);

  Clock& clock() const { return clock_; }

 private:
  friend class Watcher;
  struct Page {
    std::uint64_t id = 0;
    std::uint64_t version = 0;
    std::string place;              // the kind and the namespace that were asked for
    std::vector<json::Value> rest;  // in reverse
  };
  using Modify = std::function<Answer<json::Value>(json::Value current)>;

  static StoreId id_of(const ResourceInfo& info, const Key& key);
  Answer<InfoPtr> known(const ResourceType& type) const;
  // What `write` answers, unless the journal cannot keep it.
  template <class T, class Write>
  Answer<T> kept(const Write& write) const;
  json::Value present(const ResourceInfo& info, const json::Value& stored) const;
  json::Value stored_form(const ResourceInfo& info, json::Value object) const;
  Answer<Written> create_locked(const ResourceInfo& info, const std::string& ns, json::Value object,
                                const WriteOptions& options, bool apply);
  Answer<Written> post_subresource(const ResourceInfo& info, const std::string& ns,
                                   const json::Value& object, const WriteOptions& options);
  Answer<Written> change(const ResourceInfo& info, const Key& key, const Modify& modify,
                         const WriteOptions& options, bool apply, bool put);
  Answer<Written> change_scale(const ResourceInfo& info, const Key& key, const Modify& modify,
                               const WriteOptions& options);
  Answer<json::Value> patched(const ResourceInfo& info, json::Value current, PatchType kind,
                              const json::Value& body) const;
  Answer<Listing> next_page(const ResourceInfo& info, const std::string& place,
                            const ListOptions& options);
  Answer<Listing> finish_page(const ResourceInfo& info, Page page, const ListOptions& options,
                              bool counted);
  json::Value establish(json::Value crd) const;
  void bootstrap();
  void expire_events();

  Clock& clock_;
  const ServerOptions options_;
  mutable std::mutex mutex_;
  Rng rng_;
  Registry registry_;
  ObjectStore store_;
  WriteRules rules_;
  Lifecycle lifecycle_;
  std::vector<Page> pages_;
  std::uint64_t next_page_ = 0;
  MonoTime events_checked_;
};

}  // namespace rubato::kube
