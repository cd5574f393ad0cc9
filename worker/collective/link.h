// Link: one authenticated TLS connection between two workers, as bytes in order. The socket is
// nonblocking; the blocking calls wait in poll with a deadline. Wraps OpenSSL.
//
// Thread: one thread reads and writes (a TLS object cannot do both at once); cut() from any thread
// at any time makes every present and later call fail within a scheduling delay.
#pragma once

#include "common/clock.h"
#include "common/result.h"

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace rubato::worker {

constexpr std::size_t kLinkFrameBytes = 1u << 20;  // largest control frame
constexpr std::size_t kSocketBufferBytes = 4u << 20;
constexpr auto kDeadPeerLimit = 10s;  // TCP_USER_TIMEOUT and keep-alive: a host that vanished

// Lets one thread end another's wait: readable once cancelled. Thread-safe.
class Cancellation {
 public:
  Cancellation();
  ~Cancellation();
  Cancellation(const Cancellation&) = delete;
  Cancellation& operator=(const Cancellation&) = delete;
  void cancel();
  bool is_cancelled() const { return cancelled_.load(); }
  int fd() const { return fd_; }

 private:
  int fd_;
  std::atomic<bool> cancelled_{false};
};

struct TlsSession;  // an OpenSSL connection, owned by its link

class Link {
 public:
  // Takes the connected socket and the finished handshake.
  Link(int fd, std::unique_ptr<TlsSession> session);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // Moves what can be moved now; 0 means: poll fd() for `wants()` and try again. kUnavailable when
  // the connection ended.
  Result<std::size_t> try_read(void* to, std::size_t bytes);
  Result<std::size_t> try_write(const void* from, std::size_t bytes);
  int fd() const { return fd_; }
  // POLLIN or POLLOUT, after a try_ that moved nothing.
  short wants() const { return wants_; }

  Status read_all(void* to, std::size_t bytes, MonoTime deadline);
  Status write_all(const void* from, std::size_t bytes, MonoTime deadline);
  // 4 bytes big-endian length, then the body.
  Status send_frame(std::string_view body, MonoTime deadline);
  Result<std::string> receive_frame(MonoTime deadline);

  void cut();
  bool is_cut() const { return cut_.load(); }

 private:
  Result<std::size_t> judge(int result, const char* doing);
  Status wait(MonoTime deadline);

  int fd_;
  std::unique_ptr<TlsSession> session_;
  short wants_ = 0;
  std::atomic<bool> cut_{false};
};

}  // namespace rubato::worker
