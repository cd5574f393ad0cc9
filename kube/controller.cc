#include "kube/controller.h"

#include "common/log.h"
#include "common/words.h"
#include "kube/errors.h"

#include <algorithm>

namespace rubato::kube {
namespace {

constexpr auto kCachePoll = 50ms;
constexpr auto kIdleWait = 60s;  // between looks at an empty queue; a bound, not a rate

const std::vector<double> kReconcileBuckets{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                            1,     2.5,  5,     10,   30,  60};

}  // namespace

struct Controller::Instruments {
  Instruments(Metrics& metrics, const std::string& name, int workers)
      : success(results(metrics, name, "success")),
        requeue_after(results(metrics, name, "requeue_after")),
        error(results(metrics, name, "error")),
        errors(metrics.counter("controller_runtime_reconcile_errors_total",
                               "Reconciles that failed.", {{"controller", name}})),
        terminal(metrics.counter("controller_runtime_terminal_reconcile_errors_total",
                                 "Failures that are not retried.", {{"controller", name}})),
        timeouts(metrics.counter("controller_runtime_reconcile_timeouts_total",
                                 "Reconciles over their limit.", {{"controller", name}})),
        time(metrics.histogram("controller_runtime_reconcile_time_seconds", "Length of reconciles.",
                               {{"controller", name}}, kReconcileBuckets)),
        active(metrics.gauge("controller_runtime_active_workers", "Workers that reconcile now.",
                             {{"controller", name}})) {
    metrics
        .gauge("controller_runtime_max_concurrent_reconciles", "Workers of a controller.",
               {{"controller", name}})
        .set(workers);
    results(metrics, name, "requeue");  // zero: we always say when
    metrics.counter("controller_runtime_reconcile_panics_total",
                    "Always 0: a broken invariant ends the process.", {{"controller", name}});
  }
  static Counter& results(Metrics& metrics, const std::string& name, const char* result) {
    return metrics.counter("controller_runtime_reconcile_total", "Reconciles by result.",
                           {{"controller", name}, {"result", result}});
  }
  Counter& success;
  Counter& requeue_after;
  Counter& error;
  Counter& errors;
  Counter& terminal;
  Counter& timeouts;
  Histogram& time;
  Gauge& active;
};

Outcome::Outcome(const Status& status) {
  if (!status.ok()) *this = Outcome(status.error());
}

Outcome::Outcome(const Error& failure) : kind(Kind::kError), error(failure) {
  switch (failure.code()) {
    case Code::kInvalid:
    case Code::kCancelled:
      kind = Kind::kTerminal;
      break;
    case Code::kExhausted:
    case Code::kUnavailable:
    case Code::kInternal:
    case Code::kTimeout:
      after = failure.retry_after();
      break;
    case Code::kDenied:
    case Code::kNotFound:
    case Code::kAlreadyExists:
    case Code::kConflict:
    case Code::kExpired:
      break;  // our view was old, or the server is new: again, soon
  }
}

Outcome Outcome::requeue_after(Duration delay) {
  Outcome outcome;
  outcome.kind = Kind::kRequeueAfter;
  outcome.after = delay;
  return outcome;
}

Outcome Outcome::terminal(const Error& failure) {
  Outcome outcome(failure);
  outcome.kind = Kind::kTerminal;
  return outcome;
}

Controller::Controller(Executor& executor, Metrics& metrics, ControllerConfig config,
                       Reconcile reconcile)
    : executor_(executor),
      config_(std::move(config)),
      reconcile_(std::move(reconcile)),
      instruments_(std::make_unique<Instruments>(metrics, config_.name, config_.workers)),
      queue_(executor, metrics, WorkQueueConfig{config_.name, config_.rate}) {
  CHECK_GE(config_.workers, 1);
}

Controller::~Controller() { stop(); }

void Controller::start() {
  CHECK(workers_.empty());
  for (int i = 0; i < config_.workers; ++i) {
    workers_.push_back(executor_.spawn(config_.name + "-" + std::to_string(i),
                                       [this](std::stop_token stop) { work(std::move(stop)); }));
  }
}

void Controller::stop(Duration drain) {
  queue_.shut_down();
  if (drain > Duration::zero() && !workers_.empty() && !queue_.drain(executor_.now() + drain))
    LOG_WARNING("controller", "{}: stopped with {} undone", config_.name,
                counted(queue_.ready(), "key"));
  for (auto& worker : workers_) worker.request_stop();
  workers_.clear();  // joins
}

bool Controller::wait_for_caches(std::stop_token stop) {
  const MonoTime late = executor_.now() + kCacheSyncLimit;
  bool said = false;
  const auto synced = [&] {
    return std::all_of(config_.synced.begin(), config_.synced.end(),
                       [](const auto& has_synced) { return has_synced(); });
  };
  while (!synced()) {
    if (!said && executor_.now() >= late) {
      LOG_ERROR("controller", "{}: caches have not synced yet", config_.name);
      said = true;
    }
    if (!executor_.sleep_for(kCachePoll, stop)) return false;
  }
  return true;
}

void Controller::work(std::stop_token stop) {
  if (!wait_for_caches(stop)) return;
  while (!stop.stop_requested()) {
    const auto item = queue_.get(executor_.now() + kIdleWait, stop);
    if (item) {
      reconcile_one(*item, stop);
    } else if (queue_.is_shut_down()) {
      return;
    }
  }
}

void Controller::reconcile_one(const WorkQueue::Item& item, std::stop_token stop) {
  const MonoTime start = executor_.now();
  ReconcileContext context{std::move(stop), start + config_.reconcile_limit, item.priority};
  instruments_->active.add(1);
  const Outcome outcome = reconcile_(item.key, context);
  instruments_->active.add(-1);
  const Duration took = executor_.now() - start;
  instruments_->time.observe(std::chrono::duration<double>(took).count());
  if (took > config_.reconcile_limit) {
    instruments_->timeouts.add();
    LOG_WARNING("controller", "{} {}: took {} s", config_.name, to_string(item.key),
                std::chrono::duration<double>(took).count());
  }
  settle(item, outcome);
  queue_.done(item.key);
}

void Controller::settle(const WorkQueue::Item& item, const Outcome& outcome) {
  switch (outcome.kind) {
    case Outcome::Kind::kDone:
      instruments_->success.add();
      return queue_.forget(item.key);
    case Outcome::Kind::kRequeueAfter:
      instruments_->requeue_after.add();
      queue_.forget(item.key);
      return queue_.add_after(item.key, outcome.after, item.priority);
    case Outcome::Kind::kError:
      instruments_->error.add();
      instruments_->errors.add();
      LOG_WARNING("controller", "{} {}: {}", config_.name, to_string(item.key),
                  outcome.error->to_string());
      if (is_forbidden(*outcome.error) && queue_.failures(item.key) >= kDeniedSoon)
        return queue_.add_after(item.key, kDeniedRetry, item.priority);
      if (outcome.after > Duration::zero())
        return queue_.add_after(item.key, outcome.after, item.priority);
      return queue_.add_rate_limited(item.key, item.priority);
    case Outcome::Kind::kTerminal:
      instruments_->error.add();
      instruments_->errors.add();
      instruments_->terminal.add();
      LOG_ERROR("controller", "{} {}: not retried: {}", config_.name, to_string(item.key),
                outcome.error->to_string());
      return queue_.forget(item.key);
  }
}

}  // namespace rubato::kube
