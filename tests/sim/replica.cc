#include "tests/sim/replica.h"

#include "tests/sim/other_build.h"

#include <algorithm>
#include <set>

namespace rubato::sim {
namespace {

constexpr Duration kRestartLeast = 500ms;
constexpr std::uint64_t kRestartSpan = 3'000'000'000;

Duration nanos(std::uint64_t count) { return Duration(static_cast<std::int64_t>(count)); }

bool is_write(kube::Verb verb) {
  return verb == kube::Verb::kCreate || verb == kube::Verb::kUpdate || verb == kube::Verb::kPatch ||
         verb == kube::Verb::kRemove;
}

control::OperatorSettings operator_settings(const ReplicaSettings& settings, std::uint64_t life) {
  control::OperatorSettings out;
  out.ns = settings.ns;
  out.installation = settings.installation;
  out.identity = fmt::format("{}_{}", settings.host, life);
  out.coordinator_listen = {settings.host, kCoordinatorPort};
  out.coordinator_advertised = fmt::format("{}:{}", settings.host, kCoordinatorPort);
  out.config.coordinator_addresses = settings.coordinators;
  out.config.gpu_resource = kGpuResource;
  out.config.gang_start = 20s;
  out.config.requeue_delay = 4s;
  out.config.teardown_extra = 5s;
  out.config.progress_period = 5s;  // stories are long
  out.config.round_spacing = 100ms;
  out.lease = settings.lease;
  out.timing.heartbeat = 500ms;
  out.timing.form_deadline = 5s;
  out.timing.start_deadline = out.timing.follow_deadline = 40s;
  out.timing.progress_floor = out.timing.first_step = 6s;
  out.seed = settings.seed * 1000 + life;
  out.record = settings.record;
  return out;
}

}  // namespace

Replica*& serving() {
  static Replica* now = nullptr;
  return now;
}

// ---- What happens to requests

class Replica::Faults : public kube::FaultHook {
 public:
  Faults(Replica& replica, Life& life, Duration limit)
      : replica_(replica), life_(life), limit_(limit) {}
  std::optional<Error> before(const kube::Operation& operation) override;
  std::optional<Error> after(const kube::Operation& operation) override;
  bool keeps(const kube::Operation& operation, const json::Value& body,
             std::function<void()> act) override;

 private:
  bool is_cut() const { return !replica_.ground_.links.reaches(replica_.settings_.host, kApiHost); }
  void travel();
  std::optional<Error> refused(const kube::Operation& operation);
  std::optional<Error> event(const kube::Operation& operation);
  void crash_if_due(bool after, const kube::Operation& operation);

