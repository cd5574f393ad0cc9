// Informer<T>: a local, always fresh copy of one resource type, shared by everybody in the process
// who reads it. Handlers hear of each change, those of one namespace in order, from the informer's
// tasks; they may only enqueue keys. Controllers read the store, never the change.
//
//   Informer<Pod> pods(client, executor, metrics, {.label_selector = "app=x"});
//   pods.store().add_index("node", [](const Pod& pod) { return {pod.node_name}; });
//   pods.on_change([&](const Change<Pod>& change) { queue.add(change.key()); });
//   pods.start();
//
// T is a resource trait: a copyable struct with `Meta meta`, `T::decode(const json::Value&)`, and
// optionally `T::type()` and `T::decode_raw(std::string_view)` for the fast path.
#pragma once

#include "common/log.h"
#include "kube/reflector.h"
#include "kube/store.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace rubato::kube {

template <class T>
concept Resource = requires(const json::Value& value, const T& object) {
  { T::decode(value) } -> std::same_as<Result<T>>;
  { object.meta } -> std::convertible_to<const Meta&>;
};
template <class T>
concept RawResource = Resource<T> && requires(std::string_view bytes) {
  { T::decode_raw(bytes) } -> std::same_as<Result<T>>;
};
template <class T>
concept TypedResource = Resource<T> && requires {
  { T::type() } -> std::convertible_to<ResourceType>;
};

// What becomes of a namespace that may not be listed (403, for kDeniedPatience) until it may: it is
// being deleted, say, and its RoleBinding went first. Others are synced without it, unless it is
// waited for. Of all namespaces at once there is nothing but to wait.
enum class WhileDenied {
  kWait,    // with what was last seen
  kForget,  // it counts as empty
  kKeep,    // it counts as what was last seen
};

struct InformerConfig {
  ResourceType type;                    // empty: T::type()
  std::vector<std::string> namespaces;  // each is listed and watched by itself; empty: all, at once
  WhileDenied while_denied = WhileDenied::kWait;
  std::string label_selector;
  std::string field_selector;
  std::uint64_t seed = 1;  // of the jitter between retries
};

template <Resource T>
class Informer {
 public:
  using Handler = std::function<void(const Change<T>&)>;

  Informer(Client& client, Executor& executor, Metrics& metrics, const InformerConfig& config = {})
      : executor_(executor),
        metrics_(metrics),
        resource_(resolve(config).plural),
        while_denied_(config.namespaces.empty() ? WhileDenied::kWait : config.while_denied),
        synced_changed_(executor.make_condition()),
        size_(metrics.gauge("informer_objects", "Objects in an informer's store.",
                            {{"resource", resource_}})) {
    if (config.namespaces.empty())
      parts_.push_back(std::make_unique<Part>(*this, client, reflector_config(config, "")));
    for (const std::string& ns : config.namespaces)
      parts_.push_back(std::make_unique<Part>(*this, client, reflector_config(config, ns)));
  }
  ~Informer() { stop(); }
  Informer(const Informer&) = delete;
  Informer& operator=(const Informer&) = delete;

  Store<T>& store() { return store_; }
  const Store<T>& store() const { return store_; }

  // Read your writes: the answer to a write, or a read after it, takes the place of the older state
  // at once, and events of before it are passed over. Without it a watch that lags (an API server
  // under load) shows the past at each event, a controller writes its difference to it again, and
  // those writes make the watch lag more. Any thread; handlers hear of it from its own event, or
  // the next list.
  void wrote(const json::Value& answer) {
    auto object = T::decode(answer);
    if (!object.ok()) return skip(object.error());
    if (!is_kept(*object)) return;  // its event takes it out
    const auto change = store_.put_written(std::make_shared<const T>(std::move(object).value()),
                                           RawResource<T> ? json::Value() : answer);
    if (!change) return;
    for (const auto& handler : written_handlers_) handler(*change);
  }

