// Channels: ordered, reliable, framed messages between two processes. Production: TLS over TCP
// (Boost.Asio). Simulation: queues with seeded delay, loss of connection, and partition.
// A frame is at most kMaxFrame bytes: 4 bytes big-endian length, then the body.
#pragma once

#include "common/clock.h"
#include "common/result.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace rubato::net {

constexpr std::size_t kMaxFrame = 16u << 20;
constexpr std::size_t kSendQueueBytes = 32u << 20;     // full: send() waits up to its deadline
constexpr std::size_t kReceiveQueueBytes = 32u << 20;  // full: we stop reading the socket
constexpr Duration kReadBeat = 100ms;                  // see ListenLimits::beat

struct Endpoint {
  std::string host;  // an IP address, or a name where DNS exists
  std::uint16_t port = 0;
  bool operator==(const Endpoint&) const = default;
};
std::string to_string(const Endpoint& endpoint);  // "127.0.0.1:4430", "[::1]:4430"
Result<Endpoint> parse_endpoint(std::string_view text);
bool is_address(const std::string& host);  // or it is a name, and DNS is asked

// PEM texts, not file names; `authority` may hold several certificates. A side with `certificate`
// presents it; a side with `authority` demands a peer certificate signed by it. `peer_name`: the
// DNS or IP SAN the peer must carry; a dial without one demands the host it dials, a listener
// without one takes any name.
struct TlsConfig {
  std::string certificate = {};
  std::string private_key = {};
  std::string authority = {};
  std::string peer_name = {};
  bool require_peer_certificate = false;  // for listeners
};

// Why a connection was closed before accept() could give it out.
enum class Refusal {
  kTooMany,    // beyond the limits of pending ones
  kHandshake,  // it failed, or took too long
};

// What a listener grants those who dial it, whoever they are.
struct ListenLimits {
  std::size_t frame = kMaxFrame;                   // bytes of a received one
  std::size_t receive_queue = kReceiveQueueBytes;  // of each channel
  std::size_t send_queue = kSendQueueBytes;
  // Connections whose handshake goes on, or that accept() has not given out. Beyond: who comes
  // takes the place of the oldest handshake of the IP address that has most, if that are more than
  // kFewHandshakes and than its own has; where all have few, new ones wait in the kernel's backlog.
  std::size_t pending = 1024;
  // Of those from one IP address. Beyond: closed at once. So no few hosts keep the others out.
  std::size_t pending_per_source = 256;
  std::function<void(Refusal)> refused = {};  // called from any thread; must not wait
  // Called every kReadBeat by the thread that reads the channels, while it has time for all: what
  // had arrived at one beat is read by the next. Must not wait.
  std::function<void()> beat = {};
};
constexpr std::size_t kFewHandshakes = 8;

// Thread-safe: one reader and any number of senders.
class Channel {
 public:
  virtual ~Channel() = default;
  // Queues a frame. kTimeout when the queue stays full until `deadline`; kUnavailable when closed.
  virtual Status send(std::string frame, MonoTime deadline) = 0;
  // The next frame. kTimeout at the deadline; kUnavailable once the peer has gone and all frames
  // that arrived before were read.
  virtual Result<std::string> receive(MonoTime deadline) = 0;
  // `news` is called, from any thread, whenever receive() may have another answer than before, and
  // once at first: who reads many channels need not wait at each. It must only enqueue. Once.
  virtual void on_news(std::function<void()> news) = 0;
  virtual void close() = 0;
  virtual bool closed() const = 0;
  virtual Endpoint peer() const = 0;
  // The first DNS name in the peer's verified certificate; empty: it has shown none.
  virtual std::string peer_name() const = 0;
};

class Listener {
 public:
  virtual ~Listener() = default;
  // A channel whose handshake is done (a slow or failing client never delays others).
  virtual Result<std::unique_ptr<Channel>> accept(MonoTime deadline) = 0;
  virtual Endpoint local() const = 0;
  // For connections that come from now on; those that stand are left alone. kInvalid: it cannot be
  // used, and what was before goes on. Any thread.
  virtual Status renew(const TlsConfig& tls) = 0;
  virtual void close() = 0;
};

class Network {
 public:
  virtual ~Network() = default;
  // Port 0 asks for a free one; see Listener::local().
  virtual Result<std::unique_ptr<Listener>> listen(const Endpoint& at, const TlsConfig& tls,
                                                   const ListenLimits& limits) = 0;
  virtual Result<std::unique_ptr<Channel>> dial(const Endpoint& to, const TlsConfig& tls,
                                                MonoTime deadline) = 0;
};

}  // namespace rubato::net
