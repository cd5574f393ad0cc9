#include "operator/coordinator/server.h"

#include "common/log.h"
#include "common/net/certificates.h"
#include "operator/coordinator/bounds.h"

#include <algorithm>
#include <deque>
#include <utility>

namespace rubato::coordinator {
namespace {
constexpr auto kLookInterval = 100ms;  // at sessions with a limit
constexpr auto kRoomInterval = 10ms;   // at jobs that had no room
constexpr Duration kPausePerSession = 1us;
constexpr Duration kPauseLeast = 100us;
constexpr Duration kPauseMost = 5ms;
// The thread that reads sockets may be this late before nobody is judged by what it has not read.
constexpr Duration kReadLate = 4 * net::kReadBeat;
}  // namespace

struct Server::Inbox {
  struct Newcomer {
    std::uint64_t id = 0;
    std::shared_ptr<net::Channel> channel;
  };
  explicit Inbox(Executor& e) : executor(e), arrived(e.make_condition()) {}

  template <class Change>
  void add(Change change) {
    {
      const std::lock_guard lock(mutex);
      if (newcomers.empty() && ready.empty()) since = executor.now();
      change();
    }
    arrived->notify_all();
  }

  void note_beat() {
    const std::lock_guard lock(mutex);
    beat_before = std::exchange(beat, executor.now());
  }

  // All that had arrived by then had been read; now, unless the beats are late. Under the lock.
  MonoTime read_until() const {
    const MonoTime now = executor.now();
    return beat_before && now - *beat_before > kReadLate ? *beat_before : now;
  }

