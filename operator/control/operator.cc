#include "operator/control/operator.h"

#include "common/log.h"
#include "common/process_metrics.h"
#include "kube/controller.h"
#include "kube/events.h"
#include "kube/fenced_client.h"
#include "operator/api/codec.h"
#include "operator/api/resources.h"
#include "operator/control/caches.h"
#include "operator/control/cluster_series.h"
#include "operator/control/job_controller.h"
#include "operator/control/job_flow.h"
#include "operator/control/memory.h"
#include "operator/control/scheduler_loop.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>

#include <fmt/core.h>

namespace rubato::control {

namespace {
constexpr auto kStartLimit = 120s;  // caches and trust root
constexpr auto kStartRetry = 500ms;
constexpr auto kStopLooked = 200ms;  // while caches fill
constexpr auto kDrainLimit = 10s;
constexpr auto kLeaseTolerance = 20s;
// The longest wait after failures of one job: how late it may be acted upon after an outage.
constexpr auto kRetryMost = 8s;
}  // namespace

namespace {
// What only grows has shrunk.
bool goes_back(const api::TrainingJob& before, const api::TrainingJob& after) {
  if (before.meta.uid != after.meta.uid) return false;
  const auto& was = before.status;
  const auto& is = after.status;
  if (was.allocation && (!is.allocation || is.allocation->epoch < was.allocation->epoch))
    return true;
  return was.membership &&
         (!is.membership || is.membership->generation < was.membership->generation ||
          is.membership->leader < was.membership->leader);
}
}  // namespace

struct Operator::Impl {
  kube::Client& client;
  Executor& executor;
  net::Network& network;
  Metrics& metrics;
  OperatorSettings settings;
  PolicyInForce policy;
  Memory memory;
  PlacementGate gate;
  Caches caches;
  JobFlow flow;
  std::mutex text_mutex;
  std::shared_ptr<const std::string> text;  // of the last metrics_text()
  MonoTime text_made{};
  Trust trust;
  kube::EventRecorder events;
  kube::LeaderElector elector;
  kube::FencedClient leading;  // for everything that only a leader may write
  std::atomic<bool> ready{false};
  std::atomic<bool> leads{false};            // jobs are looked at: a standby collects no keys
  std::atomic<std::int64_t> named_epoch{0};  // the highest that somebody else has led under
  // Jobs as we had seen them before the watch showed older ones.
  std::mutex seen_newer_mutex;
  std::map<kube::Key, std::shared_ptr<const JobObject>> seen_newer;
  std::atomic<bool> in_doubt{false};  // some of these were not asked for yet, or it is so

  // Made once the trust root is known, in this order.
  std::unique_ptr<coordinator::Coordinator> coordinator;
  std::unique_ptr<SchedulerLoop> loop;
  std::unique_ptr<JobController> jobs;
  std::unique_ptr<kube::Controller> controller;
  Task trust_followed;

  Impl(kube::Client& c, kube::Client& lease, Executor& e, net::Network& n, Metrics& m,
       OperatorSettings s)
      : client(c),
        executor(e),
        network(n),
        metrics(m),
        settings(std::move(s)),
        policy(policy_of(settings.config)),
        caches(c, e, m, settings.installation),
        flow(m),
        trust({e, c, m, settings.ns, settings.authority_secret, settings.certificates,
               [this](const std::string& master_key, const net::TlsConfig& tls) {
                 if (coordinator) coordinator->renew({master_key, tls});
               }}),
        events(c, e, m, {.instance = settings.identity, .seed = settings.seed}),
        elector(lease, e, m,
                {.lease = {settings.ns, "rubato-operator"},
                 .identity = settings.identity,
                 .address = settings.coordinator_advertised,
                 .timing = settings.lease,
                 .seed = settings.seed,
                 .epoch_floor = [this] { return epoch_floor(); }}),
        leading(c, e, [this] { return may_write_until(); }, write_limit(settings)) {}

