// Private to worker/collective: a Link over a nonblocking socket and TLS. Wraps OpenSSL.
#pragma once

#include "worker/collective/link.h"

#include <atomic>
#include <memory>
#include <stop_token>

namespace rubato::worker {

struct TlsSession;  // an OpenSSL connection, owned by its link

// Lets a request to stop end a poll: readable from then on.
class StopSignal {
 public:
  explicit StopSignal(std::stop_token stop);
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;
  int fd() const { return event_.fd; }
  bool is_stopped() const { return stop_.stop_requested(); }

 private:
  struct Ring {
    int fd;
    void operator()() const;
  };
  struct Event {
    Event();
    ~Event();
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;
    int fd;
  };
  const Event event_;  // closed when no callback can run any more
  const std::stop_token stop_;
  std::stop_callback<Ring> callback_;
};

class TlsLink : public Link {
 public:
  // Takes the connected socket and the finished handshake.
  TlsLink(int fd, std::unique_ptr<TlsSession> session);
  ~TlsLink() override;
  TlsLink(const TlsLink&) = delete;
  TlsLink& operator=(const TlsLink&) = delete;

  Result<std::size_t> try_read(void* to, std::size_t bytes) override;
  Result<std::size_t> try_write(const void* from, std::size_t bytes) override;
  void wait_among(std::span<LinkWait> waits, MonoTime deadline) override;
  void cut() override;
  bool is_cut() const override { return cut_.load(); }

 protected:
  MonoTime now() const override { return SystemClock().now(); }

 private:
  Result<std::size_t> judge(int result, const char* doing);

  int fd_;
  std::unique_ptr<TlsSession> session_;
  short wants_ = 0;  // POLLIN or POLLOUT, after a try_ that moved nothing
  std::atomic<bool> cut_{false};
};

}  // namespace rubato::worker
