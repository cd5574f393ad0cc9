#include "common/net/tls_network.h"

#include "common/net/tls_backlog.h"
#include "common/net/tls_connection.h"
#include "common/net/tls_dial.h"

#include <csignal>

namespace rubato::net {
namespace {

namespace asio = boost::asio;

class TlsChannel : public Channel {
 public:
  explicit TlsChannel(std::shared_ptr<TlsConnection> connection)
      : connection_(std::move(connection)) {}
  ~TlsChannel() override { connection_->close(); }
  Status send(std::string frame, MonoTime deadline) override {
    return connection_->send(std::move(frame), deadline);
  }
  Result<std::string> receive(MonoTime deadline) override { return connection_->receive(deadline); }
  void on_news(std::function<void()> news) override { connection_->on_news(std::move(news)); }
  void close() override { connection_->close(); }
  bool closed() const override { return connection_->closed(); }
  Endpoint peer() const override { return connection_->peer(); }
  std::string peer_name() const override { return connection_->peer_name(); }

 private:
  const std::shared_ptr<TlsConnection> connection_;
};

class TlsListener : public Listener {
 public:
  TlsListener(std::shared_ptr<Backlog> backlog, Endpoint local)
      : backlog_(std::move(backlog)), local_(std::move(local)) {}
  ~TlsListener() override { backlog_->close(); }
  Result<std::unique_ptr<Channel>> accept(MonoTime deadline) override {
    TRY(auto connection, backlog_->take(deadline));
    return std::unique_ptr<Channel>(std::make_unique<TlsChannel>(std::move(connection)));
  }
  Endpoint local() const override { return local_; }
  Status renew(const TlsConfig& tls) override {
    TRY(auto context, make_context(tls, TlsRole::kServer));
    backlog_->renew(std::move(context));
    return ok();
  }
  void close() override { backlog_->close(); }

 private:
  const std::shared_ptr<Backlog> backlog_;
  const Endpoint local_;
};

}  // namespace

struct TlsNetwork::Impl {
  Impl(Executor& executor, Lookup lookup)
      : io(std::make_shared<Io>(executor)),
        names(std::make_shared<NameLookups>(io, std::move(lookup))),
        work(io->context.get_executor()) {
    thread = executor.spawn("net-io", [state = io](std::stop_token) { state->context.run(); });
  }

  std::shared_ptr<Io> io;
  std::shared_ptr<NameLookups> names;
  asio::executor_work_guard<asio::io_context::executor_type> work;
  std::mutex mutex;
  std::vector<std::weak_ptr<Backlog>> backlogs;
  ClientContexts contexts;
  Task thread;
};

TlsNetwork::TlsNetwork(Executor& executor, Lookup lookup)
    : impl_(std::make_unique<Impl>(executor, std::move(lookup))) {
  std::signal(SIGPIPE, SIG_IGN);  // OpenSSL writes to sockets that the peer has closed
}

// Every handler ends by itself: sockets are closed, farewells have a limit, and questions to DNS
// are not handlers, so run() returns.
TlsNetwork::~TlsNetwork() {
  asio::post(impl_->io->context, [impl = impl_.get()] {
    const std::lock_guard lock(impl->mutex);
    for (const auto& weak : impl->backlogs) {
      if (const auto backlog = weak.lock()) backlog->network_gone();
    }
    for (const auto& weak : impl->io->connections) {
      if (const auto connection = weak.lock()) connection->network_gone();
    }
    impl->work.reset();
  });
  impl_->thread.join();
}

Result<std::unique_ptr<Listener>> TlsNetwork::listen(const Endpoint& at, const TlsConfig& tls,
                                                     const ListenLimits& limits) {
  TRY(auto context, make_context(tls, TlsRole::kServer));
  const auto backlog =
      std::make_shared<Backlog>(impl_->io, std::move(context), tls.peer_name, limits);
  TRY(const Endpoint local, backlog->open(at));
  {
    const std::lock_guard lock(impl_->mutex);
    std::erase_if(impl_->backlogs, [](const auto& weak) { return weak.expired(); });
    impl_->backlogs.push_back(backlog);
  }
  asio::post(impl_->io->context, [backlog, beats = limits.beat != nullptr] {
    backlog->accept_next();
    if (beats) backlog->beat();
  });
  return std::unique_ptr<Listener>(std::make_unique<TlsListener>(backlog, local));
}

Result<std::unique_ptr<Channel>> TlsNetwork::dial(const Endpoint& to, const TlsConfig& tls,
                                                  MonoTime deadline) {
  TRY(auto context, impl_->contexts.context_of(tls));
  const auto connection = std::make_shared<TlsConnection>(
      impl_->io, Tcp::socket(impl_->io->context), std::move(context), TlsRole::kClient);
  const auto dial =
      std::make_shared<Dial>(impl_->io, impl_->names, connection, to,
                             tls.peer_name.empty() ? to.host : tls.peer_name, deadline);
  asio::post(impl_->io->context, [dial] { dial->start(); });
  TRY(auto made, dial->wait());
  return std::unique_ptr<Channel>(std::make_unique<TlsChannel>(std::move(made)));
}

}  // namespace rubato::net
