// Reflector: keeps a sink equal to one resource type of an API server: list, then watch; watch
// again from the last resourceVersion when a watch ends; list again when the version is too old
// (410) or the stream cannot be trusted. The engine under Informer<T>; runs as one task.
#pragma once

#include "common/executor.h"
#include "common/metrics.h"
#include "kube/backoff.h"
#include "kube/client.h"

#include <mutex>
#include <optional>

namespace rubato::kube {

constexpr std::int64_t kListPage = 500;
// Silence after which a watch is given up. Bookmarks come about each minute.
constexpr auto kWatchIdleLimit = 150s;
// A watch that ends sooner without one event counts as a failure.
constexpr auto kShortWatch = 1s;
// Waits after failures. Shorter than a kubelet's: a cluster has thousands of those and two of us,
// and until the cache is fresh again nobody schedules.
constexpr BackoffLimits kReflectorBackoff{.first = 200ms, .most = 4s, .quiet = 20s};
// How long a list or watch is refused as forbidden (403) before its sink is told, and then the wait
// between two. Shorter refusals come from API servers that have just started, without rules yet.
constexpr auto kDeniedPatience = 30s;
// Everything is delivered once more after this time: a net for lost updates.
constexpr auto kResyncPeriod = std::chrono::hours(10);

struct ReflectorConfig {
  ResourceType type;
  std::string ns;  // "": all namespaces
  std::string label_selector;
  std::string field_selector;
  bool raw = false;        // the sink prefers bytes
  std::uint64_t seed = 1;  // of the jitter
};

// Called from the reflector's task only. An error makes the reflector list again.
class ReflectorSink {
 public:
  virtual ~ReflectorSink() = default;
  virtual Status replace(ObjectList list) = 0;
  // Added, modified or deleted; gives the object's resourceVersion.
  virtual Result<std::string> apply(const WatchEvent& event) = 0;
  // All changes up to `version` were delivered.
  virtual void advance(const std::string& version) = 0;
  // The server cannot say what changed since; a list follows.
  virtual void expired() = 0;
  // Nothing may be read since kDeniedPatience; again at each further refusal. True: it is done
  // without, and a list is next.
  virtual bool denied(const Error& error) = 0;
  virtual void resync() = 0;
};

class Reflector {
 public:
  Reflector(Client& client, Executor& executor, Metrics& metrics, ReflectorSink& sink,
            ReflectorConfig config);
  // Until `stop`.
  void run(std::stop_token stop);

 private:
  Status list();
  Result<ObjectList> list_pages(const std::string& version);
  // Until the watch ends. ok: watch again at once; kExpired: list again.
  Status watch(std::stop_token stop);
  Status follow(Watch& watch, std::stop_token stop, std::size_t& events);
  Status take(const WatchEvent& event);
  void start_over(const char* reason);
  bool note_denial(const Status& status);
  void note_failure(const Error& error);
  void resync_when_due();

  Client& client_;
  Executor& executor_;
  Metrics& metrics_;
  ReflectorSink& sink_;
  ReflectorConfig config_;
  Backoff backoff_;               // after failures
  Backoff pauses_;                // between a list that had to be made anew and its watch
  std::string version_ = "0";     // what to ask for next; "" is a quorum read
  const char* reason_ = "start";  // why the next list happens
  bool listed_ = false;           // `version_` can be watched from
  std::optional<MonoTime> denied_since_;
  MonoTime last_resync_{};
};

}  // namespace rubato::kube