  // Before start(). Objects for which it is false are as if they were not there, and gone when it
  // becomes false. Pure.
  void keep_only(std::function<bool(const T&)> keep) {
    CHECK(!started_);
    keep_ = std::move(keep);
  }
  // Before start(). Handlers must not block and must not throw.
  void on_change(Handler handler) {
    CHECK(!started_);
    handlers_.push_back(std::move(handler));
  }
  // The same for what wrote() puts in the place of an older state, on its caller's thread: the
  // change that follows from the watch has that as its `before`.
  void on_written(Handler handler) {
    CHECK(!started_);
    written_handlers_.push_back(std::move(handler));
  }
  void start() {
    CHECK(!started_);
    started_ = true;
    for (auto& part : parts_)
      part->task = executor_.spawn(
          "inf-" + resource_,
          [&reflector = part->reflector](std::stop_token stop) { reflector.run(std::move(stop)); });
  }
  void stop() {
    for (auto& part : parts_) part->task.request_stop();
    for (auto& part : parts_) part->task = Task();
  }

  // A list was stored and delivered to every handler, and the watch goes on from there: false again
  // from a version that the server does not know any more until the list that follows (its store
  // may be another one, restored from a backup).
  bool has_synced() const {
    std::lock_guard lock(mutex_);
    return all_synced();
  }
  // Namespaces that may not be listed, and are not waited for. Named before they are forgotten, and
  // until they are stored again.
  std::set<std::string> denied() const {
    std::lock_guard lock(mutex_);
    std::set<std::string> names;
    for (const auto& part : parts_)
      if (part->denied_now) names.insert(part->scope);
    return names;
  }
  // False when the deadline passed first.
  bool wait_for_sync(MonoTime deadline) {
    std::unique_lock lock(mutex_);
    return synced_changed_->wait_until(lock, deadline, [&] { return all_synced(); });
  }

 private:
  using Pointer = typename Store<T>::Pointer;

  // One namespace, or all of them.
  struct Part : ReflectorSink {
    Part(Informer& informer, Client& client, ReflectorConfig config)
        : owner(informer),
          scope(config.ns),
          reflector(client, informer.executor_, informer.metrics_, *this, std::move(config)) {}
    Status replace(ObjectList list) override { return owner.replace(*this, std::move(list)); }
    Result<std::string> apply(const WatchEvent& event) override {
      return owner.apply(*this, event);
    }
    void advance(const std::string& version) override { owner.store_.set_version(version, scope); }
    void expired() override {
      std::lock_guard lock(owner.mutex_);
      synced = false;
    }
    bool denied(const Error& error) override { return owner.skip(*this, error); }
    void resync() override { owner.resync(scope); }

    Informer& owner;
    const std::string scope;  // namespace; "": all
    Reflector reflector;
    bool was_synced = false;  // its task only
    bool synced = false;      // under the informer's mutex
    bool denied_now = false;  // the same
    Task task;                // last: ends before the rest goes
  };

  bool all_synced() const {  // under the lock
    return std::all_of(parts_.begin(), parts_.end(),
                       [](const auto& part) { return part->synced || part->denied_now; });
  }
  bool is_kept(const T& object) const { return !keep_ || keep_(object); }

  static ResourceType resolve(const InformerConfig& config) {
    if constexpr (TypedResource<T>) {
      if (config.type.plural.empty()) return T::type();
    }
    CHECK(!config.type.plural.empty());
    return config.type;
  }
  static ReflectorConfig reflector_config(const InformerConfig& config, const std::string& ns) {
    ReflectorConfig result;
    result.type = resolve(config);
    result.ns = ns;
    result.label_selector = config.label_selector;
    result.field_selector = config.field_selector;
    result.raw = RawResource<T>;
    result.seed = config.seed;
    return result;
  }

  static Result<T> decode(const json::Value& value, const std::string& raw) {
    if (raw.empty()) return T::decode(value);
    if constexpr (RawResource<T>) {
      return T::decode_raw(raw);
    } else {
      TRY(const json::Value parsed, json::parse(raw));
      return T::decode(parsed);
    }
  }

  // One object that cannot be decoded must not hide all the others: it is left out, loudly.
  void skip(const Error& error) {
    metrics_
        .counter("informer_decode_errors_total", "Objects that could not be decoded.",
                 {{"resource", resource_}})
        .add();
    LOG_ERROR("informer", "{}: an object was left out: {}", resource_, error.to_string());
  }