  Replica& replica_;
  Life& life_;
  const Duration limit_;
  std::uint64_t number_ = 0;  // of the write that is being served
  MonoTime left_{};           // when it was sent
  // Kinds whose watch got 410: their versions stay expired, until a list gives a newer one.
  std::set<std::string> expired_;
};

struct Replica::Life {
  Life(Replica& owner, testing::SimProcess& given)
      : process(given),
        faults(owner, *this, kRequestLimit),
        lease_faults(owner, *this, kLeaseRequestLimit) {}
  testing::SimProcess& process;
  Faults faults;
  Faults lease_faults;
  Metrics metrics;
  std::unique_ptr<net::Network> network;
  std::unique_ptr<kube::MemoryClient> client;
  std::unique_ptr<kube::MemoryClient> lease_client;
  std::unique_ptr<control::Operator> replica;
  Task task;
};

void Replica::Faults::crash_if_due(bool after, const kube::Operation& operation) {
  const auto found = replica_.crashes_.due.find(2 * number_ + (after ? 1 : 0));
  if (found == replica_.crashes_.due.end() || !found->second) return;
  found->second = false;
  replica_.ground_.story.say("{} dies {} write {}: {} {} {}{}", replica_.settings_.host,
                             after ? "after" : "before", number_, kube::name_of(operation.verb),
                             operation.type.plural, to_string(operation.key),
                             operation.subresource.empty() ? "" : "/" + operation.subresource);
  replica_.crashes_.on_crash();
  life_.process.crash();  // does not return
}

std::optional<Error> Replica::Faults::refused(const kube::Operation& operation) {
  Rng& rng = replica_.rng_;
  const bool reads = !is_write(operation.verb);
  switch (rng.below(reads ? 2 : 4)) {
    case 0:
      return Error(Code::kUnavailable, "the server does not answer");
    case 1: {
      Error busy(Code::kExhausted, "too many requests");
      busy.set_retry_after(std::chrono::milliseconds(100 + rng.below(900)));
      return busy;
    }
    case 2:
      return operation.verb == kube::Verb::kCreate || operation.verb == kube::Verb::kRemove
                 ? Error(Code::kInternal, "etcdserver: leader changed")
                 : Error(Code::kConflict, "the object has been modified");
    default:
      return Error(Code::kInternal, "etcdserver: request timed out");
  }
}

// Half of the requests are late on their way, half of the answers on theirs: a process that dies or
// stands still meanwhile may have had its effect without knowing.
void Replica::Faults::travel() {
  if (replica_.rng_.chance(0.5)) return;
  const int times = replica_.rng_.chance(0.05) ? 20 : 1;
  life_.process.sleep_for(nanos(replica_.rng_.below(
      static_cast<std::uint64_t>(times * replica_.settings_.api_delay.count()))));
}

std::optional<Error> Replica::Faults::before(const kube::Operation& operation) {
  const MonoTime began = replica_.ground_.executor.now();
  const std::uint64_t restores = replica_.ground_.witness.restores();
  travel();
  // A server that is given another store begins anew, and its connections end.
  if (restores != replica_.ground_.witness.restores())
    return Error(Code::kUnavailable, "the server was started again");
  if (is_cut()) {
    life_.process.sleep_for(limit_);
    return Error(Code::kUnavailable, "the server cannot be reached");
  }
  // A process that stood still finds its request's time over.
  if (replica_.ground_.executor.now() - began > limit_)
    return Error(Code::kTimeout, "the request's time is over");
  if (is_write(operation.verb)) {
    number_ = ++replica_.crashes_.writes;
    crash_if_due(false, operation);
  }
  if (replica_.rng_.chance(replica_.trouble_.flaky)) return refused(operation);
  if (replica_.trouble_.refuses)
    if (auto refusal = replica_.trouble_.refuses(operation)) return refusal;
  if (operation.verb == kube::Verb::kWatch && expired_.contains(operation.type.plural))
    return Error(Code::kExpired, "too old resource version");
  left_ = began;
  serving() = &replica_;
  return std::nullopt;
}

std::optional<Error> Replica::Faults::after(const kube::Operation& operation) {
  if (operation.verb == kube::Verb::kNext) return event(operation);
  serving() = nullptr;
  if (operation.verb == kube::Verb::kList) expired_.erase(operation.type.plural);
  if (is_write(operation.verb)) crash_if_due(true, operation);
  const MonoTime began = replica_.ground_.executor.now();
  const std::uint64_t restores = replica_.ground_.witness.restores();
  travel();
  if (is_cut() || replica_.ground_.executor.now() - began > limit_)
    return Error(Code::kTimeout, "no answer in time");
  if (restores != replica_.ground_.witness.restores())
    return Error(Code::kUnavailable, "the server was started again");
  if (replica_.rng_.chance(replica_.trouble_.flaky))
    return Error(Code::kInternal, "the answer was lost");
  return std::nullopt;
}

// Only what is fenced by the membership's leader may be late: a first allocation is not (roadmap).
// While one is, and for the time of a request after it, a leader may have decided without its last
// decision: who decided so before the late write came is not wrong, and the epoch refuses it.
bool Replica::Faults::keeps(const kube::Operation& operation, const json::Value& body,
                            std::function<void()> act) {
  const MonoTime now = replica_.ground_.executor.now();
  if (left_ > replica_.late_until_ + limit_) replica_.ground_.witness.asked(operation.key, body);
  if (replica_.trouble_.late == 0) return false;
  const bool fenced =
      std::any_of(body.items().begin(), body.items().end(), [](const json::Value& part) {
        return part["path"].string_view_or("").starts_with("/status/membership");
      });
  if (!fenced || !replica_.rng_.chance(replica_.trouble_.late)) return false;
  const Duration delay = limit_ + std::chrono::milliseconds(replica_.rng_.below(kLateMillis));
  const auto act_unless_restored = [&witness = replica_.ground_.witness,
                                    restores = replica_.ground_.witness.restores(),
                                    act = std::move(act)] {
    if (witness.restores() == restores) act();
  };
  replica_.late_until_ = std::max(replica_.late_until_, now + delay);
  replica_.ground_.executor.at(now + delay, act_unless_restored);
  serving() = nullptr;
  life_.process.sleep_for(limit_);
  return true;
}

std::optional<Error> Replica::Faults::event(const kube::Operation& operation) {
  const ApiTrouble& trouble = replica_.trouble_;
  if (trouble.slow_events > Duration(0) && operation.type.plural == trouble.slow_kind)
    life_.process.sleep_for(trouble.slow_events);
  if (is_cut()) return Error(Code::kUnavailable, "the watch was cut");
  if (replica_.rng_.chance(trouble.expired)) {
    expired_.insert(operation.type.plural);
    return Error(Code::kExpired, "too old resource version");
  }
  return std::nullopt;
}

// ---- Lives

Replica::Replica(const Ground& ground, WriteCrashes& crashes, ReplicaSettings settings)
    : ground_(ground),
      crashes_(crashes),
      settings_(std::move(settings)),
      rng_(Rng(settings_.seed).fork(17)) {}

void Replica::start() {
  if (life_ != nullptr) return;
  ++lives_;
  testing::SimProcess& process =
      ground_.executor.process(fmt::format("{}-{}", settings_.host, lives_));
  process.skew(settings_.monotonic_skew, settings_.wall_skew);
  auto* life = new Life(*this, process);
  life_ = life;
  life->network = ground_.attach(process, settings_.host, &as_next_operator);
  life->client = std::make_unique<kube::MemoryClient>(ground_.server, process, &life->faults,
                                                      settings_.seed + lives_);
  life->lease_client = std::make_unique<kube::MemoryClient>(
      ground_.server, process, &life->lease_faults, settings_.seed + lives_);
  process.on_crash([this, life] {
    life->client->disconnect();
    life->lease_client->disconnect();
    if (serving() == this) serving() = nullptr;
    if (life_ == life) died();
  });
  life->replica = std::make_unique<control::Operator>(*life->client, *life->lease_client, process,
                                                      *life->network, life->metrics,
                                                      operator_settings(settings_, lives_));
  ground_.story.say("{} starts, life {}", settings_.host, lives_);
  life->task = process.spawn("operator", [this, life](std::stop_token stop) {
    const Status ended = life->replica->run(stop);
    ground_.story.say("{} ends: {}", settings_.host, ended.ok() ? "ok" : ended.error().to_string());
    life->process.crash();
  });
}

void Replica::died() {
  life_ = nullptr;
  const MonoTime again = ground_.executor.now() + kRestartLeast + nanos(rng_.below(kRestartSpan));
  ground_.executor.at(again, [this] { start(); });
}

void Replica::crash() {
  if (life_ != nullptr) life_->process.crash();
}

void Replica::stop() {
  if (life_ != nullptr) life_->task.request_stop();
}

void Replica::freeze() {
  if (life_ != nullptr) life_->process.freeze();
}

void Replica::thaw() {
  if (life_ != nullptr) life_->process.thaw();
}

bool Replica::is_leader() const { return life_ != nullptr && life_->replica->is_leader(); }
bool Replica::is_frozen() const { return life_ != nullptr && life_->process.frozen(); }
bool Replica::is_ready() const { return life_ != nullptr && life_->replica->is_ready(); }

std::optional<std::uint64_t> Replica::epoch() const {
  if (life_ == nullptr) return std::nullopt;
  return static_cast<std::uint64_t>(life_->replica->epoch());
}

testing::SimProcess* Replica::process() { return life_ == nullptr ? nullptr : &life_->process; }

}  // namespace rubato::sim
