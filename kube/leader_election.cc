#include "kube/leader_election.h"

#include "common/log.h"
#include "common/planted.h"

#include <algorithm>

namespace rubato::kube {
namespace {

// Clocks of two machines may run at slightly different speeds: a leader trusts its lease for this
// share of it only.
constexpr int kDriftPercent = 5;
constexpr double kAcquireJitter = 1.2;  // an attempt each retry × [1, 2.2)

std::string_view holder_of(const json::Value& lease) {
  return lease["spec"]["holderIdentity"].string_view_or("");
}
std::string_view renew_time_of(const json::Value& lease) {
  return lease["spec"]["renewTime"].string_view_or("");
}
std::int64_t transitions_of(const json::Value& lease) {
  return lease["spec"]["leaseTransitions"].int_or(0);
}

}  // namespace

LeaderElector::LeaderElector(Client& client, Executor& executor, Metrics& metrics,
                             LeaderElectionConfig config)
    : client_(client),
      executor_(executor),
      config_(std::move(config)),
      rng_(config_.seed),
      status_gauge_(metrics.gauge("leader_election_master_status", "1 while this replica leads.",
                                  {{"name", config_.lease.name}})),
      slow_path_(metrics.counter("leader_election_slowpath_total",
                                 "Renewals that had to read the Lease first.",
                                 {{"name", config_.lease.name}})),
      changed_(executor.make_condition()) {
  const LeaseTiming& timing = config_.timing;
  CHECK(!config_.identity.empty());
  CHECK(timing.lease > timing.renew);
  CHECK(timing.renew * 10 > timing.retry * 12);
}

LeaderElector::~LeaderElector() { task_ = Task(); }

void LeaderElector::start(std::function<void(const Error&)> on_lost) {
  on_lost_ = std::move(on_lost);
  task_ = executor_.spawn("leader", [this](std::stop_token stop) { run(std::move(stop)); });
}

void LeaderElector::run(std::stop_token stop) {
  if (!acquire(stop)) return;
  become_leader();
  const Status end = renew_until_lost(stop);
  if (end.ok()) return;  // stopped; release() decides about the lease
  LOG_ERROR("leader", "{} lost the lease {}: {}", config_.identity, to_string(config_.lease),
            end.error().to_string());
  {
    std::lock_guard lock(mutex_);
    leading_ = false;
    lost_ = true;
    status_gauge_.set(0);
    changed_->notify_all();
  }
  if (on_lost_) on_lost_(end.error());
}

bool LeaderElector::acquire(std::stop_token stop) {
  while (!stop.stop_requested()) {
    const Status tried = try_once();
    if (tried.ok()) return true;
    if (tried.error().code() != Code::kAlreadyExists && tried.error().code() != Code::kConflict)
      LOG_WARNING("leader", "cannot take the lease: {}", tried.error().to_string());
    const double stretch = 1.0 + kAcquireJitter * rng_.unit();
    const auto wait =
        static_cast<Duration::rep>(static_cast<double>(config_.timing.retry.count()) * stretch);
    executor_.sleep_for(Duration(wait), stop);
  }
  return false;
}

void LeaderElector::become_leader() {
  std::lock_guard lock(mutex_);
  leading_ = true;
  status_gauge_.set(1);
  changed_->notify_all();
  LOG_INFO("leader", "{} leads, epoch {}", config_.identity, epoch_);
}

// ok: stopped while still leading.
Status LeaderElector::renew_until_lost(std::stop_token stop) {
  std::optional<Error> last;
  const auto overdue = [&] {
    std::lock_guard lock(mutex_);
    return executor_.now() - renewed_ >= config_.timing.renew;
  };
  while (executor_.sleep_for(config_.timing.retry, stop)) {
    // A process that was frozen must not lead on, even if nobody took its place meanwhile.
    if (overdue()) return last.value_or(Error(Code::kTimeout, "renewals came too late"));
    const Status renewed = try_once();
    if (!renewed.ok()) {
      last = renewed.error();
      if (last->code() == Code::kAlreadyExists) return *last;  // somebody else holds it
      if (overdue()) return *last;
    }
  }
  return ok();
}

// One attempt to hold the lease. ok: held, renewed now. kAlreadyExists: somebody else holds it.
Status LeaderElector::try_once() {
  // The leader's fast path: write with the version we know, without reading.
  if (seen_ && holder_of(seen_->object) == config_.identity && is_leader()) {
    const Status written = write(false);
    if (written.ok()) return ok();
    // Internal: what the API server answers when the Lease was deleted (it would create it, were
    // it not for the resourceVersion).
    const Code code = written.error().code();
    if (code != Code::kConflict && code != Code::kNotFound && code != Code::kInternal)
      return written;
    slow_path_.add();
  }
  const Status read = look();
  if (!read.ok()) {
    if (read.error().code() != Code::kNotFound) return read;
    // Deleted: its holder leads until its time is over, and writes it again.
    if (seen_ && is_held_by_other(executor_.now()))
      return Error(Code::kAlreadyExists,
                   "the lease is gone, and held by " + std::string(holder_of(seen_->object)));
    return create();
  }
  if (is_done_after_all()) return ok();
  if (is_held_by_other(executor_.now())) {
    return Error(Code::kAlreadyExists,
                 "the lease is held by " + std::string(holder_of(seen_->object)));
  }
  const bool ours = holder_of(seen_->object) == config_.identity && is_leader();
  return write(!ours);
}

Status LeaderElector::look() {
  TRY(const json::Value lease, client_.get(types::kLease, config_.lease));
  remember(lease);
  return ok();
}

// `changed` moves only when the record itself moved: that is what a candidate waits for.
void LeaderElector::remember(const json::Value& lease) {
  const bool same = seen_ && seen_->object["spec"] == lease["spec"];
  seen_ = Seen{lease, same ? seen_->changed : executor_.now()};
  std::lock_guard lock(mutex_);
  observed_.holder = std::string(holder_of(lease));
  observed_.address = lease["metadata"]["annotations"][kLeaderAddressAnnotation].string_or("");
  observed_.epoch = std::max(observed_.epoch, transitions_of(lease));
}

bool LeaderElector::is_held_by_other(MonoTime now) const {
  const std::string_view holder = holder_of(seen_->object);
  if (holder.empty() || holder == config_.identity) return false;
  // The holder's own duration counts: it may be configured to hold longer than we would.
  const Duration theirs =
      std::chrono::seconds(seen_->object["spec"]["leaseDurationSeconds"].int_or(0));
  return now < seen_->changed + std::max(theirs, config_.timing.lease);
}

json::Value LeaderElector::make_lease(std::int64_t transitions, bool takeover) const {
  const std::string now = to_rfc3339_micro(executor_.clock().wall());
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(config_.timing.lease).count();
  json::Value lease = seen_ ? seen_->object : json::Value();
  lease.set("apiVersion", types::kLease.api_version()).set("kind", types::kLease.kind);
  json::Value& meta = lease.at("metadata");
  meta.set("name", config_.lease.name).set("namespace", config_.lease.ns);
  meta.at("annotations").set(kLeaderAddressAnnotation, config_.address);
  json::Value& spec = lease.at("spec");
  spec.set("holderIdentity", config_.identity).set("leaseDurationSeconds", seconds);
  spec.set("renewTime", now).set("leaseTransitions", transitions);
  if (takeover) spec.set("acquireTime", now);
  return lease;
}

// Above all that this replica has seen, in Leases and elsewhere.
std::int64_t LeaderElector::next_epoch() const {
  const bool is_known = config_.epoch_floor && !planted(Bug::kLeaseAlone);
  const std::int64_t floor = is_known ? config_.epoch_floor() : 0;
  return std::max({floor, observed().epoch, std::int64_t{0}}) + 1;
}

// The Lease does not exist: first start, or somebody deleted it. Epochs we know of are carried on.
Status LeaderElector::create() {
  seen_.reset();
  const std::int64_t transitions = is_leader() ? epoch() : next_epoch();
  const MonoTime sent = executor_.now();
  TRY(const json::Value lease,
      client_.create(types::kLease, config_.lease.ns, make_lease(transitions, true)));
  adopt(lease, sent, transitions);
  return ok();
}

Status LeaderElector::write(bool takeover) {
  const std::int64_t transitions = takeover ? next_epoch() : transitions_of(seen_->object);
  const json::Value wanted = make_lease(transitions, takeover);
  const MonoTime sent = executor_.now();
  in_doubt_ = InDoubt{std::string(renew_time_of(wanted)), sent};
  TRY(const json::Value lease, client_.update(types::kLease, wanted));
  adopt(lease, sent, transitions);
  return ok();
}

// A write whose answer was lost or was an error may have been done: then the Lease says so, in our
// name and with the time we wrote. It counts from when it was sent.
bool LeaderElector::is_done_after_all() {
  if (!in_doubt_ || holder_of(seen_->object) != config_.identity ||
      renew_time_of(seen_->object) != in_doubt_->renew_time ||
      executor_.now() - in_doubt_->sent >= config_.timing.renew)
    return false;
  const json::Value lease = seen_->object;
  adopt(lease, in_doubt_->sent, transitions_of(lease));
  return true;
}

void LeaderElector::adopt(const json::Value& lease, MonoTime sent, std::int64_t transitions) {
  remember(lease);
  in_doubt_.reset();
  std::lock_guard lock(mutex_);
  renewed_ = sent;
  epoch_ = transitions;
  changed_->notify_all();
}

bool LeaderElector::wait_until_leader(MonoTime deadline, std::stop_token stop) {
  std::stop_callback on_stop(stop, [this] {
    std::lock_guard lock(mutex_);
    changed_->notify_all();
  });
  std::unique_lock lock(mutex_);
  changed_->wait_until(lock, deadline, [&] { return leading_ || lost_ || stop.stop_requested(); });
  return leading_ && !stop.stop_requested();
}

MonoTime LeaderElector::valid_until() const {
  std::lock_guard lock(mutex_);
  if (!leading_) return MonoTime{};
  return renewed_ + config_.timing.lease * (100 - kDriftPercent) / 100;
}

bool LeaderElector::is_leader() const { return executor_.now() < valid_until(); }

bool LeaderElector::is_lost() const {
  std::lock_guard lock(mutex_);
  return lost_;
}

std::int64_t LeaderElector::epoch() const {
  std::lock_guard lock(mutex_);
  return epoch_;
}

LeaderRecord LeaderElector::observed() const {
  std::lock_guard lock(mutex_);
  return observed_;
}

bool LeaderElector::is_healthy(Duration tolerance) const {
  std::lock_guard lock(mutex_);
  return !leading_ || executor_.now() < renewed_ + config_.timing.lease + tolerance;
}

Status LeaderElector::release() {
  task_ = Task();
  const bool held = is_leader();
  {
    std::lock_guard lock(mutex_);
    leading_ = false;
    status_gauge_.set(0);
    changed_->notify_all();
  }
  if (!held || !seen_) return ok();
  Status given = give_back();
  // Somebody wrote the Lease, an annotation of it say, and it may be ours all the same.
  if (!given.ok() && given.error().code() == Code::kConflict) {
    TRY_OK(look());
    if (holder_of(seen_->object) != config_.identity) return ok();
    given = give_back();
  }
  TRY_OK(given);
  LOG_INFO("leader", "{} released the lease {}", config_.identity, to_string(config_.lease));
  return ok();
}

Status LeaderElector::give_back() {
  json::Value lease = seen_->object;
  const std::string now = to_rfc3339_micro(executor_.clock().wall());
  json::Value& spec = lease.at("spec");
  spec.set("holderIdentity", "").set("leaseDurationSeconds", 1);
  spec.set("renewTime", now).set("acquireTime", now);
  spec.set("leaseTransitions", next_epoch() - 1);  // the next one need not know why
  TRY_OK(client_.update(types::kLease, lease));
  return ok();
}

}  // namespace rubato::kube
