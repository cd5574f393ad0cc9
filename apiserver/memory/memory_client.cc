#include "apiserver/memory/memory_client.h"

#include <map>

namespace rubato::kube {
namespace {

constexpr std::uint64_t kWatchSecondsMin = 300;
constexpr std::uint64_t kWatchSecondsSpan = 300;
constexpr auto kBookmarkLeast = 1ms;  // a wait for a bookmark always moves time

Error unreachable() { return Error(Code::kUnavailable, "the API server cannot be reached"); }

bool is_about_one_object(const Operation& operation) {
  switch (operation.verb) {
    case Verb::kList:
    case Verb::kWatch:
    case Verb::kNext:
      return false;
    case Verb::kCreate:
      return !operation.subresource.empty();
    case Verb::kGet:
    case Verb::kUpdate:
    case Verb::kPatch:
    case Verb::kRemove:
      return true;
  }
  return false;
}

}  // namespace

const char* name_of(Verb verb) {
  switch (verb) {
    case Verb::kGet:
      return "get";
    case Verb::kList:
      return "list";
    case Verb::kWatch:
      return "watch";
    case Verb::kNext:
      return "next";
    case Verb::kCreate:
      return "create";
    case Verb::kUpdate:
      return "update";
    case Verb::kPatch:
      return "patch";
    case Verb::kRemove:
      return "remove";
  }
  return "?";
}

// What the client and its watches share: whether they are cut off, and who is to be woken.
struct MemoryClient::Link {
  explicit Link(std::uint64_t seed) : rng(seed) {}
  std::mutex mutex;
  bool connected = true;
  Rng rng;
  std::map<MemoryWatch*, std::unique_ptr<Watcher>*> watches;
};

class MemoryClient::MemoryWatch : public Watch {
 public:
  MemoryWatch(MemoryServer& server, std::unique_ptr<Watcher> watcher, Executor& executor,
              FaultHook* faults, Operation operation, std::shared_ptr<Link> link, MonoTime end)
      : server_(server),
        watcher_(std::move(watcher)),
        faults_(faults),
        operation_(std::move(operation)),
        link_(std::move(link)),
        end_(end),
        executor_(executor),
        condition_(executor.make_condition()) {
    operation_.verb = Verb::kNext;
    watcher_->set_wake([this] { signal(); });
    const std::lock_guard lock(link_->mutex);
    link_->watches.emplace(this, &watcher_);
  }
  ~MemoryWatch() override {
    {
      const std::lock_guard lock(link_->mutex);
      link_->watches.erase(this);
    }
    watcher_.reset();
  }

  Result<WatchEvent> next(MonoTime deadline) override {
    while (true) {
      TRY_OK(check_open());
      auto polled = watcher_->poll();
      if (!polled.ok()) {
        ended_ = true;
        return polled.error().to_error();
      }
      if (auto& item = polled.value()) return deliver(std::move(*item));
      const MonoTime now = executor_.now();
      if (now >= end_) {
        ended_ = true;
        return Error(Code::kUnavailable, "the watch ended");
      }
      if (now >= deadline) return Error(Code::kTimeout, "no event");
      // The server's clock is another process's: only a difference means anything here.
      const MonoTime bookmark = now + (watcher_->bookmark_due() - server_.clock().now());
      wait(std::min({deadline, end_, std::max(bookmark, now + kBookmarkLeast)}));
    }
  }

  void stop() override {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    condition_->notify_all();
  }

  void cut() {
    const std::lock_guard lock(mutex_);
    cut_ = true;
    condition_->notify_all();
  }

 private:
  Status check_open() {
    const std::lock_guard lock(mutex_);
    signalled_ = false;
    if (stopped_) return Error(Code::kCancelled, "the watch was stopped");
    if (cut_ || ended_) return Error(Code::kUnavailable, "the watch ended");
    return ok();
  }

  Result<WatchEvent> deliver(WatchItem item) {
    if (faults_ != nullptr)
      if (auto fault = faults_->after(operation_)) {
        ended_ = true;
        return *fault;
      }
    TRY_OK(check_open());
    WatchEvent event;
    event.type = item.type;
    event.value = std::move(item.object);
    return event;
  }

  void signal() {
    const std::lock_guard lock(mutex_);
    signalled_ = true;
    condition_->notify_all();
  }

  void wait(MonoTime until) {
    std::unique_lock lock(mutex_);
    condition_->wait_until(lock, until, [&] { return signalled_ || stopped_ || cut_; });
  }

