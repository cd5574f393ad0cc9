// Informer<T>: a local, always fresh copy of one resource type, shared by everybody in the process
// who reads it. Handlers hear of each change, in order, from the informer's task; they may only
// enqueue keys. Controllers read the store, never the change.
//
//   Informer<Pod> pods(client, executor, metrics, {.ns = "", .label_selector = "app=x"});
//   pods.store().add_index("node", [](const Pod& pod) { return {pod.node_name}; });
//   pods.on_change([&](const Change<Pod>& change) { queue.add(change.key()); });
//   pods.start();
//
// T is a resource trait: a copyable struct with `Meta meta`, `T::decode(const json::Value&)`, and
// optionally `T::type()` and `T::decode_raw(std::string_view)` for the fast path.
#pragma once

#include "common/log.h"
#include "operator/kube/reflector.h"
#include "operator/kube/store.h"

#include <functional>
#include <memory>
#include <mutex>
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

struct InformerConfig {
  ResourceType type;  // empty: T::type()
  std::string ns;     // "": all namespaces
  std::string label_selector;
  std::string field_selector;
  std::uint64_t seed = 1;  // of the jitter between retries
};

template <Resource T>
class Informer : private ReflectorSink {
 public:
  using Handler = std::function<void(const Change<T>&)>;

  Informer(Client& client, Executor& executor, Metrics& metrics, const InformerConfig& config = {})
      : executor_(executor),
        metrics_(metrics),
        resource_(resolve(config).plural),
        reflector_(client, executor, metrics, *this, reflector_config(config)),
        synced_changed_(executor.make_condition()),
        size_(metrics.gauge("informer_objects", "Objects in an informer's store.",
                            {{"resource", resource_}})) {}
  ~Informer() override { stop(); }
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
    const auto change = store_.put_written(std::make_shared<const T>(std::move(object).value()));
    if (!change) return;
    for (const auto& handler : written_handlers_) handler(*change);
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
    task_ = executor_.spawn("inf-" + resource_,
                            [this](std::stop_token stop) { reflector_.run(std::move(stop)); });
  }
  void stop() { task_ = Task(); }

  // A list was stored and delivered to every handler, and the watch goes on from there: false again
  // from a version that the server does not know any more until the list that follows (its store
  // may be another one, restored from a backup).
  bool has_synced() const {
    std::lock_guard lock(mutex_);
    return synced_;
  }
  // False when the deadline passed first.
  bool wait_for_sync(MonoTime deadline) {
    std::unique_lock lock(mutex_);
    return synced_changed_->wait_until(lock, deadline, [&] { return synced_; });
  }

 private:
  using Pointer = typename Store<T>::Pointer;

  static ResourceType resolve(const InformerConfig& config) {
    if constexpr (TypedResource<T>) {
      if (config.type.plural.empty()) return T::type();
    }
    CHECK(!config.type.plural.empty());
    return config.type;
  }
  static ReflectorConfig reflector_config(const InformerConfig& config) {
    ReflectorConfig result;
    result.type = resolve(config);
    result.ns = config.ns;
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

  Status replace(ObjectList list) override {
    std::vector<Pointer> objects;
    objects.reserve(list.items.size() + list.raw_items.size());
    const auto keep = [&](Result<T> object) {
      if (!object.ok()) return skip(object.error());
      objects.push_back(std::make_shared<const T>(std::move(object).value()));
    };
    for (const auto& item : list.items) keep(T::decode(item));
    for (auto& item : list.raw_items) {
      keep(decode(json::Value(), item));
      std::string().swap(item);  // the bytes of a large list go as they are read
    }
    auto changes = store_.replace(std::move(objects), list.resource_version);
    for (auto& change : changes) {
      change.initial = !synced_here_;
      deliver(change);
    }
    size_.set(static_cast<double>(store_.size()));
    synced_here_ = true;
    std::lock_guard lock(mutex_);
    synced_ = true;
    synced_changed_->notify_all();
    return ok();
  }

  Result<std::string> apply(const WatchEvent& event) override {
    auto decoded = decode(event.value, event.raw);
    if (!decoded.ok()) {
      TRY(const json::Value object, event.object());  // not even JSON: list again
      skip(decoded.error().in(to_string(key_of(object))));
      store_.set_version(resource_version_of(object));
      return resource_version_of(object);
    }
    auto object = std::make_shared<const T>(std::move(decoded).value());
    const std::string version = object->meta.resource_version;
    if (event.type == EventType::kDeleted) {
      deliver(store_.erase(std::move(object)));
    } else if (const auto change = store_.put(std::move(object))) {
      deliver(*change);
    }
    size_.set(static_cast<double>(store_.size()));
    return version;
  }

  void advance(const std::string& version) override { store_.set_version(version); }

  void expired() override {
    std::lock_guard lock(mutex_);
    synced_ = false;
  }

  void resync() override {
    for (auto& object : store_.list()) deliver(Change<T>{object, object, true});
  }

  void deliver(const Change<T>& change) {
    for (const auto& handler : handlers_) handler(change);
  }

  Executor& executor_;
  Metrics& metrics_;
  std::string resource_;
  Store<T> store_;
  std::vector<Handler> handlers_;
  std::vector<Handler> written_handlers_;
  Reflector reflector_;
  bool started_ = false;
  bool synced_here_ = false;  // the informer's task only

  mutable std::mutex mutex_;
  std::unique_ptr<Condition> synced_changed_;
  bool synced_ = false;
  Gauge& size_;
  Task task_;  // last: ends before the rest goes
};

}  // namespace rubato::kube
