// Everything here runs on the executor's one thread; mutexes only satisfy Condition's signature.
#include "common/testing/sim_network.h"

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <set>
#include <vector>

namespace rubato::testing {
namespace {

using net::Channel;
using net::Endpoint;
using net::Listener;
using net::TlsConfig;

constexpr std::size_t kHeader = 4;
constexpr std::size_t kWindow = net::kSendQueueBytes + net::kReceiveQueueBytes;
constexpr std::size_t kBacklogMax = 256;
constexpr Duration kDialAgain = 1s;  // TCP's first retransmission of a SYN
constexpr std::uint16_t kFirstFreePort = 20'000;

using Impl = SimNetwork::Impl;

Error gone_error(const std::string& why) { return {Code::kUnavailable, "channel: " + why}; }

template <class Predicate>
bool wait(Condition& condition, MonoTime deadline, Predicate done) {
  std::mutex mutex;
  std::unique_lock lock(mutex);
  return condition.wait_until(lock, deadline, done);
}

// A frame on its way, or the end of the stream.
struct Item {
  std::string frame;
  bool is_end = false;
  std::string why;
  MonoTime due{};
};

struct Side {
  SimProcess* process = nullptr;
  Endpoint address;
  std::unique_ptr<Condition> readable;
  std::unique_ptr<Condition> writable;
  std::deque<Item> flight;  // towards this side
  MonoTime last_due{};
  std::deque<std::string> inbox;
  std::size_t bytes = 0;  // in flight and in the inbox
  bool closed = false;    // by this side, or its process crashed
  bool gone = false;      // the other side's end arrived, or a reset
  std::string why;
};

struct Connection {
  std::array<Side, 2> sides;  // the dialer, the acceptor
};
using ConnectionPtr = std::shared_ptr<Connection>;

struct Backlog {
  SimProcess* process = nullptr;
  Endpoint local;
  std::unique_ptr<Condition> arrived;
  std::deque<ConnectionPtr> ready;
  bool closed = false;
};
using BacklogPtr = std::shared_ptr<Backlog>;

struct Attempt {
  SimProcess* process = nullptr;
  std::string from;
  Endpoint to;
  std::unique_ptr<Condition> finished;
  bool abandoned = false;
  bool done = false;
  ConnectionPtr connection;
};
using AttemptPtr = std::shared_ptr<Attempt>;

}  // namespace

struct SimNetwork::Impl : public std::enable_shared_from_this<SimNetwork::Impl> {
  Impl(SimExecutor& executor, std::uint64_t seed) : sim(executor), rng(seed) {}

  bool cut_between(const std::string& a, const std::string& b) const {
    if (a == b) return false;
    return cut_hosts.count(a) > 0 || cut_hosts.count(b) > 0 || cut_pairs.count(std::minmax(a, b));
  }
  Duration delay() {
    const auto spread = static_cast<std::uint64_t>((link.delay_max - link.delay_min).count());
    return link.delay_min + Duration(static_cast<std::int64_t>(rng.below(spread + 1)));
  }
  // Calls `fn(*this)` after `wait`, unless the network is gone by then.
  template <class Function>
  void later(Duration wait, Function fn) {
    sim.at(sim.now() + wait, [weak = weak_from_this(), fn = std::move(fn)] {
      if (const auto self = weak.lock()) fn(*self);
    });
  }

  ConnectionPtr connect(const Attempt& attempt, const BacklogPtr& backlog);
  void send(const ConnectionPtr& connection, std::size_t to, Item item);
  void deliver(Connection& connection, std::size_t to);
  void close(const ConnectionPtr& connection, std::size_t side, const std::string& why);
  void knock(const AttemptPtr& attempt);
  void answer(const AttemptPtr& attempt);
  void process_crashed(const SimProcess& process);
  void healed();
  std::vector<ConnectionPtr> live();

