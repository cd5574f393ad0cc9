#include "common/net/tls_network.h"

#include "common/log.h"
#include "common/net/tls_connection.h"

#include <csignal>
#include <map>

#include <fcntl.h>
#include <sys/socket.h>

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

// The acceptor and the connections that wait: for their handshake, or to be taken.
class Backlog : public std::enable_shared_from_this<Backlog> {
 public:
  Backlog(std::shared_ptr<Io> io, std::shared_ptr<SslContext> context, std::string peer_name,
          ListenLimits limits)
      : io_(std::move(io)),
        context_(std::move(context)),
        peer_name_(std::move(peer_name)),
        limits_(std::move(limits)),
        acceptor_(io_->context),
        retry_(io_->context),
        arrived_(io_->executor.make_condition()) {}

  // Before the I/O thread knows us.
  Result<Endpoint> open(const Endpoint& at) {
    ErrorCode code;
    const auto address =
        asio::ip::make_address(at.host.empty() ? std::string("0.0.0.0") : at.host, code);
    if (code) return Error(Code::kInvalid, "listen: not an IP address: \"" + at.host + "\"");
    const Tcp::endpoint endpoint(address, at.port);
    acceptor_.open(endpoint.protocol(), code);
    if (!code) acceptor_.set_option(Tcp::acceptor::reuse_address(true), code);
    if (!code) acceptor_.bind(endpoint, code);
    if (!code) acceptor_.listen(asio::socket_base::max_listen_connections, code);
    if (code) {
      const bool denied = code == asio::error::access_denied;
      return Error(denied ? Code::kDenied : Code::kUnavailable,
                   "listen on " + to_string(at) + ": " + code.message());
    }
    ::fcntl(acceptor_.native_handle(), F_SETFD, FD_CLOEXEC);
    const auto local = acceptor_.local_endpoint(code);
    return Endpoint{local.address().to_string(), local.port()};
  }

  // I/O thread.
  void accept_next() {
    {
      const std::lock_guard lock(mutex_);
      if (closed_ || accepting_ || waiting_ >= limits_.pending) return;
      accepting_ = true;
    }
    acceptor_.async_accept([self = shared_from_this()](const ErrorCode& code, Tcp::socket socket) {
      self->on_accepted(code, std::move(socket));
    });
  }
  void shut() {
    ErrorCode ignored;
    acceptor_.close(ignored);
    retry_.cancel();
    std::deque<std::shared_ptr<TlsConnection>> ready;
    {
      const std::lock_guard lock(mutex_);
      ready.swap(ready_);
    }
    for (const auto& connection : ready) connection->fail(Error(Code::kUnavailable, "not taken"));
  }