  Executor& executor;
  mutable std::mutex mutex;
  const std::unique_ptr<Condition> arrived;
  std::deque<Newcomer> newcomers;
  std::vector<std::uint64_t> ready;
  MonoTime since{};               // the oldest of them came
  std::optional<MonoTime> taken;  // a batch is being worked on, and came by then
  // Of the thread that reads: what waited in sockets at the one before the last is read by the
  // last.
  std::optional<MonoTime> beat;
  std::optional<MonoTime> beat_before;
};

Server::Server(const Dependencies& dependencies,
               std::function<Standing(const std::string& uid)> find)
    : dependencies_(dependencies),
      executor_(dependencies.executor),
      find_(std::move(find)),
      agents_(dependencies.metrics.gauge("rubato_coordinator_agents", "Agents connected now.")),
      inbox_(std::make_shared<Inbox>(dependencies.executor)),
      master_key_(dependencies.credentials.master_key) {}

Server::~Server() {
  stopping_ = true;
  if (listener_) listener_->close();
  acceptor_.request_stop();
  server_.request_stop();
  inbox_->arrived->notify_all();
  acceptor_.join();
  server_.join();
  for (auto& [id, session] : sessions_) {
    session.channel->close();
    if (session.stage == Stage::kMember) agents_.add(-1);
  }
}

Status Server::start() {
  CHECK(!listener_);
  net::ListenLimits limits;
  limits.frame = kAgentFrameMax;
  limits.receive_queue = kAgentQueueMax;
  limits.send_queue = kAgentOutboxMax;
  // The I/O thread may say so when we are gone; the registry stays.
  limits.refused = [&many = refusals("TooManyHandshakes"), &failed = refusals("Handshake")](
                       net::Refusal why) { (why == net::Refusal::kTooMany ? many : failed).add(); };
  limits.beat = [inbox = inbox_] { inbox->note_beat(); };
  TRY(listener_,
      dependencies_.network.listen(dependencies_.listen, dependencies_.credentials.tls, limits));
  acceptor_ = executor_.spawn("agents-accept", [this](std::stop_token stop) { accept_all(stop); });
  server_ = executor_.spawn("agents", [this](std::stop_token stop) { serve_all(stop); });
  return ok();
}

net::Endpoint Server::local() const {
  CHECK(listener_);
  return listener_->local();
}

void Server::renew(Credentials credentials) {
  CHECK(listener_);
  if (const Status status = listener_->renew(credentials.tls); !status.ok()) {
    LOG_WARNING(kLog, "keeps its certificate: {}", status.error().to_string());
    return;
  }
  const std::lock_guard lock(master_key_mutex_);
  master_key_ = std::move(credentials.master_key);
}

std::string Server::signed_by_us(const std::string& message) const {
  const std::lock_guard lock(master_key_mutex_);
  return net::hmac_sha256_hex(master_key_, message);
}

MonoTime Server::heard_until() const {
  const std::lock_guard lock(inbox_->mutex);
  const MonoTime read = inbox_->read_until();
  if (inbox_->taken) return std::min(read, *inbox_->taken);
  const bool is_empty = inbox_->newcomers.empty() && inbox_->ready.empty();
  return is_empty ? read : std::min(read, inbox_->since);
}

void Server::accept_all(const std::stop_token& stop) {
  std::uint64_t next_session = 1;
  while (!stop.stop_requested() && !stopping_) {
    auto accepted = listener_->accept(executor_.now() + 1s);
    if (!accepted.ok()) {
      if (accepted.error().code() == Code::kTimeout) continue;
      if (stopping_ || stop.stop_requested()) return;
      LOG_WARNING(kLog, "accept: {}", accepted.error().to_string());
      executor_.sleep_for(100ms, stop);
      continue;
    }
    std::shared_ptr<net::Channel> channel = std::move(*accepted);
    if (open_ >= kSessionsMax) {
      LOG_WARNING(kLog, "more than {} agents", kSessionsMax);
      count_refused("TooManyAgents");
      channel->close();
      continue;
    }
    ++open_;
    const std::uint64_t id = next_session++;
    inbox_->add([&] { inbox_->newcomers.push_back({id, std::move(channel)}); });
  }
}

// ---- The serving task
// ----------------------------------------------------------------------------------------

void Server::serve_all(const std::stop_token& stop) {
  MonoTime looked = executor_.now();
  while (!stop.stop_requested() && !stopping_) {
    Duration most = 1s;
    if (!limited_.empty()) most = kLookInterval;
    if (!full_.empty()) most = kRoomInterval;
    std::deque<Inbox::Newcomer> newcomers;
    std::vector<std::uint64_t> ready;
    {
      std::unique_lock lock(inbox_->mutex);
      inbox_->taken.reset();
      inbox_->arrived->wait_until(lock, executor_.now() + most, [&] {
        return stopping_ || stop.stop_requested() || !inbox_->newcomers.empty() ||
               !inbox_->ready.empty();
      });
      newcomers.swap(inbox_->newcomers);
      ready.swap(inbox_->ready);
      if (!newcomers.empty() || !ready.empty()) inbox_->taken = inbox_->since;
    }
    for (Inbox::Newcomer& newcomer : newcomers) open(newcomer.id, std::move(newcomer.channel));
    for (const std::uint64_t id : ready) take_turn(id);
    for (const std::uint64_t id : std::exchange(full_, {})) take_turn(id);
    // Many small wake-ups cost more than what they bring.
    const Duration pause = kPausePerSession * static_cast<int>(sessions_.size());
    if (pause > kPauseLeast) executor_.sleep_for(std::min(pause, kPauseMost), stop);
    if (executor_.now() - looked < kLookInterval) continue;
    looked = executor_.now();
    look_at_limits();
  }
}

void Server::open(std::uint64_t id, std::shared_ptr<net::Channel> channel) {
  Session session;
  session.identity = channel->peer_name();
  session.limit = executor_.now() + kHelloLimit;
  session.is_queued = std::make_shared<std::atomic<bool>>(false);
  if (!session.identity.empty()) {
    const Standing standing = find_(session.identity);
    const std::size_t pods = standing.job ? standing.job->pod_count() : 0;
    if (++greeting_of_[session.identity] > std::max(kGreetingMin, pods)) {
      leave_greeting(session);
      count_refused("TooManyConnections");
      channel->close();
      --open_;
      return;
    }
  }
  limited_.insert(id);
  session.channel = channel;
  const auto is_queued = session.is_queued;
  sessions_.emplace(id, std::move(session));
  channel->on_news([inbox = inbox_, is_queued, id] {
    if (!is_queued->exchange(true)) inbox->add([&] { inbox->ready.push_back(id); });
  });
}

void Server::leave_greeting(const Session& session) {
  if (session.identity.empty()) return;
  const auto found = greeting_of_.find(session.identity);
  if (--found->second == 0) greeting_of_.erase(found);
}

void Server::take_turn(std::uint64_t id) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  Session& session = found->second;
  session.is_queued->store(false);
  std::size_t bytes = 0;
  for (std::size_t taken = 0;; ++taken) {
    if (session.stage == Stage::kMember && !session.job->has_room()) {
      if (full_.insert(id).second && limited_.insert(id).second)
        session.limit = executor_.now() + kInputWait;
      return;
    }
    if (session.stage == Stage::kMember) limited_.erase(id);  // its job had room again
    if (taken == kTurnFrames || bytes >= kTurnBytes) {
      if (!session.is_queued->exchange(true)) inbox_->add([&] { inbox_->ready.push_back(id); });
      return;
    }
    const MonoTime now = executor_.now();
    const auto frame = session.channel->receive(now);
    if (!frame.ok()) {
      if (frame.error().code() != Code::kTimeout) end(id, "connection closed");
      return;
    }
    bytes += frame->size();
    if (const char* why = take(id, session, *frame, now)) return end(id, why);
  }
}

