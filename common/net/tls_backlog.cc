#include "common/net/tls_backlog.h"

#include "common/log.h"

#include <algorithm>
#include <utility>

#include <fcntl.h>
#include <sys/socket.h>

namespace rubato::net {

namespace asio = boost::asio;

Backlog::Backlog(std::shared_ptr<Io> io, std::shared_ptr<SslContext> context, std::string peer_name,
                 ListenLimits limits)
    : io_(std::move(io)),
      peer_name_(std::move(peer_name)),
      limits_(std::move(limits)),
      acceptor_(io_->context),
      retry_(io_->context),
      next_beat_(io_->context),
      arrived_(io_->executor.make_condition()),
      context_(std::move(context)) {}

Result<Endpoint> Backlog::open(const Endpoint& at) {
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

// ---- What comes
// ---------------------------------------------------------------------------------------

void Backlog::accept_next() {
  {
    const std::lock_guard lock(mutex_);
    if (closed_ || accepting_) return;
    if (waiting_ >= limits_.pending) {
      const auto most = most_shaking();
      if (most == sources_.end() || most->second.shaking.size() <= kFewHandshakes) return;
    }
    accepting_ = true;
  }
  acceptor_.async_accept([self = shared_from_this()](const ErrorCode& code, Tcp::socket socket) {
    self->on_accepted(code, std::move(socket));
  });
}

void Backlog::on_accepted(const ErrorCode& code, Tcp::socket socket) {
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
  std::shared_ptr<TlsConnection> gives_way;
  bool is_admitted = false;
  {
    const std::lock_guard lock(mutex_);
    is_admitted = admit(connection, gives_way);
  }
  for (const auto& closed : {gives_way, is_admitted ? nullptr : connection}) {
    if (closed == nullptr) continue;
    closed->fail(Error(Code::kUnavailable, "too many connections of this host"));
    refuse(Refusal::kTooMany, closed->peer(), "too many connections in their handshake");
  }
  if (is_admitted) {
    io_->remember(connection);
    connection->handshake(peer_name_,
                          [self = shared_from_this(), connection](const Status& status) {
                            self->on_handshake(connection, status);
                          });
  }
  accept_next();
}

bool Backlog::admit(const std::shared_ptr<TlsConnection>& connection,
                    std::shared_ptr<TlsConnection>& gives_way) {
  const std::string host = connection->peer().host;
  if (const auto own = sources_.find(host); own != sources_.end()) {
    const Source& source = own->second;
    if (source.shaking.size() + source.ready >= limits_.pending_per_source) return false;
  }
  if (waiting_ >= limits_.pending) {
    const auto most = most_shaking();
    const std::size_t own = sources_.contains(host) ? sources_.at(host).shaking.size() : 0;
    // Else some have left since it was accepted: one more does no harm.
    if (most != sources_.end() && most->second.shaking.size() > kFewHandshakes) {
      if (own >= most->second.shaking.size()) return false;
      gives_way = std::move(most->second.shaking.front());
      most->second.shaking.pop_front();
      leave(most);
    }
  }
  sources_[host].shaking.push_back(connection);
  ++waiting_;
  return true;
}

Backlog::Sources::iterator Backlog::most_shaking() {
  return std::ranges::max_element(sources_, {},
                                  [](const auto& source) { return source.second.shaking.size(); });
}

// It has left its source's list or count.
void Backlog::leave(Sources::iterator source) {
  --waiting_;
  if (source->second.shaking.empty() && source->second.ready == 0) sources_.erase(source);
}

void Backlog::on_handshake(const std::shared_ptr<TlsConnection>& connection, const Status& status) {
  bool is_late = false;      // the listener has been closed
  bool was_waiting = false;  // has not had to go for another
  {
    const std::lock_guard lock(mutex_);
    is_late = closed_;
    const auto source = sources_.find(connection->peer().host);
    if (source != sources_.end()) was_waiting = std::erase(source->second.shaking, connection) > 0;
    if (was_waiting && status.ok() && !is_late) {
      ++source->second.ready;
      ready_.push_back(connection);
    } else if (was_waiting) {
      leave(source);
    }
  }
  if (status.ok() && !is_late) return arrived_->notify_all();
  if (status.ok()) {
    connection->fail(Error(Code::kUnavailable, "the listener is closed"));
  } else if (was_waiting && !is_late) {
    refuse(Refusal::kHandshake, connection->peer(), status.error().what());
  }
  accept_next();
}

void Backlog::beat() {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
  }
  limits_.beat();
  next_beat_.expires_after(kReadBeat);
  next_beat_.async_wait([self = shared_from_this()](const ErrorCode& cancelled) {
    if (!cancelled) self->beat();
  });
}

// Strangers do not fill the log.
void Backlog::refuse(Refusal why, const Endpoint& peer, const std::string& text) {
  if (limits_.refused) limits_.refused(why);
  const MonoTime now = io_->executor.now();
  MonoTime& next_line = next_line_.at(static_cast<std::size_t>(why));
  if (now < next_line) {
    LOG_DEBUG("net", "{}: {}", to_string(peer), text);
    return;
  }
  next_line = now + kRefusalLine;
  LOG_WARNING("net", "{}: {} (others of the next minute are counted only)", to_string(peer), text);
}

// ---- What is taken, and the end
// -----------------------------------------------------------------------

Result<std::shared_ptr<TlsConnection>> Backlog::take(MonoTime deadline) {
  std::unique_lock lock(mutex_);
  const bool awake =
      arrived_->wait_until(lock, deadline, [&] { return closed_ || !ready_.empty(); });
  if (closed_) return Error(Code::kUnavailable, "the listener is closed");
  if (!awake) return Error(Code::kTimeout, "nobody connected");
  const auto connection = std::move(ready_.front());
  ready_.pop_front();
  const auto source = sources_.find(connection->peer().host);
  --source->second.ready;
  leave(source);
  asio::post(io_->context, [self = shared_from_this(), connection] {
    connection->start_reading();
    self->accept_next();
  });
  return connection;
}

void Backlog::renew(std::shared_ptr<SslContext> context) {
  const std::lock_guard lock(mutex_);
  context_ = std::move(context);
}

void Backlog::close() {
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

void Backlog::network_gone() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  shut();
  arrived_->notify_all();
}

void Backlog::shut() {
  ErrorCode ignored;
  acceptor_.close(ignored);
  retry_.cancel();
  next_beat_.cancel();
  std::deque<std::shared_ptr<TlsConnection>> ready;
  {
    const std::lock_guard lock(mutex_);
    ready.swap(ready_);
  }
  for (const auto& connection : ready) connection->fail(Error(Code::kUnavailable, "not taken"));
}

}  // namespace rubato::net
