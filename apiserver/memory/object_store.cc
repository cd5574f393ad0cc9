#include "apiserver/memory/object_store.h"

#include "common/check.h"

namespace rubato::kube {
namespace {

const ObjectStore::Objects kNoObjects;
const std::deque<StoredChange> kNoHistory;

void stamp(json::Value& object, std::uint64_t version) {
  object.at("metadata").set("resourceVersion", std::to_string(version));
}

}  // namespace

std::string store_key(const std::string& ns, const std::string& name) {
  return ns.empty() ? name : ns + "/" + name;
}

const json::Value* ObjectStore::find(const StoreId& id) const {
  const auto table = tables_.find(id.kind);
  if (table == tables_.end()) return nullptr;
  const auto it = table->second.objects.find(id.key);
  return it == table->second.objects.end() ? nullptr : &it->second;
}

const ObjectStore::Objects& ObjectStore::objects(const std::string& kind) const {
  const auto it = tables_.find(kind);
  return it == tables_.end() ? kNoObjects : it->second.objects;
}

std::vector<std::string> ObjectStore::kinds() const {
  std::vector<std::string> out;
  out.reserve(tables_.size());
  for (const auto& [kind, table] : tables_) out.push_back(kind);
  return out;
}

json::Value ObjectStore::put(const StoreId& id, json::Value object) {
  Table& table = tables_.try_emplace(id.kind, Table{{}, {}, floor_, {}}).first->second;
  stamp(object, ++version_);
  const auto it = table.objects.find(id.key);
  StoredChange change{version_, EventType::kAdded, object, {}};
  if (it != table.objects.end()) {
    change.type = EventType::kModified;
    change.before = it->second;
    unindex(id, it->second);
    it->second = object;
  } else {
    table.objects.emplace(id.key, object);
  }
  index(id, object);
  record(table, std::move(change));
  commit(id, &object);
  return object;
}

json::Value ObjectStore::erase(const StoreId& id, json::Value last) {
  const auto found = tables_.find(id.kind);
  CHECK(found != tables_.end());
  Table& table = found->second;
  const auto it = table.objects.find(id.key);
  CHECK(it != table.objects.end());
  stamp(last, ++version_);
  StoredChange change{version_, EventType::kDeleted, last, it->second};
  unindex(id, it->second);
  table.objects.erase(it);
  record(table, std::move(change));
  commit(id, nullptr);
  return last;
}

void ObjectStore::commit(const StoreId& id, const json::Value* object) {
  if (!commit_ || lost_) return;
  if (const Status kept = commit_(id, version_, object); !kept.ok()) lost_ = kept.error();
}

void ObjectStore::record(Table& table, StoredChange change) {
  table.history.push_back(std::move(change));
  while (table.history.size() > history_limit_) {
    table.floor = table.history.front().version;
    table.history.pop_front();
  }
  for (const auto& [id, wake] : table.wakes) wake();
}

const std::deque<StoredChange>& ObjectStore::history(const std::string& kind) const {
  const auto it = tables_.find(kind);
  return it == tables_.end() ? kNoHistory : it->second.history;
}

std::uint64_t ObjectStore::floor(const std::string& kind) const {
  const auto it = tables_.find(kind);
  return it == tables_.end() ? floor_ : it->second.floor;
}

std::uint64_t ObjectStore::subscribe(const std::string& kind, std::function<void()> wake) {
  Table& table = tables_.try_emplace(kind, Table{{}, {}, floor_, {}}).first->second;
  table.wakes.emplace(++next_subscription_, std::move(wake));
  return next_subscription_;
}

void ObjectStore::unsubscribe(const std::string& kind, std::uint64_t id) {
  const auto it = tables_.find(kind);
  if (it != tables_.end()) it->second.wakes.erase(id);
}

const StoreId* ObjectStore::by_uid(const std::string& uid) const {
  const auto it = by_uid_.find(uid);
  return it == by_uid_.end() ? nullptr : &it->second;
}

std::vector<StoreId> ObjectStore::dependents(const std::string& owner_uid) const {
  const auto it = by_owner_.find(owner_uid);
  if (it == by_owner_.end()) return {};
  return {it->second.begin(), it->second.end()};
}

void ObjectStore::index(const StoreId& id, const json::Value& object) {
  by_uid_[uid_of(object)] = id;
  for (const json::Value& owner : object["metadata"]["ownerReferences"].items())
    by_owner_[owner["uid"].string_or("")].insert(id);
}

void ObjectStore::unindex(const StoreId& id, const json::Value& object) {
  by_uid_.erase(uid_of(object));
  for (const json::Value& owner : object["metadata"]["ownerReferences"].items()) {
    const auto it = by_owner_.find(owner["uid"].string_or(""));
    if (it == by_owner_.end()) continue;
    it->second.erase(id);
    if (it->second.empty()) by_owner_.erase(it);
  }
}

void ObjectStore::restore(const StoreId& id, json::Value object) {
  Table& table = tables_[id.kind];
  index(id, object);
  table.objects.insert_or_assign(id.key, std::move(object));
}

ObjectStore::Backup ObjectStore::backup() const {
  Backup all;
  for (const auto& [kind, table] : tables_)
    for (const auto& [key, object] : table.objects) all.push_back({{kind, key}, object});
  return all;
}

void ObjectStore::go_back_to(const Backup& backup) {
  by_uid_.clear();
  by_owner_.clear();
  for (auto& [kind, table] : tables_) {
    table.objects.clear();
    table.history.clear();
  }
  for (const auto& [id, object] : backup) restore(id, object);
  restore_version(version_ + kVersionBump);
  for (auto& [kind, table] : tables_)
    for (const auto& [id, wake] : table.wakes) wake();
}

void ObjectStore::restore_version(std::uint64_t version) {
  version_ = version;
  floor_ = version;
  for (auto& [kind, table] : tables_) table.floor = version;
}

}  // namespace rubato::kube
