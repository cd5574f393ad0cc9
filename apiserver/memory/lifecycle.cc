#include "apiserver/memory/lifecycle.h"

#include "apiserver/memory/object_meta.h"
#include "apiserver/memory/pod.h"

#include <algorithm>
#include <chrono>

namespace rubato::kube {
namespace {

using json::Value;

constexpr const char* kForeground = "foregroundDeletion";
constexpr const char* kOrphan = "orphan";
constexpr const char* kNamespaces = "namespaces";

std::optional<ApiError> failed_precondition(const ResourceInfo& info, const Value& object,
                                            const DeleteOptions& options) {
  ResourceType type = info.type;
  type.plural = info.type.kind;  // the real server names the kind here
  if (!options.uid.empty() && options.uid != uid_of(object))
    return api_error::conflict(type, name_of(object),
                               "the UID in the precondition (" + options.uid +
                                   ") does not match the UID in record (" + uid_of(object) +
                                   "). The object might have been deleted and then recreated");
  if (!options.resource_version.empty() && options.resource_version != resource_version_of(object))
    return api_error::conflict(
        type, name_of(object),
        "the ResourceVersion in the precondition (" + options.resource_version +
            ") does not match the ResourceVersion in record (" + resource_version_of(object) +
            "). The object might have been modified");
  return std::nullopt;
}

void set_propagation(Value& object, const std::string& propagation) {
  if (is_deleting(object) && propagation == "Background") return;
  remove_finalizer(object, kForeground);
  remove_finalizer(object, kOrphan);
  if (propagation == "Foreground") add_finalizer(object, kForeground);
  if (propagation == "Orphan") add_finalizer(object, kOrphan);
}

Value without_owner(Value object, const std::string& uid) {
  Value left = Value::array();
  for (const Value& owner : object["metadata"]["ownerReferences"].items())
    if (owner["uid"].string_view_or("") != uid) left.push_back(owner);
  if (left.size() == 0)
    object.at("metadata").erase("ownerReferences");
  else
    object.at("metadata").set("ownerReferences", std::move(left));
  return object;
}

}  // namespace

Answer<Removal> Lifecycle::remove(const ResourceInfo& info, const std::string& key,
                                  const DeleteOptions& options, bool dry_run) {
  const StoreId id{info.storage_id, key};
  const Value* found = store_.find(id);
  if (found == nullptr) {
    const std::size_t slash = key.rfind('/');
    return api_error::not_found(info.type,
                                slash == std::string::npos ? key : key.substr(slash + 1));
  }
  Value object = *found;
  if (auto refused = failed_precondition(info, object, options)) return *refused;
  const std::int64_t grace =
      info.storage_id == "pods" ? pod::grace_seconds(object, options.grace_period_seconds) : 0;
  if (dry_run) return Removal{std::move(object), true};
  set_propagation(object, options.propagation);
  Removal removal = begin(info, id, std::move(object), grace);
  settle();
  if (const Value* left = store_.find(id); left != nullptr && !removal.gone)
    removal.object = *left;
  else
    removal.gone = true;
  return removal;
}

// Erases the object, or marks it as terminating when finalizers, grace or content hold it.
Removal Lifecycle::begin(const ResourceInfo& info, const StoreId& id, Value object,
                         std::int64_t grace) {
  const bool deleting = is_deleting(object);
  const std::int64_t left = object["metadata"]["deletionGracePeriodSeconds"].int_or(0);
  const bool holds_content = id.kind == kNamespaces || id.kind == kDefinitions;
  const bool held = object["metadata"]["finalizers"].size() > 0 || holds_content;
  if (grace == 0 && !held) {
    erase(id, object);
    return {std::move(object), true};
  }
  if (!deleting || grace < left) {
    Value& meta = object.at("metadata");
    const WallTime now = clock_.wall();
    const std::chrono::seconds most = std::chrono::floor<std::chrono::seconds>(kLastTime - now);
    meta.set("deletionTimestamp", to_rfc3339(now + std::min(std::chrono::seconds(grace), most)));
    meta.set("deletionGracePeriodSeconds", grace);
    if (info.has_generation && !deleting) meta.set("generation", meta["generation"].int_or(0) + 1);
    if (id.kind == kNamespaces) object.at("status").set("phase", "Terminating");
  }
  if (const Value* now = store_.find(id); now == nullptr || !(*now == object))
    object = store_.put(id, std::move(object));
  pending_.push_back(id);
  return {std::move(object), false};
}

void Lifecycle::erase(const StoreId& id, Value last) {
  const std::string uid = uid_of(last);
  const std::string ns = namespace_of(last);
  const Value owners = last["metadata"]["ownerReferences"];
  const std::vector<StoreId> dependents = store_.dependents(uid);
  if (id.kind == kDefinitions) registry_.uninstall(name_of(last));
  store_.erase(id, std::move(last));
  pending_.insert(pending_.end(), dependents.begin(), dependents.end());
  for (const Value& owner : owners.items())
    if (const StoreId* up = store_.by_uid(owner["uid"].string_or(""))) pending_.push_back(*up);
  if (!ns.empty()) pending_.push_back({kNamespaces, ns});
  if (store_.find({kDefinitions, id.kind}) != nullptr) pending_.push_back({kDefinitions, id.kind});
}

void Lifecycle::after_write(const StoreId& id) {
  if (id.kind == kDefinitions)
    if (const Value* crd = store_.find(id)) registry_.install(*crd);
  pending_.push_back(id);
  settle();
}

void Lifecycle::settle() {
  if (settling_) return;
  settling_ = true;
  while (!pending_.empty()) {
    const StoreId id = pending_.front();
    pending_.pop_front();
    if (store_.find(id) == nullptr) continue;
    if (is_deleting(*store_.find(id))) {
      if (id.kind == kNamespaces || id.kind == kDefinitions) advance_container(id);
      if (store_.find(id) != nullptr) advance_owner(id);
      if (store_.find(id) != nullptr) finish_if_done(id);
    } else {
      collect(id);
    }
  }
  settling_ = false;
}

// Deletes an object whose owners are all gone; drops references to those that are.
void Lifecycle::collect(const StoreId& id) {
  const Value object = *store_.find(id);
  const Value& owners = object["metadata"]["ownerReferences"];
  if (owners.size() == 0) return;
  Value kept = object;
  std::size_t alive = 0;
  for (const Value& owner : owners.items()) {
    const std::string uid = owner["uid"].string_or("");
    if (store_.by_uid(uid) != nullptr)
      ++alive;
    else
      kept = without_owner(std::move(kept), uid);
  }
  if (alive == owners.size()) return;
  if (alive > 0) {
    store_.put(id, std::move(kept));
    return;
  }
  const InfoPtr info = registry_.of_storage(id.kind);
  if (info == nullptr) return;
  const std::int64_t grace = id.kind == "pods" ? pod::grace_seconds(object, -1) : 0;
  begin(*info, id, object, grace);
}

// An owner that waits for its dependents (foreground), or leaves them behind (orphan).
void Lifecycle::advance_owner(const StoreId& id) {
  Value object = *store_.find(id);
  const std::string uid = uid_of(object);
  if (has_finalizer(object, kOrphan)) {
    for (const StoreId& dependent : store_.dependents(uid))
      store_.put(dependent, without_owner(*store_.find(dependent), uid));
    remove_finalizer(object, kOrphan);
    store_.put(id, std::move(object));
    return;
  }
  if (!has_finalizer(object, kForeground)) return;
  bool blocked = false;
  for (const StoreId& dependent : store_.dependents(uid)) {
    const Value child = *store_.find(dependent);
    bool blocks = false;
    bool other_owner = false;
    for (const Value& owner : child["metadata"]["ownerReferences"].items()) {
      const std::string owner_uid = owner["uid"].string_or("");
      if (owner_uid == uid)
        blocks = owner["blockOwnerDeletion"].bool_or(false);
      else
        other_owner = other_owner || store_.by_uid(owner_uid) != nullptr;
    }
    if (other_owner) {
      store_.put(dependent, without_owner(child, uid));
      continue;
    }
    const InfoPtr info = registry_.of_storage(dependent.kind);
    if (!is_deleting(child) && info != nullptr) {
      Value victim = child;
      if (!store_.dependents(uid_of(child)).empty()) add_finalizer(victim, kForeground);
      begin(*info, dependent, std::move(victim),
            dependent.kind == "pods" ? pod::grace_seconds(child, -1) : 0);
    }
    blocked = blocked || (blocks && store_.find(dependent) != nullptr);
  }
  if (blocked || store_.find(id) == nullptr) return;
  object = *store_.find(id);
  remove_finalizer(object, kForeground);
  store_.put(id, std::move(object));
}

std::vector<StoreId> Lifecycle::content_of(const StoreId& id) const {
  std::vector<StoreId> out;
  if (id.kind == kDefinitions) {
    for (const auto& [key, object] : store_.objects(id.key)) out.push_back({id.key, key});
    return out;
  }
  const std::string prefix = id.key + "/";
  for (const std::string& kind : store_.kinds()) {
    const ObjectStore::Objects& objects = store_.objects(kind);
    for (auto it = objects.lower_bound(prefix);
         it != objects.end() && it->first.starts_with(prefix); ++it)
      out.push_back({kind, it->first});
  }
  return out;
}

void Lifecycle::advance_container(const StoreId& id) {
  for (const StoreId& inner : content_of(id)) {
    const Value* object = store_.find(inner);
    const InfoPtr info = registry_.of_storage(inner.kind);
    if (object == nullptr || info == nullptr || is_deleting(*object)) continue;
    begin(*info, inner, *object, inner.kind == "pods" ? pod::grace_seconds(*object, -1) : 0);
  }
}

void Lifecycle::finish_if_done(const StoreId& id) {
  const Value object = *store_.find(id);
  const Value& meta = object["metadata"];
  if (meta["finalizers"].size() > 0) return;
  if (meta["deletionGracePeriodSeconds"].int_or(0) > 0) return;
  if ((id.kind == kNamespaces || id.kind == kDefinitions) && !content_of(id).empty()) return;
  erase(id, object);
}

}  // namespace rubato::kube
