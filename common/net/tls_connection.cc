#include "common/net/tls_connection.h"

#include "common/net/tls_limits.h"
#include "common/net/tls_network.h"

#include <cerrno>

#include <fcntl.h>
#include <netinet/tcp.h>
#include <openssl/err.h>

namespace rubato::net {
namespace {

namespace asio = boost::asio;

constexpr std::size_t kHeader = 4;
// Small frames go out together, as few TLS records; a batch never splits a frame.
constexpr std::size_t kBatchBytes = 128 * 1024;
constexpr int kReadsPerTurn = 8;  // of kilobytes each, before the other connections have theirs
constexpr std::size_t kKeepCapacity = 16u << 10;  // above, a buffer's memory is given back

// Silence of the network is told to the layers above by their own heartbeats (within 3 s); these
// only make sure that a dead connection's socket does not live on for the kernel's 15 minutes. A
// peer that does not read for kUserTimeout while we have something to send is cut off as well.
constexpr int kUserTimeoutMs = 20'000;
constexpr int kKeepIdleS = 10;
constexpr int kKeepIntervalS = 3;
constexpr int kKeepCount = 3;

void put_header(std::string& out, std::size_t size) {
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>((size >> shift) & 0xff);
}

std::size_t get_header(std::string_view bytes) {
  std::size_t size = 0;
  for (std::size_t i = 0; i < kHeader; ++i) {
    size = size << 8 | static_cast<unsigned char>(bytes[i]);
  }
  return size;
}

Error closed_error(const std::string& why) { return {Code::kUnavailable, "channel: " + why}; }

}  // namespace

void Io::remember(const std::shared_ptr<TlsConnection>& connection) {
  if (connections.size() >= prune_at) {
    std::erase_if(connections, [](const auto& weak) { return weak.expired(); });
    prune_at = 2 * connections.size() + 64;
  }
  connections.push_back(connection);
}

TlsConnection::TlsConnection(std::shared_ptr<Io> io, Tcp::socket socket,
                             std::shared_ptr<SslContext> context, TlsRole role,
                             const ListenLimits& limits)
    : io_(std::move(io)),
      context_(std::move(context)),
      role_(role),
      frame_most_(limits.frame),
      inbox_most_(limits.receive_queue),
      outbox_most_(limits.send_queue),
      socket_(std::move(socket)),
      ssl_(SSL_new(context_->native_handle())),
      timer_(io_->context),
      readable_(io_->executor.make_condition()),
      writable_(io_->executor.make_condition()) {
  CHECK(ssl_ != nullptr);
}

void TlsConnection::connected() {
  ErrorCode ignored;  // a socket that refuses an option fails soon enough by itself
  socket().set_option(Tcp::no_delay(true), ignored);
  socket().set_option(asio::socket_base::keep_alive(true), ignored);
  const int fd = socket().native_handle();
  const auto set = [&](int option, int value) {
    ::setsockopt(fd, IPPROTO_TCP, option, &value, sizeof value);
  };
  set(TCP_USER_TIMEOUT, kUserTimeoutMs);
  set(TCP_KEEPIDLE, kKeepIdleS);
  set(TCP_KEEPINTVL, kKeepIntervalS);
  set(TCP_KEEPCNT, kKeepCount);
  // A child process that inherits the socket would keep the connection alive after our death.
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  socket().native_non_blocking(true, ignored);
  CHECK(SSL_set_fd(ssl_.get(), fd) == 1);
  const auto remote = socket().remote_endpoint(ignored);
  peer_ = {remote.address().to_string(ignored), remote.port()};
}

void TlsConnection::handshake(const std::string& peer_name, std::function<void(Status)> done) {
  on_handshake_ = std::move(done);
  if (!peer_name.empty()) {
    if (Status named = demand_peer_name(ssl_.get(), peer_name, role_); !named.ok()) {
      fail(named.error());
      return end_handshake(named);
    }
  }
  timer_.expires_after(kHandshakeLimit);
  timer_.async_wait([self = shared_from_this()](const ErrorCode& code) {
    if (!code) self->fail(Error(Code::kTimeout, "TLS handshake: time limit"));
  });
  if (role_ == TlsRole::kServer)
    SSL_set_accept_state(ssl_.get());
  else
    SSL_set_connect_state(ssl_.get());
  shake();
}

void TlsConnection::shake() {
  if (gone_) return end_handshake(closed_error(why_));  // only the I/O thread writes it
  ERR_clear_error();
  errno = 0;
  const int result = SSL_do_handshake(ssl_.get());
  if (result != 1) {
    const int wants = SSL_get_error(ssl_.get(), result);
    if (wait_for_socket(wants, &TlsConnection::shake)) return;
    const Error error = handshake_error(ssl_.get(), tls_problem(wants));
    fail(error);
    return end_handshake(error);
  }
  timer_.cancel();
  peer_name_ = certified_name(ssl_.get());
  end_handshake(ok());
}

void TlsConnection::end_handshake(const Status& status) {
  std::exchange(on_handshake_, {})(status);
}

bool TlsConnection::wait_for_socket(int ssl_error, Step step) {
  if (ssl_error != SSL_ERROR_WANT_READ && ssl_error != SSL_ERROR_WANT_WRITE) return false;
  const auto ready =
      ssl_error == SSL_ERROR_WANT_READ ? Tcp::socket::wait_read : Tcp::socket::wait_write;
  socket().async_wait(ready, [self = shared_from_this(), step](const ErrorCode& code) {
    if (code) self->fail(closed_error(code.message()));  // no news where the socket was closed
    (self.get()->*step)();
  });
  return true;
}

void TlsConnection::start_reading() {
  if (!gone_ && !lingering_) read();
}

void TlsConnection::fail(const Error& why) {
  {
    const std::lock_guard lock(mutex_);
    if (gone_) return;
    gone_ = true;
    why_ = why.what();
    outbox_.clear();
    outbox_bytes_ = 0;
  }
  tell_reader();
  writable_->notify_all();
  timer_.cancel();
  ErrorCode ignored;
  socket().close(ignored);  // pending handlers end with operation_aborted
}

void TlsConnection::network_gone() {
  if (!lingering_) fail(Error(Code::kCancelled, "the network was closed"));
}

// What is there, some of it at a time so that others have their turn, and then what comes.
void TlsConnection::read() {
  for (int turn = 0; turn < kReadsPerTurn; ++turn) {
    if (gone_) return;
    ERR_clear_error();
    errno = 0;
    std::array<char, 16 * 1024>& chunk = io_->chunk;
    const int count = SSL_read(ssl_.get(), chunk.data(), static_cast<int>(chunk.size()));
    if (count <= 0) {
      const int wants = SSL_get_error(ssl_.get(), count);
      if (is_over_limit(ssl_.get()))
        fail(closed_error("the peer sent more TLS messages than a connection may"));
      else if (!wait_for_socket(wants, &TlsConnection::read))
        fail(closed_error(tls_problem(wants)));
      return;
    }
    if (!take({chunk.data(), static_cast<std::size_t>(count)})) return;
    if (SSL_has_pending(ssl_.get()) == 0) {
      wait_for_socket(SSL_ERROR_WANT_READ, &TlsConnection::read);
      return;
    }
  }
  asio::post(io_->context, [self = shared_from_this()] { self->read(); });
}

bool TlsConnection::take(std::string_view bytes) {
  if (lingering_) return true;  // nobody wants it, but a byte left would make our farewell a reset
  std::deque<std::string> frames;
  const bool well_formed = take_frames(bytes, frames);
  bool pause = false;
  {
    const std::lock_guard lock(mutex_);
    for (std::string& frame : frames) {
      if (closing_) break;
      inbox_bytes_ += frame.size() + kHeader;
      inbox_.push_back(std::move(frame));
    }
    pause = inbox_bytes_ >= inbox_most_;
    paused_ = pause;
  }
  if (!frames.empty()) tell_reader();
  if (!well_formed) fail(closed_error("the peer sent a frame beyond the limit"));
  return well_formed && !pause;
}

bool TlsConnection::take_frames(std::string_view bytes, std::deque<std::string>& frames) {
  while (!bytes.empty()) {
    if (partial_.size() < kHeader) {
      const std::size_t part = std::min(kHeader - partial_.size(), bytes.size());
      partial_.append(bytes, 0, part);
      bytes.remove_prefix(part);
      if (partial_.size() < kHeader) return true;
    }
    const std::size_t size = get_header(partial_);
    if (size > frame_most_) return false;
    // Grows with what arrives, so a header alone costs the peer's bytes, not our memory.
    const std::size_t part = std::min(size - (partial_.size() - kHeader), bytes.size());
    partial_.append(bytes, 0, part);
    bytes.remove_prefix(part);
    if (partial_.size() < kHeader + size) return true;
    frames.push_back(partial_.substr(kHeader));
    partial_.clear();
    if (partial_.capacity() > kKeepCapacity) partial_.shrink_to_fit();
  }
  return true;
}

// Writes what is queued, one batch at a time; ends the farewell when nothing is left.
void TlsConnection::write() {
  if (writing_ || gone_) return;
  writing_ = true;
  flush();
}

void TlsConnection::flush() {
  while (!gone_ && (!batch_.empty() || fill_batch())) {
    ERR_clear_error();
    errno = 0;
    const int count = SSL_write(ssl_.get(), batch_.data(), static_cast<int>(batch_.size()));
    if (count <= 0) {
      const int wants = SSL_get_error(ssl_.get(), count);
      if (!wait_for_socket(wants, &TlsConnection::flush)) fail(closed_error(tls_problem(wants)));
      return;
    }
    {
      const std::lock_guard lock(mutex_);
      outbox_bytes_ -= batch_.size();
    }
    batch_.clear();
    if (batch_.capacity() > kKeepCapacity) batch_.shrink_to_fit();
    writable_->notify_all();
  }
  writing_ = false;
  if (gone_ || !lingering_) return;
  ErrorCode ignored;
  socket().shutdown(Tcp::socket::shutdown_send, ignored);
}

bool TlsConnection::fill_batch() {
  const std::lock_guard lock(mutex_);
  while (!outbox_.empty() &&
         (batch_.empty() || batch_.size() + outbox_.front().size() < kBatchBytes)) {
    put_header(batch_, outbox_.front().size());
    batch_ += outbox_.front();
    outbox_.pop_front();
  }
  return !batch_.empty();
}

Status TlsConnection::send(std::string frame, MonoTime deadline) {
  if (frame.size() > kMaxFrame) {
    return Error(Code::kInvalid, "a frame of " + std::to_string(frame.size()) +
                                     " bytes is beyond the limit of " + std::to_string(kMaxFrame));
  }
  const std::size_t size = frame.size() + kHeader;
  std::unique_lock lock(mutex_);
  const bool room = writable_->wait_until(lock, deadline, [&] {
    return gone_ || closing_ || outbox_bytes_ == 0 || outbox_bytes_ + size <= outbox_most_;
  });
  if (gone_ || closing_) return closed_error(closing_ ? "closed" : why_);
  if (!room) return Error(Code::kTimeout, "channel: the send queue stayed full");
  const bool idle = outbox_.empty();
  outbox_bytes_ += size;
  outbox_.push_back(std::move(frame));
  if (idle) {
    asio::post(io_->context, [self = shared_from_this()] { self->write(); });
  }
  return ok();
}

Result<std::string> TlsConnection::receive(MonoTime deadline) {
  std::unique_lock lock(mutex_);
  const bool awake =
      readable_->wait_until(lock, deadline, [&] { return !inbox_.empty() || gone_ || closing_; });
  if (!awake) return Error(Code::kTimeout, "channel: no frame arrived");
  if (closing_) return closed_error("closed");
  if (inbox_.empty()) return closed_error(why_);
  std::string frame = std::move(inbox_.front());
  inbox_.pop_front();
  inbox_bytes_ -= frame.size() + kHeader;
  if (paused_ && !gone_ && inbox_bytes_ < inbox_most_ / 2) {
    paused_ = false;
    asio::post(io_->context, [self = shared_from_this()] { self->start_reading(); });
  }
  return frame;
}

void TlsConnection::close() {
  {
    const std::lock_guard lock(mutex_);
    if (closing_) return;
    closing_ = true;
    inbox_.clear();
    inbox_bytes_ = 0;
    if (!gone_) asio::post(io_->context, [self = shared_from_this()] { self->begin_linger(); });
  }
  tell_reader();
  writable_->notify_all();
}

void TlsConnection::on_news(std::function<void()> news) {
  {
    const std::lock_guard lock(mutex_);
    news_ = std::move(news);
  }
  tell_reader();
}

void TlsConnection::tell_reader() {
  readable_->notify_all();
  std::function<void()> news;
  {
    const std::lock_guard lock(mutex_);
    news = news_;
  }
  if (news) news();
}

// Queued frames still go out, then the end of the stream; then we wait for the peer's end.
void TlsConnection::begin_linger() {
  if (gone_ || lingering_) return;
  bool was_paused = false;
  {
    const std::lock_guard lock(mutex_);
    was_paused = std::exchange(paused_, false);
  }
  lingering_ = true;
  timer_.expires_after(kLingerLimit);
  timer_.async_wait([self = shared_from_this()](const ErrorCode& code) {
    if (!code) self->fail(closed_error("closed"));
  });
  if (was_paused) read();
  write();
}

bool TlsConnection::closed() const {
  const std::lock_guard lock(mutex_);
  return gone_ || closing_;
}

}  // namespace rubato::net
