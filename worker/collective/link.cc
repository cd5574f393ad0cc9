#include "worker/collective/link.h"

#include "worker/collective/tls_session.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <limits>

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

namespace rubato::worker {

Cancellation::Cancellation() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) { CHECK(fd_ >= 0); }
Cancellation::~Cancellation() { ::close(fd_); }
void Cancellation::cancel() {
  cancelled_.store(true);
  const std::uint64_t one = 1;
  // A full counter is readable too, so a failed write changes nothing.
  [[maybe_unused]] const auto written = ::write(fd_, &one, sizeof one);
}

int poll_timeout_ms(MonoTime deadline) {
  const auto left = deadline - SystemClock().now();
  if (left <= Duration::zero()) return 0;
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  return static_cast<int>(std::min<std::int64_t>(ms, std::numeric_limits<int>::max()));
}

std::string openssl_error() {
  std::array<char, 256> text{};
  const auto code = ERR_get_error();
  if (code == 0) return "connection ended";
  ERR_error_string_n(code, text.data(), text.size());
  ERR_clear_error();
  return text.data();
}

Link::Link(int fd, std::unique_ptr<TlsSession> session) : fd_(fd), session_(std::move(session)) {}

Link::~Link() {
  session_.reset();
  ::close(fd_);
}

void Link::cut() {
  cut_.store(true);
  ::shutdown(fd_, SHUT_RDWR);  // wakes a poll in another thread at once
}

Result<std::size_t> Link::judge(int result, const char* doing) {
  const int why = SSL_get_error(session_->ssl, result);
  if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE) {
    wants_ = why == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT;
    return std::size_t{0};
  }
  if (is_cut()) return Error(Code::kCancelled, "link was cut");
  if (why == SSL_ERROR_SYSCALL && errno != 0) {
    return Error(Code::kUnavailable, std::string(doing) + ": " + std::strerror(errno));
  }
  return Error(Code::kUnavailable, std::string(doing) + ": " + openssl_error());
}

Result<std::size_t> Link::try_read(void* to, std::size_t bytes) {
  if (is_cut()) return Error(Code::kCancelled, "link was cut");
  const auto most = std::min<std::size_t>(bytes, std::numeric_limits<int>::max());
  ERR_clear_error();
  errno = 0;
  const int got = SSL_read(session_->ssl, to, static_cast<int>(most));
  if (got > 0) return static_cast<std::size_t>(got);
  return judge(got, "receiving");
}

Result<std::size_t> Link::try_write(const void* from, std::size_t bytes) {
  if (is_cut()) return Error(Code::kCancelled, "link was cut");
  const auto most = std::min<std::size_t>(bytes, std::numeric_limits<int>::max());
  ERR_clear_error();
  errno = 0;
  const int sent = SSL_write(session_->ssl, from, static_cast<int>(most));
  if (sent > 0) return static_cast<std::size_t>(sent);
  return judge(sent, "sending");
}

Status Link::wait(MonoTime deadline) {
  pollfd entry{fd_, wants_, 0};
  const int ready = ::poll(&entry, 1, poll_timeout_ms(deadline));
  if (is_cut()) return Error(Code::kCancelled, "link was cut");
  if (ready == 0) return Error(Code::kTimeout, "link: nothing moved until the deadline");
  return ok();
}

Status Link::read_all(void* to, std::size_t bytes, MonoTime deadline) {
  auto* at = static_cast<std::byte*>(to);
  while (bytes > 0) {
    TRY(const std::size_t moved, try_read(at, bytes));
    if (moved == 0) TRY_OK(wait(deadline));
    at += moved;
    bytes -= moved;
  }
  return ok();
}

Status Link::write_all(const void* from, std::size_t bytes, MonoTime deadline) {
  const auto* at = static_cast<const std::byte*>(from);
  while (bytes > 0) {
    TRY(const std::size_t moved, try_write(at, bytes));
    if (moved == 0) TRY_OK(wait(deadline));
    at += moved;
    bytes -= moved;
  }
  return ok();
}

Status Link::send_frame(std::string_view body, MonoTime deadline) {
  CHECK_LE(body.size(), kLinkFrameBytes);
  std::string frame(4, '\0');
  for (unsigned i = 0; i < 4; ++i) frame[i] = static_cast<char>(body.size() >> (24 - 8 * i));
  frame.append(body);
  return write_all(frame.data(), frame.size(), deadline);
}

Result<std::string> Link::receive_frame(MonoTime deadline) {
  std::array<unsigned char, 4> head{};
  TRY_OK(read_all(head.data(), head.size(), deadline));
  std::size_t size = 0;
  for (const unsigned char byte : head) size = size << 8 | byte;
  if (size > kLinkFrameBytes) return Error(Code::kInternal, "link: frame is too long");
  std::string body(size, '\0');
  TRY_OK(read_all(body.data(), size, deadline));
  return body;
}

}  // namespace rubato::worker
