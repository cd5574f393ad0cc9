#include "operator/coordinator/server.h"

#include "common/log.h"
#include "common/net/certificates.h"

#include <algorithm>

namespace rubato::coordinator {
namespace {
constexpr const char* kLog = "coordinator";
}

Server::Server(const Dependencies& dependencies,
               std::function<Standing(const std::string& uid)> find)
    : dependencies_(dependencies), executor_(dependencies.executor), find_(std::move(find)) {}

Server::~Server() {
  stopping_ = true;
  if (listener_) listener_->close();
  acceptor_.request_stop();
  acceptor_.join();
  std::list<Connection> rest;
  {
    const std::lock_guard lock(mutex_);
    rest.swap(connections_);
  }
  for (Connection& connection : rest) connection.channel->close();
  for (Connection& connection : rest) connection.task.join();
}

Status Server::start() {
  CHECK(!listener_);
  TRY(listener_, dependencies_.network.listen(dependencies_.listen, dependencies_.tls));
  acceptor_ = executor_.spawn("agents", [this](std::stop_token stop) { accept_all(stop); });
  return ok();
}

net::Endpoint Server::local() const {
  CHECK(listener_);
  return listener_->local();
}

void Server::accept_all(const std::stop_token& stop) {
  while (!stop.stop_requested() && !stopping_) {
    auto accepted = listener_->accept(executor_.now() + 1s);
    reap();
    if (!accepted.ok()) {
      if (accepted.error().code() == Code::kTimeout) continue;
      if (stopping_ || stop.stop_requested()) return;
      LOG_WARNING(kLog, "accept: {}", accepted.error().to_string());
      executor_.sleep_for(100ms, stop);
      continue;
    }
    const std::shared_ptr<net::Channel> channel = std::move(*accepted);
    const std::lock_guard lock(mutex_);
    if (connections_.size() >= kSessionsMax) {
      LOG_WARNING(kLog, "more than {} agents", kSessionsMax);
      channel->close();
      continue;
    }
    const std::uint64_t id = next_session_++;
    connections_.push_back({channel, Task{}});
    connections_.back().task =
        executor_.spawn("agent", [this, id, channel](std::stop_token) { serve(id, channel); });
  }
}

void Server::reap() {
  std::list<Connection> done;
  const std::lock_guard lock(mutex_);
  for (auto it = connections_.begin(); it != connections_.end();) {
    const auto here = it++;
    if (here->task.done()) done.splice(done.end(), connections_, here);
  }
}

void Server::answer(net::Channel& channel, const wire::CoordinatorMessage& message) {
  const Status sent = channel.send(message.SerializeAsString(), executor_.now() + 1s);
  if (!sent.ok()) channel.close();
}

void Server::refuse(net::Channel& channel, const char* reason, const std::string& message,
                    bool permanent) {
  dependencies_.metrics
      .counter("rubato_coordinator_refused_total", "Agents refused, by reason.",
               {{"reason", reason}})
      .add();
  LOG_INFO(kLog, "refuses {}: {}: {}", net::to_string(channel.peer()), reason, message);
  wire::CoordinatorMessage refused;
  refused.mutable_refused()->set_reason(reason);
  refused.mutable_refused()->set_message(message);
  refused.mutable_refused()->set_permanent(permanent);
  answer(channel, refused);
}

std::string Server::seal(std::uint64_t epoch, const std::string& identity) const {
  const std::string what = "leader/" + std::to_string(epoch) + "/" + identity;
  return net::hmac_sha256_hex(dependencies_.master_key, what) + "/" + identity;
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

std::shared_ptr<JobTask> Server::greet(net::Channel& channel, const wire::Hello& hello) {
  const std::string token = net::hmac_sha256_hex(dependencies_.master_key, hello.job_uid());
  if (!net::equal_secret(token, hello.token())) {
    refuse(channel, "BadToken", "the token is not this job's", true);
    return nullptr;
  }
  if (hello.version_min() > kWireVersion || hello.version_max() < kWireVersionMin) {
    refuse(channel, "Version", "no common version of the protocol", true);
    return nullptr;
  }
  const Standing standing = find_(hello.job_uid());
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
  welcome.mutable_welcome()->set_heartbeat_ms(ms(dependencies_.timing.heartbeat));
  welcome.mutable_welcome()->set_silence_ms(ms(dependencies_.timing.silence));
  welcome.mutable_welcome()->set_leader(leader);
  welcome.mutable_welcome()->set_seal(seal(standing.epoch, dependencies_.identity));
  answer(channel, welcome);
  return standing.job;
}

void Server::serve(std::uint64_t id, const std::shared_ptr<net::Channel>& channel) {
  const auto first = channel->receive(executor_.now() + kHelloLimit);
  const MonoTime said_hello = executor_.now();
  wire::AgentMessage message;
  if (!first.ok() || !message.ParseFromString(*first) || !message.has_hello()) {
    channel->close();
    return;
  }
  const std::string pod_uid = message.hello().pod_uid();
  const std::shared_ptr<JobTask> job = greet(*channel, message.hello());
  if (!job) {
    // The answer is on its way; the agent closes when it has read it.
    (void)channel->receive(executor_.now() + 1s);
    channel->close();
    return;
  }
  Gauge& agents = dependencies_.metrics.gauge("rubato_coordinator_agents", "Agents connected now.");
  agents.add(1);
  job->attach(id, channel, message.hello(), said_hello);
  std::string why = "connection closed";
  while (!stopping_) {
    const auto frame = channel->receive(executor_.now() + 5s);
    const MonoTime arrived = executor_.now();
    if (!frame.ok()) {
      if (frame.error().code() == Code::kTimeout && !channel->closed()) continue;
      break;
    }
    wire::AgentMessage next;
    if (!next.ParseFromString(*frame)) {
      why = "spoke what is not the protocol";
      break;
    }
    if (!job->deliver(id, pod_uid, std::move(next), arrived)) break;
  }
  channel->close();
  job->detach(id, pod_uid, why, executor_.now());
  agents.add(-1);
}

}  // namespace rubato::coordinator
