// Client: what controllers see of a Kubernetes API server. Two implementations: RestClient (a real
// API server) and MemoryServer's client (the in-memory API server, for simulation and for
// `rubatoctl local`). One conformance suite runs against both; a difference is a defect of the
// in-memory one. Generic: nothing here knows Rubato's own resources.
//
// All calls block the calling task (Executor) at most `RequestLimits::timeout`. Thread-safe.
// Errors carry a Code from the table in errors.h and, as reason(), the `reason` of the server's
// Status ("NotFound", "AlreadyExists", "Invalid" …).
#pragma once

#include "common/clock.h"
#include "common/json.h"
#include "common/result.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace rubato::kube {

// Which resource, as in a URL: /apis/GROUP/VERSION/[namespaces/NS/]PLURAL.
struct ResourceType {
  std::string group;  // "" for core
  std::string version;
  std::string plural;
  std::string kind;
  bool namespaced = true;
  bool operator==(const ResourceType&) const = default;
  std::string api_version() const { return group.empty() ? version : group + "/" + version; }
};

// namespace/name; the namespace is empty for cluster-scoped objects.
struct Key {
  std::string ns;
  std::string name;
  auto operator<=>(const Key&) const = default;
};
std::string to_string(const Key& key);  // "ns/name" or "name"
Key parse_key(std::string_view text);
// kInvalid where no path leads to one object: without its name the path is that of all objects, and
// "." and ".." mean another folder to whatever stands between. Each call of a Client that is about
// one object looks at its key first.
Status check_key(const Key& key);

struct ListOptions {
  std::string label_selector;
  std::string field_selector;
  std::int64_t limit = 0;  // 0: no paging
  std::string continue_token;
  // Empty: most recent (quorum); "0": any cached; else not older than.
  std::string resource_version;
  // The caller decodes bytes: the REST client then fills ObjectList::raw_items instead of items. A
  // client without bytes (in memory) may fill items all the same.
  bool raw = false;
};

struct ObjectList {
  std::vector<json::Value> items;
  std::vector<std::string> raw_items;  // JSON of each object
  std::string resource_version;
  std::string continue_token;
};

struct WatchOptions {
  std::string label_selector;
  std::string field_selector;
  std::string resource_version;  // start after this version
  bool allow_bookmarks = true;
  std::chrono::seconds timeout{0};  // 0: the client picks it, at random
};

enum class EventType { kAdded, kModified, kDeleted, kBookmark };

// One watch event. REST watches carry the object's bytes so that hot paths can decode a projection
// without building a Value; the in-memory server carries the Value. object() gives it either way.
struct WatchEvent {
  EventType type = EventType::kAdded;
  json::Value value;
  std::string raw;  // JSON of the object alone; empty when `value` is set
  Result<json::Value> object() const;
};

// An open watch; one task reads it. Destroying it closes it.
class Watch {
 public:
  virtual ~Watch() = default;
  // The next event. kTimeout: none until `deadline` (the watch goes on). kUnavailable: the stream
  // ended, watch again from the last resourceVersion. kExpired (410): list again.
  virtual Result<WatchEvent> next(MonoTime deadline) = 0;
  // Ends a blocked next() with kCancelled; from any task.
  virtual void stop() = 0;
};

enum class PatchType { kJson, kMerge, kApply, kStrategicMerge };

struct WriteOptions {
  std::string subresource;  // "status", "scale", "binding" …; empty for the object itself
  std::string field_manager = "rubato-operator";
  bool dry_run = false;
  bool force = false;            // server-side apply only
  std::string field_validation;  // "", "Strict", "Warn", "Ignore"
};

struct DeleteOptions {
  std::string uid;                         // precondition; empty: none
  std::string resource_version;            // precondition; empty: none
  int grace_period_seconds = -1;           // -1: the object's default
  std::string propagation = "Background";  // Background | Foreground | Orphan
};

struct RequestLimits {
  std::chrono::seconds timeout{15};
  // Of requests that change something; 0: `timeout`. A leader gives it less than its Lease, so that
  // no write of its can be under way when another leads.
  Duration write_timeout{0};
};

class Client {
 public:
  virtual ~Client() = default;

  virtual Result<json::Value> get(const ResourceType& type, const Key& key,
                                  const std::string& subresource = "") = 0;
  // `ns` empty: all namespaces.
  virtual Result<ObjectList> list(const ResourceType& type, const std::string& ns,
                                  const ListOptions& options) = 0;
  virtual Result<std::unique_ptr<Watch>> watch(const ResourceType& type, const std::string& ns,
                                               const WatchOptions& options) = 0;
  // Creates `object` (its metadata names it). With a subresource ("binding", "eviction") posts to
  // that subresource of the object named in its metadata.
  virtual Result<json::Value> create(const ResourceType& type, const std::string& ns,
                                     const json::Value& object,
                                     const WriteOptions& options = {}) = 0;
  // Replaces; the body's metadata.resourceVersion is the optimistic lock.
  virtual Result<json::Value> update(const ResourceType& type, const json::Value& object,
                                     const WriteOptions& options = {}) = 0;
  // A failed `test` of our own JSON patch comes back as kConflict with reason "TestFailed".
  virtual Result<json::Value> patch(const ResourceType& type, const Key& key, PatchType kind,
                                    const json::Value& body, const WriteOptions& options = {}) = 0;
  virtual Status remove(const ResourceType& type, const Key& key,
                        const DeleteOptions& options = {}) = 0;
};

// Types that the operator and its tools use.
namespace types {
extern const ResourceType kPod, kNode, kNamespace, kSecret, kConfigMap, kService, kEvent, kLease,
    kPersistentVolumeClaim, kPersistentVolume, kStorageClass, kPriorityClass,
    kCustomResourceDefinition, kServiceAccount;
}  // namespace types

// Shorthands for metadata.
std::string name_of(const json::Value& object);
std::string namespace_of(const json::Value& object);
std::string uid_of(const json::Value& object);
std::string resource_version_of(const json::Value& object);
Key key_of(const json::Value& object);

}  // namespace rubato::kube