  // Whoever tells the others of something ends before they go: informers, the scheduler, tasks of
  // jobs.
  ~Impl() {
    caches.stop();
    if (loop) loop->stop();
    if (coordinator) coordinator->stop_leading();
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  // Nothing is decided on caches that may be of two times.
  MonoTime may_write_until() const { return in_doubt ? MonoTime{} : elector.valid_until(); }

  static Duration write_limit(const OperatorSettings& settings) {
    return settings.write_limit > 0s ? settings.write_limit : settings.lease.lease / 3;
  }

  // What records and agents name, and a Lease that was lost does not.
  std::int64_t epoch_floor() const {
    std::int64_t floor = named_epoch;
    for (const auto& object : caches.jobs.store().list()) {
      const api::TrainingJobStatus& status = object->job.status;
      if (status.membership) floor = std::max(floor, status.membership->leader);
      if (status.allocation)
        floor = std::max(floor, status.allocation->leader_transition.value_or(0));
    }
    return floor;
  }

  void note_epoch(std::uint64_t epoch) {
    const auto other = static_cast<std::int64_t>(epoch);
    std::int64_t known = named_epoch;
    while (known < other && !named_epoch.compare_exchange_weak(known, other)) {
    }
  }

  void look_whether_back(const kube::Change<JobObject>& change) {
    if (!change.before || !change.after || !goes_back(change.before->job, change.after->job))
      return;
    const std::lock_guard lock(seen_newer_mutex);
    seen_newer.emplace(change.key(), change.before);
    in_doubt = true;
  }

  // A list may answer with what stood before a write of ours: the job itself is asked.
  bool has_store_gone_back() {
    std::map<kube::Key, std::shared_ptr<const JobObject>> doubtful;
    {
      const std::lock_guard lock(seen_newer_mutex);
      doubtful.swap(seen_newer);
    }
    for (const auto& [key, seen] : doubtful) {
      const auto live = client.get(api::kTrainingJob, key);
      if (!live.ok()) {
        if (live.error().code() == Code::kNotFound || caches.jobs.denied().contains(key.ns))
          continue;  // nothing is decided on it
        const std::lock_guard lock(seen_newer_mutex);
        seen_newer.emplace(key, seen);
        continue;
      }
      const auto job = api::decode_training_job(*live);
      if (job.ok() && goes_back(seen->job, *job)) return true;
    }
    const std::lock_guard lock(seen_newer_mutex);
    in_doubt = !seen_newer.empty();
    return false;
  }

  // Why this leader must not go on; "" while it may.
  std::string why_outdone(std::int64_t epoch) {
    if (has_store_gone_back()) return "the API server's store went back in time";
    if (named_epoch < epoch) return "";
    return fmt::format("somebody has led under epoch {}, we lead under {}", named_epoch.load(),
                       epoch);
  }

  // The trust root needs the API server, which may still be starting.
  Status open_trust(const std::stop_token& stop) {
    const MonoTime deadline = executor.now() + kStartLimit;
    while (true) {
      const Status opened = trust.open();
      if (opened.ok() || executor.now() >= deadline || stop.stop_requested()) return opened;
      LOG_WARNING("operator", "waiting for the trust root: {}", opened.error().to_string());
      executor.sleep_for(kStartRetry, stop);
    }
  }

  Status assemble(const std::stop_token& stop) {
    TRY_OK(open_trust(stop));
    coordinator = std::make_unique<coordinator::Coordinator>(
        coordinator::Dependencies{.executor = executor,
                                  .network = network,
                                  .client = leading,
                                  .metrics = metrics,
                                  .credentials = {trust.root()->master_key, trust.tls()},
                                  .listen = settings.coordinator_listen,
                                  .leader_address = [this] { return elector.observed().address; },
                                  .identity = settings.identity,
                                  .on_epoch = [this](std::uint64_t other) { note_epoch(other); },
                                  .timing = settings.timing});
    const auto enqueue = [this](const kube::Key& key) {
      if (leads) controller->queue().add(key);
    };
    loop = std::make_unique<SchedulerLoop>(SchedulerLoop::Dependencies{
        executor, leading, metrics, caches, memory, gate, *coordinator, events, settings.config,
        settings.installation, policy, enqueue, settings.record});
    jobs = std::make_unique<JobController>(JobControllerDependencies{
        executor, leading, caches, memory, gate, *coordinator, events, settings.config,
        settings.installation, policy, trust, [this] { loop->wake(); },
        [this](const api::TrainingJob& job, const api::Allocation& tried) {
          loop->settle_later(job, tried);
        }});
    controller = std::make_unique<kube::Controller>(
        executor, metrics,
        kube::ControllerConfig{.name = "trainingjob",
                               .workers = 4,
                               .rate = {.most = kRetryMost},
                               .synced = {[this] { return caches.has_synced(); }}},
        [this](const kube::Key& key, const kube::ReconcileContext&) {
          return jobs->reconcile(key);
        });
    connect(enqueue);
    TRY_OK(coordinator->start());
    trust_followed = trust.follow([this] { return elector.is_leader(); });
    return ok();
  }

  // Changes enqueue keys and wake the scheduler; nothing else, ever.
  void connect(const std::function<void(const kube::Key&)>& enqueue) {
    coordinator->on_change([this, enqueue](const kube::Key& key) {
      enqueue(key);
      loop->wake();
    });
    caches.jobs.on_written([this](const kube::Change<JobObject>& change) {
      look_whether_back(change);
      note_flow(change);
    });
    caches.jobs.on_change([this, enqueue](const kube::Change<JobObject>& change) {
      look_whether_back(change);
      note_flow(change);
      if (!leads) jobs->on_job_change(change);
      enqueue(change.key());
      loop->wake();
    });
    caches.pods.on_change([this, enqueue](const kube::Change<kube::Pod>& change) {
      jobs->on_pod_change(change);
      const auto& owner = change.any().meta.owner;
      if (owner && owner->kind == "TrainingJob") enqueue({change.any().meta.ns, owner->name});
      loop->wake();
    });
    caches.leases.on_change([this](const kube::Change<NodeLease>& change) {
      memory.note_lease(change.any(), change.after == nullptr, executor.now(),
                        executor.clock().wall());
    });
    caches.claims.on_change([this, enqueue](const kube::Change<kube::Claim>& change) {
      wake_users(caches.jobs_using(change.any()), enqueue);
    });
    caches.volumes.on_change([this, enqueue](const kube::Change<kube::Volume>& change) {
      // One that nobody has may be what a claim waits for.
      const auto& claim = change.any().claim;
      if (!claim) loop->wake();
      if (claim) wake_users(caches.jobs_using(*claim), enqueue);
    });
    caches.storage_classes.on_change(
        [this](const kube::Change<kube::StorageClass>&) { loop->wake(); });
    // Who has a class by its spec, or as the cluster's default, is tried with what it is now.
    caches.priorities.on_change([this, enqueue](const kube::Change<PriorityClassObject>& change) {
      if (!leads) return;
      const bool is_default = (change.before && change.before->global_default) ||
                              (change.after && change.after->global_default);
      for (const auto& object : caches.jobs.store().list()) {
        const api::TrainingJob& job = object->job;
        const std::string& named = job.spec.priority_class_name;
        if (named.empty() ? is_default : named == change.any().meta.name)
          enqueue({job.meta.ns, job.meta.name});
      }
    });
    caches.nodes.on_change([this](const kube::Change<kube::Node>& change) {
      if (!change.after) memory.forget_node(change.before->meta.name);
      loop->wake();
    });
    caches.queues.on_change([this](const kube::Change<QueueObject>&) { loop->wake(); });
    caches.policies.on_change([this](const kube::Change<PolicyObject>&) { loop->wake(); });
  }

  void wake_users(const std::vector<kube::Key>& jobs_of_claim,
                  const std::function<void(const kube::Key&)>& enqueue) {
    for (const kube::Key& key : jobs_of_claim) enqueue(key);
    if (!jobs_of_claim.empty()) loop->wake();
  }

  void note_flow(const kube::Change<JobObject>& change) {
    if (change.before && change.after && elector.is_leader())
      flow.note(change.before->job, change.after->job);
  }

  std::shared_ptr<const std::string> metrics_text() {
    const std::lock_guard lock(text_mutex);
    if (text && executor.now() < text_made + kMetricsAge) return text;
    if (ready) controller->queue().refresh_metrics();
    Exposition out;
    expose_process("rubato-operator", out);
    if (elector.is_leader() && caches.has_synced())
      expose(ClusterSeries{.jobs = caches.jobs.store().list(),
                           .queues = caches.queues.store().list(),
                           .nodes = caches.nodes.store().list(),
                           .gpu_resource = settings.config.gpu_resource,
                           .gpu_type_label = settings.config.gpu_type_label,
                           .now = executor.clock().wall()},
             out);
    text = std::make_shared<const std::string>(metrics.expose() + out.take());
    text_made = executor.now();
    return text;
  }

  // Until `stop` or the end of leadership.
  Status lead(const std::stop_token& stop) {
    const std::int64_t epoch = elector.epoch();
    // What a standby remembers of before a restore (names of pods that were made) is not so either.
    std::string outdone = why_outdone(epoch);
    if (!outdone.empty()) {
      (void)elector.release();
      return Error(Code::kExpired, outdone);
    }
    LOG_INFO("operator", "{} leads (epoch {})", settings.identity, epoch);
    coordinator->lead(static_cast<std::uint64_t>(epoch));
    jobs->set_leader(epoch);
    leads = true;  // what changes from here on is told; what stands is all of it
    for (const auto& job : caches.jobs.store().list())
      controller->queue().add({job->job.meta.ns, job->job.meta.name});
    controller->start();
    loop->start(epoch);
    while (!stop.stop_requested() && elector.is_leader() && outdone.empty()) {
      executor.sleep_for(200ms, stop);
      outdone = why_outdone(epoch);
    }
    if (!elector.is_leader()) return Error(Code::kExpired, "the Lease was lost");
    loop->stop();
    controller->stop(kDrainLimit);
    coordinator->stop_leading();
    events.flush(executor.now() + 2s);
    const Status released = elector.release();
    if (!outdone.empty()) return Error(Code::kExpired, outdone);
    return released;
  }
};

Operator::Operator(kube::Client& client, kube::Client& lease_client, Executor& executor,
                   net::Network& network, Metrics& metrics, OperatorSettings settings)
    : impl_(std::make_unique<Impl>(client, lease_client, executor, network, metrics,
                                   std::move(settings))) {}
Operator::~Operator() = default;

Status Operator::run(const std::stop_token& stop) {
  Impl& op = *impl_;
  if (const Status assembled = op.assemble(stop); stop.stop_requested() || !assembled.ok())
    return stop.stop_requested() ? ok() : assembled;
  op.caches.start();
  op.events.start();
  const MonoTime limit = op.executor.now() + kStartLimit;
  while (!op.caches.wait_for_sync(std::min(limit, op.executor.now() + kStopLooked))) {
    if (stop.stop_requested()) return ok();
    if (op.executor.now() < limit) continue;
    return Error(Code::kTimeout,
                 "the caches did not fill; are the CRDs installed (kubectl apply -f crds/) and may "
                 "this account list them?");
  }
  op.ready = true;
  op.elector.start([](const Error& error) { LOG_ERROR("operator", "{}", error.to_string()); });
  while (!stop.stop_requested()) {
    if (op.elector.is_lost()) return Error(Code::kExpired, "the Lease was lost");
    if (op.elector.wait_until_leader(op.executor.now() + 1s, stop)) return op.lead(stop);
  }
  return ok();
}

bool Operator::is_ready() const { return impl_->ready; }
bool Operator::is_healthy() const { return impl_->elector.is_healthy(kLeaseTolerance); }
std::shared_ptr<const std::string> Operator::metrics_text() { return impl_->metrics_text(); }

bool Operator::is_leader() const { return impl_->elector.is_leader(); }
std::int64_t Operator::epoch() const { return impl_->elector.epoch(); }

}  // namespace rubato::control