  SimExecutor& sim;
  Rng rng;
  SimLink link;
  std::set<std::string> cut_hosts;
  std::set<std::pair<std::string, std::string>> cut_pairs;
  std::map<std::pair<std::string, std::uint16_t>, BacklogPtr> backlogs;
  std::vector<std::weak_ptr<Connection>> connections;
  std::uint16_t next_port = kFirstFreePort;
};

ConnectionPtr SimNetwork::Impl::connect(const Attempt& attempt, const BacklogPtr& backlog) {
  const auto connection = std::make_shared<Connection>();
  connection->sides[0].process = attempt.process;
  connection->sides[0].address = {attempt.from, ++next_port};
  connection->sides[1].process = backlog->process;
  connection->sides[1].address = backlog->local;
  for (Side& side : connection->sides) {
    side.readable = side.process->make_condition();
    side.writable = side.process->make_condition();
  }
  std::erase_if(connections, [](const auto& weak) { return weak.expired(); });
  connections.push_back(connection);
  return connection;
}

std::vector<ConnectionPtr> SimNetwork::Impl::live() {
  std::vector<ConnectionPtr> out;
  for (const auto& weak : connections) {
    if (auto connection = weak.lock()) out.push_back(std::move(connection));
  }
  return out;
}

void SimNetwork::Impl::send(const ConnectionPtr& connection, std::size_t to, Item item) {
  Side& side = connection->sides.at(to);
  item.due = std::max(side.last_due, sim.now() + delay());
  side.last_due = item.due;
  side.flight.push_back(std::move(item));
  // The callback keeps the connection: an end must arrive even when the sender has let go of it.
  later(side.last_due - sim.now(), [connection, to](Impl& self) { self.deliver(*connection, to); });
}

// Hands over what is due, in order; nothing passes a cut.
void SimNetwork::Impl::deliver(Connection& connection, std::size_t to) {
  Side& side = connection.sides.at(to);
  Side& from = connection.sides.at(1 - to);
  while (!side.flight.empty() && side.flight.front().due <= sim.now() &&
         !cut_between(side.address.host, from.address.host)) {
    Item item = std::move(side.flight.front());
    side.flight.pop_front();
    if (side.closed || side.gone) {
      side.bytes -= item.is_end ? 0 : item.frame.size() + kHeader;
    } else if (item.is_end) {
      side.gone = true;
      side.why = item.why;
      side.writable->notify_all();
    } else {
      side.inbox.push_back(std::move(item.frame));
    }
    side.readable->notify_all();
    from.writable->notify_all();
  }
}

void SimNetwork::Impl::close(const ConnectionPtr& connection, std::size_t index,
                             const std::string& why) {
  Side& side = connection->sides.at(index);
  if (side.closed) return;
  side.closed = true;
  side.inbox.clear();
  side.readable->notify_all();
  side.writable->notify_all();
  if (!side.gone) send(connection, 1 - index, {.frame = {}, .is_end = true, .why = why});
}

// A dial arrives at the other host.
void SimNetwork::Impl::knock(const AttemptPtr& attempt) {
  if (attempt->abandoned || attempt->process->crashed()) return;
  const auto again = [&] { later(kDialAgain, [attempt](Impl& self) { self.knock(attempt); }); };
  if (cut_between(attempt->from, attempt->to.host)) return again();
  const auto found = backlogs.find({attempt->to.host, attempt->to.port});
  if (found != backlogs.end()) {
    const BacklogPtr& backlog = found->second;
    if (backlog->process->frozen() || backlog->ready.size() >= kBacklogMax) return again();
    attempt->connection = connect(*attempt, backlog);
    backlog->ready.push_back(attempt->connection);
    backlog->arrived->notify_all();
  }
  later(delay(), [attempt](Impl& self) { self.answer(attempt); });
}

// The other host's answer arrives at the dialer.
void SimNetwork::Impl::answer(const AttemptPtr& attempt) {
  if (attempt->abandoned || attempt->process->crashed()) {
    if (attempt->connection) close(attempt->connection, 0, "the dialer gave up");
    return;
  }
  if (cut_between(attempt->from, attempt->to.host)) {
    later(kDialAgain, [attempt](Impl& self) { self.answer(attempt); });
    return;
  }
  attempt->done = true;
  attempt->finished->notify_all();
}

void SimNetwork::Impl::process_crashed(const SimProcess& process) {
  std::erase_if(backlogs, [&](const auto& entry) { return entry.second->process == &process; });
  for (const ConnectionPtr& connection : live()) {
    for (std::size_t i = 0; i < 2; ++i) {
      if (connection->sides[i].process == &process) close(connection, i, "reset by the peer");
    }
  }
}

// What waited at a cut travels now.
void SimNetwork::Impl::healed() {
  for (const ConnectionPtr& connection : live()) {
    for (std::size_t i = 0; i < 2; ++i) {
      Side& side = connection->sides[i];
      if (side.flight.empty() || side.flight.front().due > sim.now()) continue;
      const Duration travel = delay();
      for (Item& item : side.flight) item.due = std::max(item.due, sim.now() + travel);
      side.last_due = std::max(side.last_due, sim.now() + travel);
      for (const MonoTime due : {side.flight.front().due, side.last_due}) {
        later(due - sim.now(), [connection, i](Impl& self) { self.deliver(*connection, i); });
      }
    }
  }
}

namespace {

class SimChannel : public Channel {
 public:
  SimChannel(std::shared_ptr<Impl> impl, ConnectionPtr connection, std::size_t index)
      : impl_(std::move(impl)), connection_(std::move(connection)), index_(index) {}
  ~SimChannel() override { close(); }