const char* Server::take(std::uint64_t id, Session& session, const std::string& frame,
                         MonoTime arrived) {
  constexpr const char* kNotTheProtocol = "spoke what is not the protocol";
  if (session.stage == Stage::kFarewell) return nullptr;
  wire::AgentMessage message;
  if (!has_few_parts(frame) || !message.ParseFromString(frame)) {
    count_refused("NotTheProtocol");
    return kNotTheProtocol;
  }
  const std::size_t bytes = message.SpaceUsedLong();
  if (session.stage == Stage::kMember) {
    const bool is_taken =
        session.job->deliver(id, session.pod_uid, std::move(message), bytes, arrived);
    return is_taken ? nullptr : "another connection took its place";
  }
  if (!message.has_hello()) {
    count_refused("NotTheProtocol");
    return kNotTheProtocol;
  }
  leave_greeting(session);
  if (dependencies_.credentials.tls.require_peer_certificate &&
      session.identity != message.hello().job_uid())
    refuse(*session.channel, "BadCertificate", "the certificate is not this job's", true);
  else
    session.job = greet(*session.channel, message.hello());
  if (!session.job) {
    // The answer is on its way; the agent closes when it has read it.
    session.stage = Stage::kFarewell;
    session.limit = arrived + kFarewellLimit;
    return nullptr;
  }
  session.stage = Stage::kMember;
  session.pod_uid = message.hello().pod_uid();
  limited_.erase(id);
  agents_.add(1);
  note_arrival(arrived, session.pod_uid);
  session.job->attach(id, session.channel, std::move(*message.mutable_hello()), bytes, arrived);
  return nullptr;
}

// An agent that comes again and again is no crowd.
void Server::note_arrival(MonoTime now, const std::string& pod_uid) {
  if (now - second_began_ >= 1s) {
    second_began_ = now;
    arrived_.clear();
  }
  if (arrived_.size() <= kCrowd) arrived_.insert(pod_uid);
  if (arrived_.size() > kCrowd) crowded_at_ = now;
}

void Server::end(std::uint64_t id, const std::string& why) {
  const auto found = sessions_.find(id);
  const Session session = std::move(found->second);
  sessions_.erase(found);
  limited_.erase(id);
  full_.erase(id);
  --open_;
  session.channel->close();
  if (session.stage == Stage::kGreeting) leave_greeting(session);
  if (session.stage != Stage::kMember) return;
  agents_.add(-1);
  session.job->detach(id, session.pod_uid, why, executor_.now());
}

void Server::look_at_limits() {
  const MonoTime now = executor_.now();
  std::vector<std::uint64_t> over;
  for (const std::uint64_t id : limited_)
    if (sessions_.at(id).limit <= now) over.push_back(id);
  for (const std::uint64_t id : over) {
    const Stage stage = sessions_.at(id).stage;
    if (stage == Stage::kGreeting) count_refused("NoHello");
    if (stage == Stage::kMember) count_refused("Flood");
    end(id, stage == Stage::kMember ? "sent more than its job can take" : "was silent");
  }
}

// ---- Answers
// -------------------------------------------------------------------------------------------------

// A full queue is of somebody who does not read.
void Server::answer(net::Channel& channel, const wire::CoordinatorMessage& message) {
  if (!channel.send(message.SerializeAsString(), executor_.now()).ok()) channel.close();
}

Counter& Server::refusals(const char* reason) {
  return dependencies_.metrics.counter("rubato_coordinator_refused_total",
                                       "Connections of agents refused, by reason.",
                                       {{"reason", reason}});
}

