// Link: one authenticated connection between two workers, as bytes in order. This is the border of
// the network: TlsLink (tls_link.h) is the real one; a simulation has links in virtual time.
//
// Thread: one thread reads and writes; cut() from any thread at any time makes every present and
// later call fail within a scheduling delay.
#pragma once

#include "common/clock.h"
#include "common/result.h"

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace rubato::worker {

constexpr std::size_t kLinkFrameBytes = 1u << 20;  // largest control frame

class Link;

// What is waited for on one of several links.
struct LinkWait {
  Link* link = nullptr;
  bool progress = true;  // that the last try_ that moved nothing may move something
  bool end = false;      // that the peer closed it, or it failed
  bool ended = false;    // out, where `end` was asked for
};

class Link {
 public:
  virtual ~Link() = default;

  // Moves what can be moved now; 0 means: wait_among() and try again. kUnavailable when the
  // connection ended; kCancelled when it was cut here.
  virtual Result<std::size_t> try_read(void* to, std::size_t bytes) = 0;
  virtual Result<std::size_t> try_write(const void* from, std::size_t bytes) = 0;
  // Waits until one of `waits`, all of links of this one's network, comes true, or `deadline`.
  // Spurious returns are allowed.
  virtual void wait_among(std::span<LinkWait> waits, MonoTime deadline) = 0;
  virtual void cut() = 0;
  virtual bool is_cut() const = 0;

  // Blocking, built on the above. kTimeout when nothing moved until `deadline`.
  Status read_all(void* to, std::size_t bytes, MonoTime deadline);
  Status write_all(const void* from, std::size_t bytes, MonoTime deadline);
  // 4 bytes big-endian length, then the body.
  Status send_frame(std::string_view body, MonoTime deadline);
  Result<std::string> receive_frame(MonoTime deadline);

 protected:
  virtual MonoTime now() const = 0;

 private:
  Status wait(MonoTime deadline);
};

}  // namespace rubato::worker
