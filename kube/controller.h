// Controller: N workers that reconcile keys from one WorkQueue. The queue gives each key to one
// worker at a time, so reconcile() needs no lock of its own per key.
//
//   Controller jobs(executor, metrics, {.name = "job", .workers = 4, .synced = {…}},
//                   [&](const Key& key, const ReconcileContext& context) { … return done(); });
//   pods.on_change([&](const Change<Pod>& change) { jobs.queue().add(owner_key(change)); });
//   jobs.start();     // waits for the caches in its own tasks
//   jobs.stop(5s);    // drains: keys that are due are still reconciled
//
// reconcile() reads the whole present state, never the event, and is right when called twice, late,
// or for no reason. What it returns decides when the key comes again.
#pragma once

#include "kube/work_queue.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace rubato::kube {

constexpr auto kCacheSyncLimit = 120s;
// Refused by RBAC or quota (403): only a human can change that, so ask seldom, once it has been
// said so often in a row. An API server that has just started says it too, for a moment. A 401
// passes.
constexpr int kDeniedSoon = 12;
constexpr auto kDeniedRetry = 120s;

struct Outcome {
  enum class Kind { kDone, kRequeueAfter, kError, kTerminal } kind = Kind::kDone;
  Duration after{0};
  std::optional<Error> error;

  Outcome() = default;
  // So that a reconcile may end with `return status;` — the error's code decides:
  // kInvalid and kCancelled: terminal. kDenied: rate-limited, later kDeniedRetry. An error that
  // asks for a wait: after it. Everything else, a conflict included: again, rate-limited.
  Outcome(const Status& status);  // NOLINT: implicit by design
  Outcome(const Error& failure);  // NOLINT
  static Outcome requeue_after(Duration delay);
  static Outcome terminal(const Error& failure);
};
inline Outcome done() { return {}; }

struct ReconcileContext {
  std::stop_token stop;
  MonoTime deadline;  // work that needs longer returns and asks to come again
  int priority = kPriorityChange;
};

struct ControllerConfig {
  std::string name;
  int workers = 2;
  Duration reconcile_limit = 30s;  // longer ones are counted and logged
  RateLimits rate;
  // Workers start when all hold. When they do not within kCacheSyncLimit, that is logged and they
  // go on waiting: a controller that acts on half a cache does harm.
  std::vector<std::function<bool()>> synced;
};

class Controller {
 public:
  using Reconcile = std::function<Outcome(const Key&, const ReconcileContext&)>;

  Controller(Executor& executor, Metrics& metrics, ControllerConfig config, Reconcile reconcile);
  ~Controller();  // stops without draining
  WorkQueue& queue() { return queue_; }

  void start();
  // Ends the workers. Up to `drain` is given to keys that are due. Idempotent.
  void stop(Duration drain = Duration::zero());

 private:
  struct Instruments;

  void work(std::stop_token stop);
  bool wait_for_caches(std::stop_token stop);
  void reconcile_one(const WorkQueue::Item& item, std::stop_token stop);
  void settle(const WorkQueue::Item& item, const Outcome& outcome);

  Executor& executor_;
  ControllerConfig config_;
  Reconcile reconcile_;
  std::unique_ptr<Instruments> instruments_;
  WorkQueue queue_;
  std::vector<Task> workers_;
};

}  // namespace rubato::kube