  MemoryServer& server_;
  std::unique_ptr<Watcher> watcher_;
  FaultHook* faults_;
  Operation operation_;
  std::shared_ptr<Link> link_;
  MonoTime end_;
  Executor& executor_;
  std::mutex mutex_;  // guards the flags; taken after the server's mutex, never before it
  std::unique_ptr<Condition> condition_;
  bool signalled_ = false;
  bool stopped_ = false;
  bool cut_ = false;
  bool ended_ = false;  // reader only
};

MemoryClient::MemoryClient(MemoryServer& server, Executor& executor, FaultHook* faults,
                           std::uint64_t seed)
    : server_(server), executor_(executor), faults_(faults), link_(std::make_shared<Link>(seed)) {}

MemoryClient::~MemoryClient() = default;

template <class T, class Act>
Result<T> MemoryClient::run(const Operation& operation, Act act) {
  if (is_about_one_object(operation)) TRY_OK(check_key(operation.key));
  if (faults_ != nullptr)
    if (auto fault = faults_->before(operation)) return *fault;
  {
    const std::lock_guard lock(link_->mutex);
    if (!link_->connected) return unreachable();
  }
  Result<T> result = act();
  if (faults_ != nullptr)
    if (auto fault = faults_->after(operation)) return *fault;
  return result;
}

Result<json::Value> MemoryClient::get(const ResourceType& type, const Key& key,
                                      const std::string& subresource) {
  return run<json::Value>({Verb::kGet, type, key, subresource}, [&]() -> Result<json::Value> {
    auto found = server_.get(type, key, subresource);
    if (!found.ok()) return found.error().to_error();
    return std::move(found).value();
  });
}

Result<ObjectList> MemoryClient::list(const ResourceType& type, const std::string& ns,
                                      const ListOptions& options) {
  return run<ObjectList>({Verb::kList, type, {ns, ""}, ""}, [&]() -> Result<ObjectList> {
    auto found = server_.list(type, ns, options);
    if (!found.ok()) return found.error().to_error();
    ObjectList out;
    out.items = std::move(found->items);
    out.resource_version = std::move(found->resource_version);
    out.continue_token = std::move(found->continue_token);
    return out;
  });
}

Result<std::unique_ptr<Watch>> MemoryClient::watch(const ResourceType& type, const std::string& ns,
                                                   const WatchOptions& options) {
  const Operation operation{Verb::kWatch, type, {ns, ""}, ""};
  return run<std::unique_ptr<Watch>>(operation, [&]() -> Result<std::unique_ptr<Watch>> {
    WatchRequest request;
    request.ns = ns;
    request.label_selector = options.label_selector;
    request.field_selector = options.field_selector;
    request.resource_version = options.resource_version;
    request.bookmarks = options.allow_bookmarks;
    auto opened = server_.watch(type, request);
    if (!opened.ok()) return opened.error().to_error();
    std::chrono::seconds length = options.timeout;
    if (length.count() == 0) {
      const std::lock_guard lock(link_->mutex);
      length = std::chrono::seconds(kWatchSecondsMin + link_->rng.below(kWatchSecondsSpan));
    }
    std::unique_ptr<Watch> watch =
        std::make_unique<MemoryWatch>(server_, std::move(opened).value(), executor_, faults_,
                                      operation, link_, executor_.now() + length);
    return watch;
  });
}

Result<json::Value> MemoryClient::create(const ResourceType& type, const std::string& ns,
                                         const json::Value& object, const WriteOptions& options) {
  const Operation operation{Verb::kCreate, type, {ns, name_of(object)}, options.subresource};
  return run<json::Value>(operation, [&]() -> Result<json::Value> {
    auto written = server_.create(type, ns, object, options);
    if (!written.ok()) return written.error().to_error();
    return std::move(written->object);
  });
}

Result<json::Value> MemoryClient::update(const ResourceType& type, const json::Value& object,
                                         const WriteOptions& options) {
  const Key key = key_of(object);
  return run<json::Value>({Verb::kUpdate, type, key, options.subresource},
                          [&]() -> Result<json::Value> {
                            auto written = server_.update(type, key, object, options);
                            if (!written.ok()) return written.error().to_error();
                            return std::move(written->object);
                          });
}

Result<json::Value> MemoryClient::patch(const ResourceType& type, const Key& key, PatchType kind,
                                        const json::Value& body, const WriteOptions& options) {
  const Operation operation{Verb::kPatch, type, key, options.subresource, &body};
  return run<json::Value>(operation, [&]() -> Result<json::Value> {
    if (faults_ != nullptr) {
      auto later = [&server = server_, type, key, kind, body, options] {
        (void)server.patch(type, key, kind, body, options);
      };
      if (faults_->keeps(operation, body, std::move(later)))
        return Error(Code::kTimeout, "no answer in time");
    }
    auto written = server_.patch(type, key, kind, body, options);
    if (!written.ok()) return written.error().to_error();
    return std::move(written->object);
  });
}

Status MemoryClient::remove(const ResourceType& type, const Key& key,
                            const DeleteOptions& options) {
  return run<void>({Verb::kRemove, type, key, ""}, [&]() -> Status {
    const auto removed = server_.remove(type, key, options);
    if (!removed.ok()) return removed.error().to_error();
    return ok();
  });
}

void MemoryClient::disconnect() {
  const std::lock_guard lock(link_->mutex);
  link_->connected = false;
  for (auto& [watch, watcher] : link_->watches) {
    (*watcher)->set_wake(nullptr);
    watch->cut();
  }
  link_->watches.clear();
}

void MemoryClient::reconnect() {
  const std::lock_guard lock(link_->mutex);
  link_->connected = true;
}

}  // namespace rubato::kube