  // Any thread.
  Result<std::unique_ptr<Channel>> take(MonoTime deadline) {
    std::unique_lock lock(mutex_);
    const bool awake =
        arrived_->wait_until(lock, deadline, [&] { return closed_ || !ready_.empty(); });
    if (closed_) return Error(Code::kUnavailable, "the listener is closed");
    if (!awake) return Error(Code::kTimeout, "nobody connected");
    const auto connection = std::move(ready_.front());
    ready_.pop_front();
    leave(connection->peer().host);
    asio::post(io_->context, [self = shared_from_this(), connection] {
      connection->start_reading();
      self->accept_next();
    });
    return std::unique_ptr<Channel>(std::make_unique<TlsChannel>(connection));
  }
  void renew(std::shared_ptr<SslContext> context) {
    const std::lock_guard lock(mutex_);
    context_ = std::move(context);
  }
  void close() {
    {
      const std::lock_guard lock(mutex_);
      if (closed_) return;
      closed_ = true;
      // Listens no more from this moment, so that its port can be taken again at once; the I/O
      // thread, which owns the acceptor, closes it when it comes to it.
      ::shutdown(acceptor_.native_handle(), SHUT_RDWR);
      asio::post(io_->context, [self = shared_from_this()] { self->shut(); });
    }
    arrived_->notify_all();
  }
  // I/O thread, when the network goes: like close(), without a post that nobody would run.
  void network_gone() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    shut();
    arrived_->notify_all();
  }

 private:
  void on_accepted(const ErrorCode& code, Tcp::socket socket) {
    std::shared_ptr<SslContext> context;
    {
      const std::lock_guard lock(mutex_);
      accepting_ = false;
      if (closed_) return;
      context = context_;
    }
    if (code) {
      LOG_WARNING("net", "accept: {}", code.message());
      retry_.expires_after(kAcceptRetry);
      retry_.async_wait([self = shared_from_this()](const ErrorCode& cancelled) {
        if (!cancelled) self->accept_next();
      });
      return;
    }
    const auto connection = std::make_shared<TlsConnection>(
        io_, std::move(socket), std::move(context), TlsRole::kServer, limits_);
    connection->connected();
    if (!admit(connection->peer().host)) {
      connection->fail(Error(Code::kUnavailable, "too many connections of this host"));
      if (limits_.refused) limits_.refused();
    } else {
      io_->remember(connection);
      connection->handshake(peer_name_,
                            [self = shared_from_this(), connection](const Status& status) {
                              self->on_handshake(connection, status);
                            });
    }
    accept_next();
  }

  bool admit(const std::string& source) {
    const std::lock_guard lock(mutex_);
    std::size_t& here = waiting_of_[source];
    if (here >= limits_.pending_per_source) return false;
    ++here;
    ++waiting_;
    return true;
  }
  // Under the lock.
  void leave(const std::string& source) {
    --waiting_;
    if (--waiting_of_[source] == 0) waiting_of_.erase(source);
  }

  void on_handshake(const std::shared_ptr<TlsConnection>& connection, const Status& status) {
    bool refused = !status.ok();
    {
      const std::lock_guard lock(mutex_);
      if (closed_ && !refused) {
        refused = true;
        connection->fail(Error(Code::kUnavailable, "the listener is closed"));
      }
      if (refused) {
        leave(connection->peer().host);
      } else {
        ready_.push_back(connection);
      }
    }
    if (!status.ok()) {
      LOG_DEBUG("net", "{}: {}", to_string(connection->peer()), status.error().what());
    }
    if (refused) {
      accept_next();
    } else {
      arrived_->notify_all();
    }
  }

  const std::shared_ptr<Io> io_;
  std::shared_ptr<SslContext> context_;  // guarded by mutex_
  const std::string peer_name_;
  const ListenLimits limits_;
  Tcp::acceptor acceptor_;
  asio::steady_timer retry_;
  std::mutex mutex_;
  const std::unique_ptr<Condition> arrived_;
  std::deque<std::shared_ptr<TlsConnection>> ready_;
  std::size_t waiting_ = 0;                        // in handshake or ready
  std::map<std::string, std::size_t> waiting_of_;  // by IP address; none is zero
  bool accepting_ = false;
  bool closed_ = false;
};

