// Private to common/net: one TLS connection with its two bounded queues. Socket and session belong
// to the I/O thread; the queues are shared under a mutex with the tasks that send and receive.
//
// OpenSSL reads and writes the socket itself, and Asio only says when it can: an idle connection
// has no buffer of its own (asio::ssl::stream keeps 68 KiB for each).
#pragma once

#include "common/executor.h"
#include "common/free_with.h"
#include "common/net/tls_context.h"

#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <boost/asio.hpp>

namespace rubato::net {

using Tcp = boost::asio::ip::tcp;
using ErrorCode = boost::system::error_code;

// After close(): how long queued frames and the peer's farewell may take.
constexpr auto kLingerLimit = 1s;

class TlsConnection;

// What all connections of a network share; it outlives the last of them.
struct Io {
  explicit Io(Executor& e) : executor(e) {}
  // I/O thread. Remembers a connection so that the end of the network reaches it.
  void remember(const std::shared_ptr<TlsConnection>& connection);

  Executor& executor;
  boost::asio::io_context context{1};
  std::vector<std::weak_ptr<TlsConnection>> connections;  // I/O thread
  std::size_t prune_at = 64;
  std::array<char, 16 * 1024> chunk;  // I/O thread: what was just read
};

class TlsConnection : public std::enable_shared_from_this<TlsConnection> {
 public:
  TlsConnection(std::shared_ptr<Io> io, Tcp::socket socket, std::shared_ptr<SslContext> context,
                TlsRole role, const ListenLimits& limits = {});

  // --- I/O thread ---
  Tcp::socket& socket() { return socket_; }
  bool gone() const { return gone_; }
  // The socket is: sets its options and peer(). Before the handshake.
  void connected();
  // Within kHandshakeLimit; `done` is called once.
  void handshake(const std::string& peer_name, std::function<void(Status)> done);
  void start_reading();
  // Closes at once; both queues' waiters learn `why`.
  void fail(const Error& why);
  // The network goes: fails unless the connection is already saying farewell.
  void network_gone();

  // --- any thread ---
  Status send(std::string frame, MonoTime deadline);
  Result<std::string> receive(MonoTime deadline);
  void on_news(std::function<void()> news);
  void close();
  bool closed() const;
  Endpoint peer() const { return peer_; }
  std::string peer_name() const { return peer_name_; }

 private:
  using Step = void (TlsConnection::*)();
  void shake();
  void end_handshake(const Status& status);
  // Goes on with `step` when the socket is ready for what OpenSSL wants; false: it wants nothing of
  // the socket, and the connection is over.
  bool wait_for_socket(int ssl_error, Step step);
  void read();
  bool take(std::string_view bytes);  // false: nothing more is read now
  // Cuts complete frames from the bytes read; false when the peer breaks the format.
  bool take_frames(std::string_view bytes, std::deque<std::string>& frames);
  void write();
  void flush();
  bool fill_batch();
  void begin_linger();
  void tell_reader();

  const std::shared_ptr<Io> io_;
  const std::shared_ptr<SslContext> context_;
  const TlsRole role_;
  const std::size_t frame_most_;
  const std::size_t inbox_most_;
  const std::size_t outbox_most_;
  Tcp::socket socket_;
  const std::unique_ptr<SSL, FreeWith<SSL_free>> ssl_;
  boost::asio::steady_timer timer_;  // the handshake, later the farewell
  std::function<void(Status)> on_handshake_;
  Endpoint peer_;          // set before anybody else sees the connection
  std::string peer_name_;  // so is this
  std::string partial_;    // an incomplete frame with its header
  std::string batch_;      // being written, from its first byte until OpenSSL has taken the last
  bool writing_ = false;
  bool lingering_ = false;

  mutable std::mutex mutex_;
  const std::unique_ptr<Condition> readable_;
  const std::unique_ptr<Condition> writable_;
  std::deque<std::string> inbox_;
  std::size_t inbox_bytes_ = 0;
  bool paused_ = false;  // the inbox is full: nobody reads the socket
  std::deque<std::string> outbox_;
  std::size_t outbox_bytes_ = 0;  // with the batch being written
  bool closing_ = false;          // close() was called
  bool gone_ = false;             // the socket is closed
  std::function<void()> news_;    // who is told, besides `readable_`
  std::string why_;
};

}  // namespace rubato::net