void Server::count_refused(const char* reason) { refusals(reason).add(); }

void Server::refuse(net::Channel& channel, const char* reason, const std::string& message,
                    bool permanent) {
  count_refused(reason);
  LOG_INFO(kLog, "refuses {}: {}: {}", net::to_string(channel.peer()), reason, message);
  wire::CoordinatorMessage refused;
  refused.mutable_refused()->set_reason(reason);
  refused.mutable_refused()->set_message(message);
  refused.mutable_refused()->set_permanent(permanent);
  answer(channel, refused);
}

std::string Server::seal(std::uint64_t epoch, const std::string& identity) const {
  const std::string what = "leader/" + std::to_string(epoch) + "/" + identity;
  return signed_by_us(what) + "/" + identity;
}

// Has the agent obeyed a leader that ours is not above? Its own word is not enough: whoever holds a
// job's token would move all jobs to another leader with it.
bool Server::note_leader(const wire::Hello& hello, const Standing& standing) {
  const std::size_t end = hello.leader_seal().find('/');
  if (end == std::string::npos) return false;
  const std::string identity = hello.leader_seal().substr(end + 1);
  const std::uint64_t epoch = hello.leader_epoch();
  const bool is_ours = identity == dependencies_.identity && epoch == standing.epoch;
  if (is_ours || !net::equal_secret(seal(epoch, identity), hello.leader_seal())) return false;
  if (dependencies_.on_epoch) dependencies_.on_epoch(epoch);
  return epoch >= standing.epoch;
}

Duration heartbeat_period(const Timing& timing, std::size_t agents) {
  const Duration wanted = Duration(1s) / kBeatsPerSecond * static_cast<std::int64_t>(agents);
  return std::max<Duration>(timing.heartbeat, std::min(wanted, timing.silence / kBeatsPerSilence));
}

std::shared_ptr<JobTask> Server::greet(net::Channel& channel, const wire::Hello& hello) {
  if (!net::equal_secret(signed_by_us(hello.job_uid()), hello.token())) {
    refuse(channel, "BadToken", "the token is not this job's", true);
    return nullptr;
  }
  const Standing standing = find_(hello.job_uid());
  if (hello.version_min() > kWireVersion || hello.version_max() < kWireVersionMin) {
    refuse(channel, "Version", "no common version of the protocol", true);
    if (standing.leading && standing.job)
      standing.job->turn_away(
          hello, fmt::format("its agent ({}) speaks versions {} to {} of the protocol, and this "
                             "operator {} to {}",
                             bounded(hello.build()), hello.version_min(), hello.version_max(),
                             kWireVersionMin, kWireVersion));
    return nullptr;
  }
  const std::string leader = dependencies_.leader_address ? dependencies_.leader_address() : "";
  const bool is_outdone = note_leader(hello, standing);
  if (!standing.leading) {
    wire::CoordinatorMessage message;
    message.mutable_not_leader()->set_leader(leader);
    answer(channel, message);
    return nullptr;
  }
  if (is_outdone || hello.leader_epoch() > standing.epoch) {
    refuse(channel, "StaleLeader", "the agent has obeyed a newer leader", false);
    return nullptr;
  }
  if (!standing.job) {
    refuse(channel, "UnknownJob", "this job is not known (yet)", false);
    return nullptr;
  }
  standing.job->note_pod(hello.pod_name());
  if (!standing.job->knows_pod(hello.pod_uid())) {
    refuse(channel, "NotWanted", "no such pod is wanted (yet)", false);
    return nullptr;
  }
  wire::CoordinatorMessage welcome;
  welcome.mutable_welcome()->set_version(std::min(hello.version_max(), kWireVersion));
  welcome.mutable_welcome()->set_leader_epoch(standing.epoch);
  const auto ms = [](Duration d) {
    return static_cast<std::uint32_t>(
        std::chrono::duration_cast<std::chrono::milliseconds>(d).count());
  };
  welcome.mutable_welcome()->set_heartbeat_ms(
      ms(heartbeat_period(dependencies_.timing, standing.agents)));
  welcome.mutable_welcome()->set_silence_ms(ms(dependencies_.timing.silence));
  welcome.mutable_welcome()->set_leader(leader);
  welcome.mutable_welcome()->set_seal(seal(standing.epoch, dependencies_.identity));
  answer(channel, welcome);
  return standing.job;
}

}  // namespace rubato::coordinator
