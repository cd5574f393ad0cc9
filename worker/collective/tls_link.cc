#include "worker/collective/tls_link.h"

#include "worker/collective/tls_session.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

namespace rubato::worker {

namespace {
constexpr std::size_t kWaitsMax = 64;  // links that one thread waits for at once
}

StopSignal::Event::Event() : fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) { CHECK(fd >= 0); }
StopSignal::Event::~Event() { ::close(fd); }
StopSignal::StopSignal(std::stop_token stop)
    : stop_(std::move(stop)), callback_(stop_, Ring{event_.fd}) {}
void StopSignal::Ring::operator()() const {
  const std::uint64_t one = 1;
  // A full counter is readable too, so a failed write changes nothing.
  [[maybe_unused]] const auto written = ::write(fd, &one, sizeof one);
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

TlsLink::TlsLink(int fd, std::unique_ptr<TlsSession> session)
    : fd_(fd), session_(std::move(session)) {}

TlsLink::~TlsLink() {
  session_.reset();
  ::close(fd_);
}

void TlsLink::cut() {
  cut_.store(true);
  ::shutdown(fd_, SHUT_RDWR);  // wakes a poll in another thread at once
}

Result<std::size_t> TlsLink::judge(int result, const char* doing) {
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

Result<std::size_t> TlsLink::try_read(void* to, std::size_t bytes) {
  if (is_cut()) return Error(Code::kCancelled, "link was cut");
  const auto most = std::min<std::size_t>(bytes, std::numeric_limits<int>::max());
  ERR_clear_error();
  errno = 0;
  const int got = SSL_read(session_->ssl, to, static_cast<int>(most));
  if (got > 0) return static_cast<std::size_t>(got);
  return judge(got, "receiving");
}

Result<std::size_t> TlsLink::try_write(const void* from, std::size_t bytes) {
  if (is_cut()) return Error(Code::kCancelled, "link was cut");
  const auto most = std::min<std::size_t>(bytes, std::numeric_limits<int>::max());
  ERR_clear_error();
  errno = 0;
  const int sent = SSL_write(session_->ssl, from, static_cast<int>(most));
  if (sent > 0) return static_cast<std::size_t>(sent);
  return judge(sent, "sending");
}

void TlsLink::wait_among(std::span<LinkWait> waits, MonoTime deadline) {
  CHECK_LE(waits.size(), kWaitsMax);
  std::array<pollfd, kWaitsMax> entries;
  for (std::size_t i = 0; i < waits.size(); ++i) {
    const auto& link = static_cast<const TlsLink&>(*waits[i].link);
    const int events = (waits[i].progress ? link.wants_ : 0) | (waits[i].end ? POLLRDHUP : 0);
    entries[i] = {link.fd_, static_cast<short>(events), 0};
  }
  ::poll(entries.data(), waits.size(), poll_timeout_ms(deadline));
  for (std::size_t i = 0; i < waits.size(); ++i)
    waits[i].ended = (entries[i].revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

}  // namespace rubato::worker
