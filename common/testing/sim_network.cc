// Everything here runs on the executor's one thread; mutexes only satisfy Condition's signature.
#include "common/testing/sim_network.h"

#include "common/testing/sim_stream.h"
#include "common/testing/sim_wire.h"

namespace rubato::testing {

using namespace sim_wire;

namespace {

using net::Channel;
using net::Endpoint;
using net::Listener;
using net::TlsConfig;
using Impl = SimNetwork::Impl;

constexpr std::size_t kWindow = net::kSendQueueBytes + net::kReceiveQueueBytes;

Error gone_error(const std::string& why) { return {Code::kUnavailable, "channel: " + why}; }

class SimChannel : public Channel {
 public:
  SimChannel(std::shared_ptr<Impl> impl, ConnectionPtr connection, std::size_t index)
      : impl_(std::move(impl)), connection_(std::move(connection)), index_(index) {}
  ~SimChannel() override { close(); }

  Status send(std::string frame, MonoTime deadline) override {
    if (frame.size() > net::kMaxFrame) return Error(Code::kInvalid, "a frame beyond the limit");
    const std::size_t size = frame.size() + kSimFrameHeader;
    const bool room = sim_wait(*own().writable, deadline, [&] {
      return own().closed || own().gone || other().bytes + size <= kWindow;
    });
    if (own().closed || own().gone) return gone_error(own().closed ? "closed" : own().why);
    if (!room) return Error(Code::kTimeout, "channel: the send queue stayed full");
    other().bytes += size;
    impl_->send(connection_, 1 - index_, {.frame = std::move(frame), .is_end = false, .why = {}});
    return ok();
  }

  Result<std::string> receive(MonoTime deadline) override {
    const bool awake = sim_wait(*own().readable, deadline,
                                [&] { return own().closed || own().gone || !own().inbox.empty(); });
    if (own().closed) return gone_error("closed");
    if (!awake) return Error(Code::kTimeout, "channel: no frame arrived");
    if (own().inbox.empty()) return gone_error(own().why);
    std::string frame = std::move(own().inbox.front());
    own().inbox.pop_front();
    own().bytes -= frame.size() + kSimFrameHeader;
    other().notify_writable();
    return frame;
  }

  void on_news(std::function<void()> news) override {
    news();
    own().news = std::move(news);
  }
  void close() override { impl_->close(connection_, index_, "the peer closed"); }
  bool closed() const override {
    const Side& side = connection_->sides.at(index_);
    return side.closed || side.gone;
  }
  Endpoint peer() const override { return connection_->sides.at(1 - index_).address; }
  std::string peer_name() const override { return index_ == 1 ? connection_->dialer_name : ""; }

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
    const bool awake = sim_wait(*backlog_->arrived, deadline,
                                [&] { return backlog_->closed || !backlog_->ready.empty(); });
    if (backlog_->closed) return Error(Code::kUnavailable, "the listener is closed");
    if (!awake) return Error(Code::kTimeout, "nobody connected");
    const ConnectionPtr connection = std::move(backlog_->ready.front());
    backlog_->ready.pop_front();
    return std::unique_ptr<Channel>(std::make_unique<SimChannel>(impl_, connection, 1));
  }
  Endpoint local() const override { return backlog_->local; }
  Status renew(const TlsConfig&) override { return ok(); }
  void close() override { impl_->stop_listening(backlog_); }

 private:
  const std::shared_ptr<Impl> impl_;
  const BacklogPtr backlog_;
};

// The network as one process on one host sees it.
class HostNetwork : public net::Network {
 public:
  HostNetwork(std::shared_ptr<Impl> impl, SimProcess& process, std::string host)
      : impl_(std::move(impl)), process_(process), host_(std::move(host)) {}

  Result<std::unique_ptr<Listener>> listen(const Endpoint& at, const TlsConfig& tls,
                                           const net::ListenLimits&) override {
    if (tls.certificate.empty()) {
      return Error(Code::kInvalid, "TLS: a listener needs a certificate");
    }
    const BacklogPtr backlog = impl_->listen(process_, {host_, at.port});
    if (backlog == nullptr) {
      return Error(Code::kUnavailable, "listen on " + to_string(at) + ": address in use");
    }
    backlog->demands_name = tls.require_peer_certificate;
    return std::unique_ptr<Listener>(std::make_unique<SimListener>(impl_, backlog));
  }

  Result<std::unique_ptr<Channel>> dial(const Endpoint& to, const TlsConfig& tls,
                                        MonoTime deadline) override {
    if (tls.authority.empty()) {
      return Error(Code::kInvalid, "TLS: a dial needs an authority to verify the peer with");
    }
    TRY(ConnectionPtr connection,
        impl_->dial(process_, host_, to, deadline, {}, impl_->name_in(tls.certificate)));
    return std::unique_ptr<Channel>(std::make_unique<SimChannel>(impl_, std::move(connection), 0));
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

void SimNetwork::end_with(SimProcess& process) {
  process.on_crash([weak = std::weak_ptr<Impl>(impl_), &process] {
    if (const auto impl = weak.lock()) impl->process_crashed(process);
  });
}

std::unique_ptr<net::Network> SimNetwork::attach(SimProcess& process, const std::string& host) {
  end_with(process);
  return std::make_unique<HostNetwork>(impl_, process, host);
}

std::unique_ptr<SimStreams> SimNetwork::attach_streams(SimProcess& process,
                                                       const std::string& host) {
  end_with(process);
  return std::make_unique<SimStreams>(impl_, process, host);
}

void SimNetwork::set_link(const SimLink& link) {
  CHECK(link.delay_min >= Duration(0) && link.delay_max >= link.delay_min);
  impl_->link = link;
}

void SimNetwork::set_pieces(std::size_t most) { impl_->piece_most = most; }

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
      side.notify_readable();
      side.notify_writable();
    }
  }
}

}  // namespace rubato::testing