  Status send(std::string frame, MonoTime deadline) override {
    if (frame.size() > net::kMaxFrame) return Error(Code::kInvalid, "a frame beyond the limit");
    const std::size_t size = frame.size() + kHeader;
    const bool room = wait(*own().writable, deadline, [&] {
      return own().closed || own().gone || other().bytes + size <= kWindow;
    });
    if (own().closed || own().gone) return gone_error(own().closed ? "closed" : own().why);
    if (!room) return Error(Code::kTimeout, "channel: the send queue stayed full");
    other().bytes += size;
    impl_->send(connection_, 1 - index_, {.frame = std::move(frame), .is_end = false, .why = {}});
    return ok();
  }

  Result<std::string> receive(MonoTime deadline) override {
    const bool awake = wait(*own().readable, deadline,
                            [&] { return own().closed || own().gone || !own().inbox.empty(); });
    if (own().closed) return gone_error("closed");
    if (!awake) return Error(Code::kTimeout, "channel: no frame arrived");
    if (own().inbox.empty()) return gone_error(own().why);
    std::string frame = std::move(own().inbox.front());
    own().inbox.pop_front();
    own().bytes -= frame.size() + kHeader;
    other().writable->notify_all();
    return frame;
  }

  void close() override { impl_->close(connection_, index_, "the peer closed"); }
  bool closed() const override {
    const Side& side = connection_->sides.at(index_);
    return side.closed || side.gone;
  }
  Endpoint peer() const override { return connection_->sides.at(1 - index_).address; }

 private:
  Side& own() { return connection_->sides.at(index_); }
  Side& other() { return connection_->sides.at(1 - index_); }

  const std::shared_ptr<Impl> impl_;
  const ConnectionPtr connection_;
  const std::size_t index_;
};

class SimListener : public Listener {
 public:
  SimListener(std::shared_ptr<Impl> impl, BacklogPtr backlog)
      : impl_(std::move(impl)), backlog_(std::move(backlog)) {}
  ~SimListener() override { close(); }

  Result<std::unique_ptr<Channel>> accept(MonoTime deadline) override {
    const bool awake = wait(*backlog_->arrived, deadline,
                            [&] { return backlog_->closed || !backlog_->ready.empty(); });
    if (backlog_->closed) return Error(Code::kUnavailable, "the listener is closed");
    if (!awake) return Error(Code::kTimeout, "nobody connected");
    const ConnectionPtr connection = std::move(backlog_->ready.front());
    backlog_->ready.pop_front();
    return std::unique_ptr<Channel>(std::make_unique<SimChannel>(impl_, connection, 1));
  }
  Endpoint local() const override { return backlog_->local; }
  void close() override {
    if (backlog_->closed) return;
    backlog_->closed = true;
    const auto found = impl_->backlogs.find({backlog_->local.host, backlog_->local.port});
    if (found != impl_->backlogs.end() && found->second == backlog_) impl_->backlogs.erase(found);
    for (const auto& connection : backlog_->ready) impl_->close(connection, 1, "not taken");
    backlog_->ready.clear();
    backlog_->arrived->notify_all();
  }

