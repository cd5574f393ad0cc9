#include "kube/events.h"

#include "common/log.h"
#include "common/utf8.h"
#include "kube/errors.h"

#include <algorithm>
#include <utility>

#include <fmt/core.h>

namespace rubato::kube {
namespace {

constexpr auto kTendPeriod = 60s;
constexpr std::size_t kBucketsMax = 4096;

json::Value to_json(const ObjectReference& reference) {
  json::Value value = json::Value::object(
      {{"apiVersion", reference.api_version}, {"kind", reference.kind}, {"name", reference.name}});
  if (!reference.ns.empty()) value.set("namespace", reference.ns);
  if (!reference.uid.empty()) value.set("uid", reference.uid);
  if (!reference.resource_version.empty()) value.set("resourceVersion", reference.resource_version);
  return value;
}

}  // namespace

ObjectReference reference_to(const json::Value& object) {
  return ObjectReference{object["apiVersion"].string_or(""),
                         object["kind"].string_or(""),
                         namespace_of(object),
                         name_of(object),
                         uid_of(object),
                         ""};
}

EventRecorder::EventRecorder(Client& client, Executor& executor, Metrics& metrics,
                             EventRecorderConfig config)
    : client_(client),
      executor_(executor),
      config_(std::move(config)),
      sent_(metrics.counter("kube_events_sent_total", "Events posted or patched.")),
      dropped_(metrics.counter("kube_events_dropped_total",
                               "Events dropped: queue full, too frequent, or refused.")),
      rng_(config_.seed),
      changed_(executor.make_condition()) {}

EventRecorder::~EventRecorder() { task_ = Task(); }

void EventRecorder::start() {
  task_ = executor_.spawn("events", [this](std::stop_token stop) { run(std::move(stop)); });
}

void EventRecorder::emit(const ObjectReference& regarding, const EventText& text,
                         const std::optional<ObjectReference>& related) {
  std::lock_guard lock(mutex_);
  if (queue_.size() >= kEventQueue || (is_spam(regarding) && !text.is_final)) {
    dropped_.add();
    return;
  }
  // Names come from times. No two events may have the same, though the clock goes back.
  const WallTime now = executor_.clock().wall();
  last_name_ = std::max(now, last_name_ + 1ns);
  Emitted emitted{Id{regarding, related, text}, now, last_name_};
  std::string& note = emitted.id.text.note;
  note.resize(utf8_prefix(note, kEventNoteBytesMax).size());
  queue_.push_back(std::move(emitted));
  changed_->notify_all();
}

bool EventRecorder::is_spam(const ObjectReference& regarding) {
  const MonoTime now = executor_.now();
  if (buckets_.size() >= kBucketsMax) drop_full_buckets(now);
  if (buckets_.size() >= kBucketsMax) buckets_.clear();
  const auto [at, fresh] = buckets_.try_emplace(regarding, Bucket{kSpamBurst, now});
  Bucket& bucket = at->second;
  using Seconds = std::chrono::duration<double>;
  bucket.tokens =
      std::min(kSpamBurst, bucket.tokens + Seconds(now - bucket.at) / Seconds(kSpamRefill));
  bucket.at = now;
  if (const bool was_cut_off = std::exchange(bucket.is_cut_off, bucket.tokens < 1);
      bucket.is_cut_off) {
    if (!was_cut_off)
      LOG_WARNING("events", "{} has too many: for now, one in {} min", regarding.name,
                  std::chrono::minutes(kSpamRefill).count());
    return true;
  }
  bucket.tokens -= 1;
  return false;
}

void EventRecorder::drop_full_buckets(MonoTime now) {
  std::erase_if(buckets_, [&](const auto& entry) {
    const double missing = kSpamBurst - entry.second.tokens;
    return now - entry.second.at >= missing * kSpamRefill;  // as good as never seen
  });
}

bool EventRecorder::flush(MonoTime deadline) {
  std::unique_lock lock(mutex_);
  return changed_->wait_until(lock, deadline, [&] { return queue_.empty() && !sending_; });
}

void EventRecorder::run(std::stop_token stop) {
  MonoTime next_tend = executor_.now() + kTendPeriod;
  while (!stop.stop_requested()) {
    if (const auto emitted = take(stop)) {
      send(*emitted, stop);
      std::lock_guard lock(mutex_);
      sending_ = false;
      changed_->notify_all();
    }
    if (executor_.now() < next_tend) continue;
    tend_series(stop);
    next_tend = executor_.now() + kTendPeriod;
  }
}

std::optional<EventRecorder::Emitted> EventRecorder::take(std::stop_token stop) {
  std::stop_callback on_stop(stop, [this] {
    std::lock_guard lock(mutex_);
    changed_->notify_all();
  });
  std::unique_lock lock(mutex_);
  changed_->wait_until(lock, executor_.now() + kTendPeriod,
                       [&] { return !queue_.empty() || stop.stop_requested(); });
  if (queue_.empty() || stop.stop_requested()) return std::nullopt;
  Emitted first = std::move(queue_.front());
  queue_.pop_front();
  sending_ = true;
  return first;
}

void EventRecorder::send(const Emitted& emitted, std::stop_token stop) {
  const MonoTime now = executor_.now();
  if (const auto known = series_.find(emitted.id); known != series_.end()) {
    Series& series = known->second;
    ++series.count;
    series.last = now;
    series.last_wall = emitted.when;
    series.last_name = emitted.name;
    if (series.count == 2 && !write_series(series, stop)) post(emitted, std::move(stop));
    return;
  }
  post(emitted, std::move(stop));
}

void EventRecorder::post(const Emitted& emitted, std::stop_token stop) {
  const ObjectReference& about = emitted.id.regarding;
  const Key event{about.ns.empty() ? "default" : about.ns,
                  fmt::format("{}.{:x}", about.name, emitted.name.time_since_epoch().count())};
  const json::Value body = to_json(emitted, event);
  const Status posted = with_retries(
      [&]() -> Status {
        TRY(const json::Value created, client_.create(types::kEvent, event.ns, body));
        return ok();
      },
      std::move(stop));
  if (!posted.ok()) {
    dropped_.add();
    LOG_WARNING("events", "{} about {}: {}", emitted.id.text.reason, about.name,
                posted.error().to_string());
    return;
  }
  sent_.add();
  if (series_.size() >= kEventSeriesMax && !series_.contains(emitted.id))
    series_.erase(series_.begin());
  const MonoTime now = executor_.now();
  series_[emitted.id] = Series{event, 1, 1, emitted.when, emitted.name, now, now};
}

bool EventRecorder::write_series(Series& series, std::stop_token stop) {
  const json::Value patch = json::Value::object(
      {{"series",
        json::Value::object(
            {{"count", series.count}, {"lastObservedTime", to_rfc3339_micro(series.last_wall)}})}});
  const Status patched = with_retries(
      [&]() -> Status {
        TRY(const json::Value event,
            client_.patch(types::kEvent, series.event, PatchType::kMerge, patch));
        return ok();
      },
      std::move(stop));
  series.written = series.count;
  series.last_write = executor_.now();
  if (patched.ok()) {
    sent_.add();
  } else {
    dropped_.add();
  }
  return patched.ok() || patched.error().code() != Code::kNotFound;
}

void EventRecorder::tend_series(std::stop_token stop) {
  for (auto at = series_.begin(); at != series_.end() && !stop.stop_requested();) {
    Series& series = at->second;
    const MonoTime now = executor_.now();
    const bool silent = now - series.last >= Duration(kSeriesSilence);
    const bool due = silent || now - series.last_write >= Duration(kSeriesRefresh);
    if (due && series.count > series.written && !write_series(series, stop))
      post({at->first, series.last_wall, series.last_name}, stop);
    at = silent ? series_.erase(at) : std::next(at);
  }
  const std::lock_guard lock(mutex_);
  drop_full_buckets(executor_.now());
}

template <class Attempt>
Status EventRecorder::with_retries(Attempt attempt, std::stop_token stop) {
  Duration next = kEventRetry;
  for (int tries = 1;; ++tries) {
    const Status status = attempt();
    if (status.ok() || status.error().code() == Code::kAlreadyExists) return ok();
    const bool hopeless =
        retry_class(status.error().code()) == Retry::kNever && !is_unauthorized(status.error());
    if (hopeless || tries >= kEventTries) return status;
    const double stretch = 0.75 + 0.5 * rng_.unit();
    const auto wait = static_cast<Duration::rep>(static_cast<double>(next.count()) * stretch);
    if (!executor_.sleep_for(Duration(wait), stop)) return status;
    next = std::min<Duration>(next * 2, kEventRetryMost);
  }
}

// The deprecated* fields stay unset: events.k8s.io/v1 refuses them on create, and kubectl reads
// eventTime, series and reportingController instead.
json::Value EventRecorder::to_json(const Emitted& emitted, const Key& event) const {
  const EventText& text = emitted.id.text;
  json::Value body = json::Value::object(
      {{"apiVersion", types::kEvent.api_version()},
       {"kind", types::kEvent.kind},
       {"metadata", json::Value::object({{"name", event.name}, {"namespace", event.ns}})},
       {"eventTime", to_rfc3339_micro(emitted.when)},
       {"reportingController", config_.controller},
       {"reportingInstance", config_.instance},
       {"action", text.action},
       {"reason", text.reason},
       {"type", text.level == EventLevel::kWarning ? "Warning" : "Normal"},
       {"note", text.note},
       {"regarding", kube::to_json(emitted.id.regarding)}});
  if (emitted.id.related) body.set("related", kube::to_json(*emitted.id.related));
  return body;
}

}  // namespace rubato::kube