  bool skip(Part& part, const Error& error) {
    if (while_denied_ == WhileDenied::kWait) return false;
    {
      std::lock_guard lock(mutex_);
      if (part.denied_now) return true;
      part.synced = false;
      part.denied_now = true;
    }
    LOG_WARNING("informer", "{} of namespace {} are left alone until they may be listed: {}",
                resource_, part.scope, error.to_string());
    if (while_denied_ == WhileDenied::kForget) {
      for (const auto& change : store_.replace({}, "", part.scope)) deliver(change);
      size_.set(static_cast<double>(store_.size()));
    }
    std::lock_guard lock(mutex_);
    synced_changed_->notify_all();
    return true;
  }

  Status replace(Part& part, ObjectList list) {
    std::vector<Pointer> objects;
    objects.reserve(list.items.size() + list.raw_items.size());
    const auto keep = [&](Result<T> object) {
      if (!object.ok()) return skip(object.error());
      if (!is_kept(*object)) return;
      objects.push_back(std::make_shared<const T>(std::move(object).value()));
    };
    for (const auto& item : list.items) keep(T::decode(item));
    for (auto& item : list.raw_items) {
      keep(decode(json::Value(), item));
      std::string().swap(item);  // the bytes of a large list go as they are read
    }
    auto changes = store_.replace(std::move(objects), list.resource_version, part.scope);
    for (auto& change : changes) {
      change.initial = !part.was_synced;
      deliver(change);
    }
    size_.set(static_cast<double>(store_.size()));
    part.was_synced = true;
    std::lock_guard lock(mutex_);
    part.synced = true;
    part.denied_now = false;
    synced_changed_->notify_all();
    return ok();
  }

  // What an event shows: our own write as it was decoded before, and null for what was before it,
  // which the store would pass over.
  Result<Pointer> shown_by(const WatchEvent& event) {
    if (event.raw.empty() && event.type != EventType::kDeleted) {
      const Key key = key_of(event.value);
      if (Pointer own = store_.written_as(key, event.value)) return own;
      if (store_.is_before_written(key, resource_version_of(event.value))) return Pointer();
    }
    TRY(T object, decode(event.value, event.raw));
    return std::make_shared<const T>(std::move(object));
  }

  Result<std::string> apply(const Part& part, const WatchEvent& event) {
    auto decoded = shown_by(event);
    if (!decoded.ok()) {
      TRY(const json::Value object, event.object());  // not even JSON: list again
      skip(decoded.error().in(to_string(key_of(object))));
      store_.set_version(resource_version_of(object), part.scope);
      return resource_version_of(object);
    }
    Pointer object = std::move(decoded).value();
    if (!object) {
      store_.set_version(resource_version_of(event.value), part.scope);
      return resource_version_of(event.value);
    }
    const std::string version = object->meta.resource_version;
    if (event.type == EventType::kDeleted) {
      deliver(store_.erase(std::move(object), part.scope));
    } else if (!is_kept(*object)) {
      leave_out(part, std::move(object));
    } else if (const auto change = store_.put(std::move(object), part.scope)) {
      deliver(*change);
    }
    size_.set(static_cast<double>(store_.size()));
    return version;
  }

  void leave_out(const Part& part, Pointer object) {
    if (!store_.get(object->meta.key()))
      return store_.set_version(object->meta.resource_version, part.scope);
    deliver(store_.erase(std::move(object), part.scope));
  }

  void resync(const std::string& scope) {
    for (auto& object : store_.list())
      if (scope.empty() || object->meta.ns == scope) deliver(Change<T>{object, object, true});
  }

  void deliver(const Change<T>& change) {
    for (const auto& handler : handlers_) handler(change);
  }

  Executor& executor_;
  Metrics& metrics_;
  std::string resource_;
  const WhileDenied while_denied_;
  Store<T> store_;
  std::vector<Handler> handlers_;
  std::vector<Handler> written_handlers_;
  std::function<bool(const T&)> keep_;
  bool started_ = false;

  mutable std::mutex mutex_;
  std::unique_ptr<Condition> synced_changed_;
  Gauge& size_;
  std::vector<std::unique_ptr<Part>> parts_;  // last: their tasks end before the rest goes
};

}  // namespace rubato::kube
