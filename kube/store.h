// Store: the local copy of one resource type. Readers get immutable objects that stay valid for as
// long as they hold them. Thread-safe; written by the informer alone. Reads cost O(log n); list()
// and by_index() copy pointers, in the order of keys.
#pragma once

#include "common/check.h"
#include "common/json.h"
#include "kube/objects/meta.h"

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace rubato::kube {

// What happened to one object. `before` is null for a new one, `after` for a deleted one (`before`
// is then its last known state).
template <class T>
struct Change {
  std::shared_ptr<const T> before;
  std::shared_ptr<const T> after;
  bool initial = false;  // part of the first list, or of a periodic resync: less urgent
  const T& any() const { return after ? *after : *before; }
  Key key() const { return any().meta.key(); }
};

template <class T>
class Store {
 public:
  using Pointer = std::shared_ptr<const T>;
  using IndexFunction = std::function<std::vector<std::string>(const T&)>;

  // Before the first object arrives. The values of an object may be none or many.
  void add_index(const std::string& name, IndexFunction function) {
    std::lock_guard lock(mutex_);
    CHECK(objects_.empty());
    CHECK(indexes_.emplace(name, Index{std::move(function), {}}).second);
  }

  // Null when there is none.
  Pointer get(const Key& key) const {
    std::lock_guard lock(mutex_);
    const auto at = objects_.find(key);
    return at == objects_.end() ? nullptr : *at;
  }
  std::vector<Pointer> list() const {
    std::lock_guard lock(mutex_);
    return {objects_.begin(), objects_.end()};
  }
  std::vector<Pointer> by_index(const std::string& name, const std::string& value) const {
    std::lock_guard lock(mutex_);
    const auto index = indexes_.find(name);
    CHECK(index != indexes_.end());
    const auto at = index->second.objects.find(value);
    if (at == index->second.objects.end()) return {};
    return {at->second.begin(), at->second.end()};
  }
  std::size_t size() const {
    std::lock_guard lock(mutex_);
    return objects_.size();
  }
  // Read your writes: true once what was written at `version` in a namespace can be read here.
  bool has_seen(std::string_view version, const std::string& ns) const {
    std::lock_guard lock(mutex_);
    auto at = versions_.find(ns);
    if (at == versions_.end()) at = versions_.find("");
    return at != versions_.end() && !is_older_version(at->second, version);
  }

  // For the informer. `scope`: the namespace that the list or event is of; "": all. The version up
  // to which that part of the copy is complete comes from lists, events and bookmarks.
  std::vector<Change<T>> replace(std::vector<Pointer> objects, const std::string& version,
                                 const std::string& scope = "") {
    std::lock_guard lock(mutex_);
    std::vector<Change<T>> changes;
    Objects old = take_all(scope);
    for (auto& object : objects) {
      const auto at = old.find(object->meta.key());
      Pointer before = at == old.end() ? nullptr : *at;
      if (at != old.end()) old.erase(at);
      const bool same = before && before->meta.resource_version == object->meta.resource_version &&
                        before->meta.uid == object->meta.uid &&
                        !written_.contains(object->meta.key());  // handlers have not heard of it
      insert(object);
      if (!same) changes.push_back(Change<T>{std::move(before), std::move(object)});
    }
    for (const auto& gone : old) changes.push_back(Change<T>{gone, nullptr});
    versions_[scope] = version;
    std::erase_if(written_, [&](const auto& entry) { return is_of(scope, entry.first.ns); });
    return changes;
  }
  // Nothing while a later write of ours stands: that one's event is still to come.
  std::optional<Change<T>> put(Pointer object, const std::string& scope = "") {
    std::lock_guard lock(mutex_);
    const std::string& version = versions_[scope] = object->meta.resource_version;
    if (const auto at = written_.find(object->meta.key()); at != written_.end()) {
      if (is_older_version(version, at->second.version)) return std::nullopt;
      written_.erase(at);
    }
    Pointer before = take(object->meta.key());
    insert(object);
    return Change<T>{std::move(before), std::move(object)};
  }
  // The answer to a write of ours. Only over an older state of the same object: a deletion that was
  // seen meanwhile is not undone. None: it takes nobody's place. `answer`: what it was decoded
  // from, where events come as values, too.
  std::optional<Change<T>> put_written(const Pointer& object, const json::Value& answer = {}) {
    std::lock_guard lock(mutex_);
    const auto at = objects_.find(object->meta.key());
    if (at == objects_.end() || (*at)->meta.uid != object->meta.uid ||
        !is_older_version((*at)->meta.resource_version, object->meta.resource_version))
      return std::nullopt;
    written_[object->meta.key()] = {object->meta.resource_version, answer};
    Pointer before = take(object->meta.key());
    insert(object);
    return Change<T>{std::move(before), object};
  }
  // Whether an event shows that answer (then the object as it is held), or what was before it.
  Pointer written_as(const Key& key, const json::Value& shown) const {
    std::lock_guard lock(mutex_);
    const auto at = written_.find(key);
    return at != written_.end() && at->second.answer == shown ? *objects_.find(key) : nullptr;
  }
  bool is_before_written(const Key& key, std::string_view version) const {
    std::lock_guard lock(mutex_);
    const auto at = written_.find(key);
    return at != written_.end() && is_older_version(version, at->second.version);
  }
  // `last`: the object as the deletion event shows it.
  Change<T> erase(Pointer last, const std::string& scope = "") {
    std::lock_guard lock(mutex_);
    take(last->meta.key());
    written_.erase(last->meta.key());
    versions_[scope] = last->meta.resource_version;
    return Change<T>{std::move(last), nullptr};
  }
  void set_version(const std::string& version, const std::string& scope = "") {
    std::lock_guard lock(mutex_);
    versions_[scope] = version;
  }

 private:
  struct ByKey {
    using is_transparent = void;  // NOLINT(readability-identifier-naming): the library's word
    static auto tied(const Key& key) { return std::tie(key.ns, key.name); }
    static auto tied(const Pointer& object) { return std::tie(object->meta.ns, object->meta.name); }
    template <class A, class B>
    bool operator()(const A& a, const B& b) const {
      return tied(a) < tied(b);
    }
  };
  using Objects = std::set<Pointer, ByKey>;
  struct Written {
    std::string version;
    json::Value answer;
  };
  struct Index {
    IndexFunction function;
    std::unordered_map<std::string, Objects> objects;
  };

  static bool is_of(const std::string& scope, const std::string& ns) {
    return scope.empty() || scope == ns;
  }
  Objects take_all(const std::string& scope) {
    if (!scope.empty()) {
      Objects taken;
      for (const Pointer& object : objects_)
        if (object->meta.ns == scope) taken.insert(object);
      for (const Pointer& object : taken) take(object->meta.key());
      return taken;
    }
    for (auto& index : indexes_) index.second.objects.clear();
    return std::exchange(objects_, {});
  }
  void insert(const Pointer& object) {
    CHECK(objects_.insert(object).second);
    for (auto& [name, index] : indexes_) {
      for (const auto& value : index.function(*object)) index.objects[value].insert(object);
    }
  }
  Pointer take(const Key& key) {
    const auto at = objects_.find(key);
    if (at == objects_.end()) return nullptr;
    Pointer object = *at;
    objects_.erase(at);
    for (auto& [name, index] : indexes_) {
      for (const auto& value : index.function(*object)) {
        const auto bucket = index.objects.find(value);
        if (bucket == index.objects.end()) continue;
        bucket->second.erase(object);
        if (bucket->second.empty()) index.objects.erase(bucket);
      }
    }
    return object;
  }

  mutable std::mutex mutex_;
  Objects objects_;
  std::map<std::string, Index> indexes_;
  std::map<std::string, std::string> versions_;  // by scope
  std::map<Key, Written> written_;               // of ours, that no event has shown yet
};

}  // namespace rubato::kube
