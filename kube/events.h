// EventRecorder: tells people what happened to an object (`kubectl describe`, `kubectl events`) as
// events.k8s.io/v1. Emit on the transition of a condition, never per reconcile.
//
// emit() never blocks: a bounded queue, one sender task, drops counted. Equal events (all but the
// time) become one with a series count: the first is posted, the second starts the series, later
// ones are counted here and written each kSeriesRefresh. An object that talks too much is cut off:
// kSpamBurst events, then one each kSpamRefill; its last word (is_final) is heard all the same.
// Thread-safe.
#pragma once

#include "common/executor.h"
#include "common/metrics.h"
#include "common/rng.h"
#include "kube/client.h"

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace rubato::kube {

constexpr std::size_t kEventQueue = 1000;
constexpr std::size_t kEventNoteBytesMax = 1024;  // the API server's bound
constexpr std::size_t kEventSeriesMax = 4096;     // remembered at once; beyond, one is forgotten
constexpr int kEventTries = 16;
constexpr auto kEventRetry = 500ms;  // doubles, ± 25 %
constexpr auto kEventRetryMost = 10s;
constexpr auto kSeriesRefresh = std::chrono::minutes(30);
constexpr auto kSeriesSilence = std::chrono::minutes(6);
constexpr double kSpamBurst = 25;
constexpr auto kSpamRefill = std::chrono::minutes(5);

struct ObjectReference {
  std::string api_version;
  std::string kind;
  std::string ns;
  std::string name;
  std::string uid;
  std::string resource_version;  // optional
  auto operator<=>(const ObjectReference&) const = default;
};
ObjectReference reference_to(const json::Value& object);

enum class EventLevel { kNormal, kWarning };

struct EventText {
  EventLevel level = EventLevel::kNormal;
  std::string reason;     // CamelCase, for machines: "Rescaled"
  std::string action;     // what was done or tried: "Rescaling"
  std::string note;       // for people; cut at kEventNoteBytesMax
  bool is_final = false;  // how the object ended: once in its life
  auto operator<=>(const EventText&) const = default;
};

struct EventRecorderConfig {
  std::string controller = "rubato.dev/operator";  // reportingController
  std::string instance;                            // reportingInstance: the pod's name
  std::uint64_t seed = 1;
};

class EventRecorder {
 public:
  EventRecorder(Client& client, Executor& executor, Metrics& metrics, EventRecorderConfig config);
  ~EventRecorder();  // drops what is still queued; see flush()
  void start();
  void emit(const ObjectReference& regarding, const EventText& text,
            const std::optional<ObjectReference>& related = std::nullopt);
  // Waits until everything queued so far was sent or given up; false at the deadline.
  bool flush(MonoTime deadline);

 private:
  struct Id {
    ObjectReference regarding;
    std::optional<ObjectReference> related;
    EventText text;
    auto operator<=>(const Id&) const = default;
  };
  struct Emitted {
    Id id;
    WallTime when;
    WallTime name;  // what its name is made of
  };
  struct Series {
    Key event;  // the posted Event
    int count = 1;
    int written = 1;
    WallTime last_wall{};
    WallTime last_name{};
    MonoTime last{};
    MonoTime last_write{};
  };
  struct Bucket {
    double tokens = kSpamBurst;
    MonoTime at{};
    bool is_cut_off = false;
  };

  void run(std::stop_token stop);
  std::optional<Emitted> take(std::stop_token stop);
  void send(const Emitted& emitted, std::stop_token stop);
  void post(const Emitted& emitted, std::stop_token stop);
  bool write_series(Series& series, std::stop_token stop);  // false: its Event is gone
  void tend_series(std::stop_token stop);                   // refreshes and forgets
  template <class Attempt>
  Status with_retries(Attempt attempt, std::stop_token stop);
  json::Value to_json(const Emitted& emitted, const Key& event) const;
  bool is_spam(const ObjectReference& regarding);
  void drop_full_buckets(MonoTime now);

  Client& client_;
  Executor& executor_;
  EventRecorderConfig config_;
  Counter& sent_;
  Counter& dropped_;
  Rng rng_;                      // the sender's task only
  std::map<Id, Series> series_;  // the sender's task only

  mutable std::mutex mutex_;
  std::unique_ptr<Condition> changed_;
  std::deque<Emitted> queue_;
  bool sending_ = false;
  std::map<ObjectReference, Bucket> buckets_;
  WallTime last_name_{};
  Task task_;
};

}  // namespace rubato::kube
