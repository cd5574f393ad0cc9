#include "kube/reflector.h"

#include "common/log.h"
#include "common/planted.h"
#include "kube/errors.h"

#include <algorithm>
#include <utility>

namespace rubato::kube {
namespace {

const char* name_of(EventType type) {
  switch (type) {
    case EventType::kAdded:
      return "added";
    case EventType::kModified:
      return "modified";
    case EventType::kDeleted:
      return "deleted";
    case EventType::kBookmark:
      return "bookmark";
  }
  return "unknown";
}

}  // namespace

Reflector::Reflector(Client& client, Executor& executor, Metrics& metrics, ReflectorSink& sink,
                     ReflectorConfig config)
    : client_(client),
      executor_(executor),
      metrics_(metrics),
      sink_(sink),
      config_(std::move(config)),
      backoff_(config_.seed, kReflectorBackoff),
      pauses_(config_.seed, kReflectorBackoff) {}

void Reflector::run(std::stop_token stop) {
  last_resync_ = executor_.now();
  Duration pause = 0s;  // before the next watch
  while (!stop.stop_requested()) {
    const bool watched = listed_;
    if (watched && pause > 0s) executor_.sleep_for(std::exchange(pause, 0s), stop);
    Status status = watched ? watch(stop) : list();
    if (stop.stop_requested()) return;
    resync_when_due();
    const bool is_denied = note_denial(status);
    if (status.ok()) continue;
    note_failure(status.error());
    const Duration asked =
        std::max<Duration>(status.error().retry_after(), is_denied ? kDeniedPatience : 0s);
    // Until the list that follows an expired version nobody decides, so it is asked for at once.
    // Where expiry keeps coming back it is the watch after it that waits.
    if (watched && !listed_ && !is_denied)
      pause = std::max(asked, pauses_.next(executor_.now()));
    else
      executor_.sleep_for(std::max(asked, backoff_.next(executor_.now())), stop);
  }
}

// True: it has been refused for long, and the sink does without.
bool Reflector::note_denial(const Status& status) {
  if (status.ok() || !is_forbidden(status.error())) {
    denied_since_.reset();
    return false;
  }
  if (!denied_since_) denied_since_ = executor_.now();
  if (executor_.now() - *denied_since_ < kDeniedPatience || !sink_.denied(status.error()))
    return false;
  listed_ = false;
  version_.clear();
  reason_ = "denied";
  return true;
}

void Reflector::note_failure(const Error& error) {
  LOG_WARNING("informer", "{}: {}; trying again", config_.type.plural, error.to_string());
  if (error.code() == Code::kExpired && !planted(Bug::kIgnoreExpired)) {
    listed_ = false;
    version_.clear();
    reason_ = "expired";
    sink_.expired();
  }
}

void Reflector::resync_when_due() {
  if (executor_.now() - last_resync_ < Duration(kResyncPeriod)) return;
  last_resync_ = executor_.now();
  sink_.resync();
}

Status Reflector::list() {
  TRY(ObjectList list, list_pages(version_));
  metrics_
      .counter("informer_relists_total", "Lists that an informer made.",
               {{"resource", config_.type.plural}, {"reason", reason_}})
      .add();
  const std::string version = list.resource_version;
  TRY_OK(sink_.replace(std::move(list)));
  version_ = version;
  listed_ = true;
  return ok();
}

// Versions "0" and later come from the server's cache in one piece; a quorum read ("") is paged. A
// page token that expires midway is answered with one full list.
Result<ObjectList> Reflector::list_pages(const std::string& version) {
  ListOptions options;
  options.label_selector = config_.label_selector;
  options.field_selector = config_.field_selector;
  options.resource_version = version;
  options.raw = config_.raw;
  if (version.empty()) options.limit = kListPage;
  TRY(ObjectList all, client_.list(config_.type, config_.ns, options));
  std::string token = all.continue_token;
  while (!token.empty()) {
    options.continue_token = token;
    auto page = client_.list(config_.type, config_.ns, options);
    if (!page.ok() && page.error().code() == Code::kExpired) {
      options.continue_token.clear();
      options.limit = 0;
      return client_.list(config_.type, config_.ns, options);
    }
    if (!page.ok()) return page.error();
    for (auto& item : page->items) all.items.push_back(std::move(item));
    for (auto& item : page->raw_items) all.raw_items.push_back(std::move(item));
    token = page->continue_token;
    all.resource_version = page->resource_version;
  }
  return all;
}

Status Reflector::watch(std::stop_token stop) {
  WatchOptions options;
  options.label_selector = config_.label_selector;
  options.field_selector = config_.field_selector;
  options.resource_version = version_;
  const MonoTime opened = executor_.now();
  TRY(auto watch, client_.watch(config_.type, config_.ns, options));
  std::size_t events = 0;
  const Status status = follow(*watch, stop, events);
  if (!status.ok()) return status;
  if (events == 0 && executor_.now() - opened < kShortWatch)
    return Error(Code::kUnavailable, "the watch ended at once, without an event");
  return ok();
}

Status Reflector::follow(Watch& watch, std::stop_token stop, std::size_t& events) {
  std::stop_callback on_stop(stop, [&] { watch.stop(); });
  while (!stop.stop_requested()) {
    auto event = watch.next(executor_.now() + kWatchIdleLimit);
    if (event.ok()) {
      ++events;
      TRY_OK(take(event.value()));
      continue;
    }
    const Code code = event.error().code();
    // The end of a watch and its silence are normal: go on from the last version.
    if (code == Code::kUnavailable || code == Code::kTimeout || code == Code::kCancelled)
      return ok();
    if (code != Code::kExpired && code != Code::kExhausted) start_over("stream");
    return event.error();
  }
  return ok();
}

// The watch would meet the same again: a list is next, not older than what we have.
void Reflector::start_over(const char* reason) {
  listed_ = false;
  reason_ = reason;
}

Status Reflector::take(const WatchEvent& event) {
  metrics_
      .counter("informer_events_total", "Watch events that an informer received.",
               {{"resource", config_.type.plural}, {"type", name_of(event.type)}})
      .add();
  if (event.type == EventType::kBookmark) {
    TRY(const json::Value object, event.object());
    version_ = resource_version_of(object);
    sink_.advance(version_);
    return ok();
  }
  auto version = sink_.apply(event);
  if (!version.ok()) {
    start_over("decode");
    return version.error();
  }
  version_ = version.value();
  return ok();
}

}  // namespace rubato::kube