 private:
  const std::shared_ptr<Impl> impl_;
  const BacklogPtr backlog_;
};

// The network as one process on one host sees it.
class HostNetwork : public net::Network {
 public:
  HostNetwork(std::shared_ptr<Impl> impl, SimProcess& process, std::string host)
      : impl_(std::move(impl)), process_(process), host_(std::move(host)) {}

  Result<std::unique_ptr<Listener>> listen(const Endpoint& at, const TlsConfig& tls) override {
    if (tls.certificate.empty()) {
      return Error(Code::kInvalid, "TLS: a listener needs a certificate");
    }
    Endpoint local{host_, at.port};
    while (at.port == 0 && (local.port == 0 || impl_->backlogs.count({host_, local.port}) > 0)) {
      local.port = ++impl_->next_port;
    }
    const auto backlog = std::make_shared<Backlog>();
    backlog->process = &process_;
    backlog->local = local;
    backlog->arrived = process_.make_condition();
    if (!impl_->backlogs.emplace(std::pair(local.host, local.port), backlog).second) {
      return Error(Code::kUnavailable, "listen on " + to_string(local) + ": address in use");
    }
    return std::unique_ptr<Listener>(std::make_unique<SimListener>(impl_, backlog));
  }

  Result<std::unique_ptr<Channel>> dial(const Endpoint& to, const TlsConfig& tls,
                                        MonoTime deadline) override {
    if (tls.authority.empty()) {
      return Error(Code::kInvalid, "TLS: a dial needs an authority to verify the peer with");
    }
    const auto attempt = std::make_shared<Attempt>();
    attempt->process = &process_;
    attempt->from = host_;
    attempt->to = to;
    attempt->finished = process_.make_condition();
    impl_->later(impl_->delay(), [attempt](Impl& impl) { impl.knock(attempt); });
    if (!wait(*attempt->finished, deadline, [&] { return attempt->done; })) {
      attempt->abandoned = true;
      return Error(Code::kTimeout, "dial " + to_string(to) + ": time limit");
    }
    if (!attempt->connection) {
      return Error(Code::kUnavailable, "dial " + to_string(to) + ": connection refused");
    }
    return std::unique_ptr<Channel>(std::make_unique<SimChannel>(impl_, attempt->connection, 0));
  }

 private:
  const std::shared_ptr<Impl> impl_;
  SimProcess& process_;
  const std::string host_;
};

}  // namespace

SimNetwork::SimNetwork(SimExecutor& executor, std::uint64_t seed)
    : impl_(std::make_shared<Impl>(executor, seed)) {}
SimNetwork::~SimNetwork() = default;

std::unique_ptr<net::Network> SimNetwork::attach(SimProcess& process, const std::string& host) {
  process.on_crash([weak = std::weak_ptr<Impl>(impl_), &process] {
    if (const auto impl = weak.lock()) impl->process_crashed(process);
  });
  return std::make_unique<HostNetwork>(impl_, process, host);
}

void SimNetwork::set_link(const SimLink& link) {
  CHECK(link.delay_min >= Duration(0) && link.delay_max >= link.delay_min);
  impl_->link = link;
}

void SimNetwork::cut(const std::string& host) { impl_->cut_hosts.insert(host); }
void SimNetwork::cut_pair(const std::string& a, const std::string& b) {
  impl_->cut_pairs.insert(std::minmax(a, b));
}
void SimNetwork::heal(const std::string& host) {
  if (impl_->cut_hosts.erase(host) > 0) impl_->healed();
}
void SimNetwork::heal_pair(const std::string& a, const std::string& b) {
  if (impl_->cut_pairs.erase(std::minmax(a, b)) > 0) impl_->healed();
}

void SimNetwork::reset_connections(const std::string& host) {
  for (const ConnectionPtr& connection : impl_->live()) {
    auto& sides = connection->sides;
    if (sides[0].address.host != host && sides[1].address.host != host) continue;
    for (Side& side : sides) {
      side.flight.clear();
      side.gone = true;
      side.why = "connection reset";
      side.readable->notify_all();
      side.writable->notify_all();
    }
  }
}

}  // namespace rubato::testing