class TlsListener : public Listener {
 public:
  TlsListener(std::shared_ptr<Backlog> backlog, Endpoint local)
      : backlog_(std::move(backlog)), local_(std::move(local)) {}
  ~TlsListener() override { backlog_->close(); }
  Result<std::unique_ptr<Channel>> accept(MonoTime deadline) override {
    return backlog_->take(deadline);
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

// One attempt to connect; the dialing task waits for `result`.
class Attempt : public std::enable_shared_from_this<Attempt> {
 public:
  Attempt(std::shared_ptr<Io> io, std::shared_ptr<TlsConnection> connection, Endpoint to,
          std::string peer_name)
      : io_(std::move(io)),
        connection_(std::move(connection)),
        to_(std::move(to)),
        peer_name_(std::move(peer_name)),
        resolver_(io_->context),
        finished_(io_->executor.make_condition()) {}

  // I/O thread.
  void start() {
    io_->remember(connection_);
    ErrorCode code;
    const auto address = asio::ip::make_address(to_.host, code);
    if (!code) {
      connect(std::vector<Tcp::endpoint>{Tcp::endpoint(address, to_.port)});
      return;
    }
    resolver_.async_resolve(
        to_.host, std::to_string(to_.port),
        [self = shared_from_this()](const ErrorCode& error, const Tcp::resolver::results_type& to) {
          if (error) {
            self->finish(self->unavailable(error));
          } else {
            self->connect(to);
          }
        });
  }

  // The dialing task.
  Result<std::unique_ptr<Channel>> wait(MonoTime deadline) {
    std::unique_lock lock(mutex_);
    if (!finished_->wait_until(lock, deadline, [&] { return result_.has_value(); })) {
      result_ = Status(Error(Code::kTimeout, "dial " + to_string(to_) + ": time limit"));
      asio::post(io_->context, [self = shared_from_this()] {
        self->resolver_.cancel();
        self->connection_->fail(Error(Code::kTimeout, "dial: time limit"));
      });
    }
    TRY_OK(*result_);
    return std::unique_ptr<Channel>(std::make_unique<TlsChannel>(connection_));
  }

 private:
  Error unavailable(const ErrorCode& code) const {
    return {Code::kUnavailable, "dial " + to_string(to_) + ": " + code.message()};
  }

  template <class Endpoints>
  void connect(const Endpoints& endpoints) {
    if (connection_->gone()) return finish(unavailable(asio::error::operation_aborted));
    asio::async_connect(connection_->socket(), endpoints,
                        [self = shared_from_this()](const ErrorCode& code, const auto&) {
                          if (code) return self->finish(self->unavailable(code));
                          self->connection_->connected();
                          self->connection_->handshake(
                              self->peer_name_,
                              [self](const Status& status) { self->finish(status); });
                        });
  }

  void finish(const Status& status) {
    {
      const std::lock_guard lock(mutex_);
      if (result_) return;  // the dialing task no longer waits
      result_ = status.ok() ? status : Status(status.error().in("dial " + to_string(to_)));
    }
    if (status.ok()) connection_->start_reading();
    finished_->notify_all();
  }

  const std::shared_ptr<Io> io_;
  const std::shared_ptr<TlsConnection> connection_;
  const Endpoint to_;
  const std::string peer_name_;
  Tcp::resolver resolver_;
  std::mutex mutex_;
  const std::unique_ptr<Condition> finished_;
  std::optional<Status> result_;
};

}  // namespace

struct TlsNetwork::Impl {
  explicit Impl(Executor& executor)
      : io(std::make_shared<Io>(executor)), work(io->context.get_executor()) {
    thread = executor.spawn("net-io", [state = io](std::stop_token) { state->context.run(); });
  }

  std::shared_ptr<Io> io;
  asio::executor_work_guard<asio::io_context::executor_type> work;
  std::mutex mutex;
  std::vector<std::weak_ptr<Backlog>> backlogs;
  ClientContexts contexts;
  Task thread;
};

TlsNetwork::TlsNetwork(Executor& executor) : impl_(std::make_unique<Impl>(executor)) {
  std::signal(SIGPIPE, SIG_IGN);  // OpenSSL writes to sockets that the peer has closed
}

// Every handler ends by itself: sockets are closed, farewells have a limit, so run() returns.
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
  asio::post(impl_->io->context, [backlog] { backlog->accept_next(); });
  return std::unique_ptr<Listener>(std::make_unique<TlsListener>(backlog, local));
}

Result<std::unique_ptr<Channel>> TlsNetwork::dial(const Endpoint& to, const TlsConfig& tls,
                                                  MonoTime deadline) {
  TRY(auto context, impl_->contexts.context_of(tls));
  const auto connection = std::make_shared<TlsConnection>(
      impl_->io, Tcp::socket(impl_->io->context), std::move(context), TlsRole::kClient);
  const auto attempt = std::make_shared<Attempt>(impl_->io, connection, to,
                                                 tls.peer_name.empty() ? to.host : tls.peer_name);
  asio::post(impl_->io->context, [attempt] { attempt->start(); });
  return attempt->wait(deadline);
}

}  // namespace rubato::net
