#include "apiserver/memory/event_form.h"
#include "apiserver/memory/field_selector.h"
#include "apiserver/memory/memory_server.h"

#include <algorithm>

namespace rubato::kube {
namespace {

constexpr const char* kInitialEnd = "k8s.io/initial-events-end";

}  // namespace

Watcher::Watcher(MemoryServer& server, InfoPtr info, WatchRequest request)
    : server_(server), info_(std::move(info)), request_(std::move(request)) {
  bookmark_due_ = server_.clock_.now() + server_.options_.bookmark_period;
}

Watcher::~Watcher() {
  const std::lock_guard lock(server_.mutex_);
  if (subscription_ != 0) server_.store_.unsubscribe(info_->storage_id, subscription_);
}

void Watcher::set_wake(std::function<void()> wake) {
  const std::lock_guard lock(server_.mutex_);
  if (subscription_ != 0) server_.store_.unsubscribe(info_->storage_id, subscription_);
  subscription_ = wake ? server_.store_.subscribe(info_->storage_id, std::move(wake)) : 0;
}

bool Watcher::matches(const json::Value& object) const {
  if (!request_.ns.empty() && namespace_of(object) != request_.ns) return false;
  return (labels_.empty() || labels_.matches_labels(object)) &&
         matches_field_selector(fields_, object);
}

// What this watch sees of a change: an object that begins to match is ADDED, one that ceases to
// match is DELETED (its last matching state, with the version of the change).
std::optional<WatchItem> Watcher::from_change(const StoredChange& change) const {
  const bool before = !change.before.is_null() && matches(change.before);
  const bool after = change.type != EventType::kDeleted && matches(change.object);
  if (!before && !after) return std::nullopt;
  if (after)
    return WatchItem{before ? EventType::kModified : EventType::kAdded,
                     server_.present(*info_, change.object)};
  json::Value last = change.type == EventType::kDeleted ? change.object : change.before;
  last.at("metadata").set("resourceVersion", std::to_string(change.version));
  return WatchItem{EventType::kDeleted, server_.present(*info_, last)};
}

json::Value Watcher::bookmark(bool initial_end) const {
  json::Value meta = json::Value::object({{"resourceVersion", std::to_string(cursor_)}});
  if (initial_end) meta.set("annotations", json::Value::object({{kInitialEnd, "true"}}));
  return json::Value::object({{"kind", info_->type.kind},
                              {"apiVersion", info_->type.api_version()},
                              {"metadata", std::move(meta)}});
}

Answer<std::optional<WatchItem>> Watcher::poll() {
  const std::lock_guard lock(server_.mutex_);
  if (!initial_.empty()) {
    WatchItem item{EventType::kAdded, server_.present(*info_, initial_.back())};
    initial_.pop_back();
    return std::optional<WatchItem>(std::move(item));
  }
  if (initial_mark_) {
    initial_mark_ = false;
    return std::optional<WatchItem>(WatchItem{EventType::kBookmark, bookmark(true)});
  }
  const std::string& kind = info_->storage_id;
  if (cursor_ < server_.store_.floor(kind))
    return api_error::expired("too old resource version: " + std::to_string(cursor_) + " (" +
                              std::to_string(server_.store_.floor(kind)) + ")");
  const auto& history = server_.store_.history(kind);
  auto next = std::ranges::upper_bound(history, cursor_, {}, &StoredChange::version);
  for (; next != history.end(); ++next) {
    cursor_ = next->version;
    if (auto item = from_change(*next)) return item;
  }
  const MonoTime now = server_.clock_.now();
  if (now < bookmark_due_) return std::optional<WatchItem>();
  bookmark_due_ = now + server_.options_.bookmark_period;
  if (!request_.bookmarks) return std::optional<WatchItem>();
  cursor_ = std::max(cursor_, server_.store_.version());
  return std::optional<WatchItem>(WatchItem{EventType::kBookmark, bookmark(false)});
}

Answer<std::unique_ptr<Watcher>> MemoryServer::watch(const ResourceType& type,
                                                     const WatchRequest& request) {
  const std::lock_guard lock(mutex_);
  TRY(const InfoPtr info, known(type));
  const auto refuse = [](const std::string& why) {
    const ResourceType options{"meta.k8s.io", "v1", "listoptions", "ListOptions", false};
    return api_error::invalid(options, "", {field::forbidden("resourceVersionMatch", why)});
  };
  if (request.send_initial_events && request.match != "NotOlderThan")
    return refuse("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan");
  if (!request.send_initial_events && !request.match.empty())
    return refuse(
        "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided");
  TRY(Selector labels, parse_label_selector(request.label_selector));
  TRY(Selector fields, parse_field_selector(*info, request.field_selector));
  const std::string& from = request.resource_version;
  std::uint64_t version = 0;
  for (const char c : from) {
    if (c < '0' || c > '9' || version > (1ULL << 60U))
      return api_error::bad_request("invalid resource version \"" + from + "\"");
    version = version * 10 + static_cast<std::uint64_t>(c - '0');
  }
  if (version > store_.version())  // of a life whose last writes were lost
    return api_error::expired("too large resource version: " + std::to_string(version) +
                              ", current: " + std::to_string(store_.version()));
  // Its destructor takes the mutex: from here on nothing is refused.
  std::unique_ptr<Watcher> watcher(new Watcher(*this, info, request));
  watcher->labels_ = std::move(labels);
  watcher->fields_ = std::move(fields);
  if (version == 0 || request.send_initial_events) {
    watcher->cursor_ = store_.version();
    for (const auto& [key, object] : store_.objects(info->storage_id))
      if (watcher->matches(object)) watcher->initial_.push_back(object);
    std::ranges::reverse(watcher->initial_);
    watcher->initial_mark_ = request.send_initial_events && request.bookmarks;
  } else {
    watcher->cursor_ = version;
  }
  return watcher;
}

}  // namespace rubato::kube
