#include "worker/agent/coordinator_link.h"

#include "common/log.h"
#include "worker/protocol/wire.pb.h"

#include <algorithm>
#include <utility>

namespace rubato::worker {

namespace {
constexpr auto kSendWait = 20ms;  // a full queue drops the frame after this
constexpr auto kWelcomeLimit = 3s;
constexpr Duration kSilenceDefault = 5s;  // until a Welcome says otherwise
constexpr auto kWarnAgain = 1min;         // of the same
constexpr std::size_t kWarnedMost = 16;   // within that time
}  // namespace

CoordinatorLink::CoordinatorLink(Executor& executor, net::Network& network,
                                 const AgentConfig& config, Hooks hooks)
    : executor_(executor),
      network_(network),
      config_(config),
      hooks_(std::move(hooks)),
      rng_(config.seed),
      listed_(config.coordinators) {
  const auto names = std::ranges::stable_partition(
      listed_, [](const net::Endpoint& each) { return net::is_address(each.host); });
  listed_first_ = names.size() == listed_.size() ? listed_.size() : listed_.size() - names.size();
}

CoordinatorLink::~CoordinatorLink() { stop(); }

void CoordinatorLink::start() {
  task_ = executor_.spawn("coordinator-link", [this](std::stop_token stop) { run(stop); });
}

void CoordinatorLink::stop() {
  task_.request_stop();
  {
    std::lock_guard lock(mutex_);
    if (dialed_) dialed_->close();
  }
  task_.join();
}

bool CoordinatorLink::send(std::string frame) {
  std::shared_ptr<net::Channel> channel;
  {
    std::lock_guard lock(mutex_);
    channel = channel_;
  }
  return channel && channel->send(std::move(frame), executor_.now() + kSendWait).ok();
}

bool CoordinatorLink::is_connected() const {
  std::lock_guard lock(mutex_);
  return channel_ != nullptr;
}

void CoordinatorLink::set_channel(std::shared_ptr<net::Channel> channel) {
  std::lock_guard lock(mutex_);
  channel_ = std::move(channel);
}

// Once a minute each: who reaches nobody tries every second.
void CoordinatorLink::warn(const std::string& text) {
  const MonoTime now = executor_.now();
  std::erase_if(warned_, [&](const auto& each) { return each.second + kWarnAgain <= now; });
  if (warned_.size() >= kWarnedMost || !warned_.emplace(text, now).second) return;
  LOG_WARNING("agent", "{}", text);
}

void CoordinatorLink::run(std::stop_token stop) {
  std::size_t next = 0;
  Duration backoff = kDialBackoffFirst;
  std::optional<net::Endpoint> hint;
  while (!stop.stop_requested()) {
    const bool lost = backoff >= kDialBackoffMost;
    const std::size_t listed = lost ? listed_.size() : listed_first_;
    const std::size_t round = listed + (lost && last_leader_ ? 1 : 0);
    const std::size_t turn = next % round;
    const net::Endpoint to = hint ? *hint : turn < listed ? listed_[turn] : *last_leader_;
    if (!hint) ++next;
    const bool hinted = hint.has_value();
    hint.reset();
    bool welcomed = false;
    if (auto fresh = config_.credentials(); fresh.ok()) {
      credentials_ = *std::move(fresh);
    } else {
      warn(fresh.error().what() + "; goes on with the credentials of before");
    }
    auto dialed = network_.dial(to, credentials_.tls, executor_.now() + kDialLimit);
    if (dialed.ok()) {
      std::shared_ptr<net::Channel> channel = std::move(*dialed);
      {
        std::lock_guard lock(mutex_);
        dialed_ = channel;
      }
      if (!stop.stop_requested()) hint = talk(*channel, stop, welcomed);
      set_channel(nullptr);
      channel->close();
    } else {
      warn("no coordinator: " + dialed.error().what());
    }
    if (welcomed) backoff = kDialBackoffFirst;
    if (hint && !hinted) continue;  // somebody named the leader: ask there at once
    const double jitter = 0.5 + rng_.unit();
    executor_.sleep_for(
        Duration(static_cast<std::int64_t>(static_cast<double>(backoff.count()) * jitter)), stop);
    // One round over all of them before waiting longer.
    if (next % round == 0) backoff = std::min<Duration>(backoff * 2, kDialBackoffMost);
  }
}

std::optional<net::Endpoint> CoordinatorLink::talk(net::Channel& channel, std::stop_token stop,
                                                   bool& welcomed) {
  // So it is, too, where our certificate is not known there.
  const auto no_answer = [&](const Error& error) {
    warn("the coordinator at " + to_string(channel.peer()) + " has no answer: " + error.what());
  };
  const Status said = channel.send(hooks_.hello(credentials_.token, leader_epoch_, leader_seal_),
                                   executor_.now() + kWelcomeLimit);
  if (!said.ok()) {
    no_answer(said.error());
    return {};
  }
  Duration silence = kSilenceDefault;
  MonoTime deadline = executor_.now() + kWelcomeLimit;
  while (!stop.stop_requested()) {
    auto frame = channel.receive(deadline);
    if (!frame.ok()) {
      if (!welcomed)
        no_answer(frame.error());
      else
        LOG_INFO("agent", "the coordinator went away: {}", frame.error().what());
      return {};
    }
    deadline = executor_.now() + silence;
    wire::CoordinatorMessage message;
    if (!message.ParseFromString(*frame)) {
      LOG_ERROR("agent", "a frame from the coordinator cannot be read");
      return {};
    }
    if (message.has_not_leader()) {
      const auto leader = net::parse_endpoint(message.not_leader().leader());
      if (!leader.ok()) return {};
      return *leader;
    }
    if (message.has_refused()) {
      warn("refused: " + message.refused().reason() + ": " + message.refused().message());
      hooks_.refused(message.refused().reason());
      return {};
    }
    if (message.has_welcome()) {
      const auto& welcome = message.welcome();
      if (welcome.leader_epoch() < leader_epoch_) {
        warn(fmt::format("a leader of epoch {} is refused: {} was obeyed", welcome.leader_epoch(),
                         leader_epoch_));
        return {};
      }
      if (!std::exchange(warned_, {}).empty())
        LOG_INFO("agent", "reached the coordinator at {}", to_string(channel.peer()));
      leader_epoch_ = welcome.leader_epoch();
      leader_seal_ = welcome.seal();
      if (auto leader = net::parse_endpoint(welcome.leader()); leader.ok())
        last_leader_ = std::move(*leader);
      silence = std::max<Duration>(std::chrono::milliseconds(2 * welcome.silence_ms()), 1s);
      welcomed = true;
      {
        std::lock_guard lock(mutex_);
        channel_ = dialed_;
      }
      hooks_.welcomed(std::chrono::milliseconds(std::max(welcome.heartbeat_ms(), 10u)));
      continue;
    }
    if (welcomed && !message.has_heartbeat_ack()) hooks_.deliver(std::move(*frame));
  }
  return {};
}

}  // namespace rubato::worker
