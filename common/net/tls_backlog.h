// Private to common/net: the acceptor of one listener, and the connections that wait: for the end
// of their handshake, or to be taken. Bounded, and shared out among IP addresses, as ListenLimits
// says.
#pragma once

#include "common/net/tls_connection.h"

#include <array>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace rubato::net {

constexpr auto kRefusalLine = 1min;  // between two lines of the log about refusals of one kind

class Backlog : public std::enable_shared_from_this<Backlog> {
 public:
  Backlog(std::shared_ptr<Io> io, std::shared_ptr<SslContext> context, std::string peer_name,
          ListenLimits limits);
  // Before the I/O thread knows us.
  Result<Endpoint> open(const Endpoint& at);

  // --- I/O thread ---
  void accept_next();
  void beat();  // now, and every kReadBeat until close(): ListenLimits::beat
  // When the network goes: like close(), without a post that nobody would run.
  void network_gone();

  // --- any thread ---
  Result<std::shared_ptr<TlsConnection>> take(MonoTime deadline);
  void renew(std::shared_ptr<SslContext> context);
  void close();

 private:
  // The connections of one IP address that wait.
  struct Source {
    std::list<std::shared_ptr<TlsConnection>> shaking;  // in their handshake; the oldest first
    std::size_t ready = 0;
  };
  using Sources = std::map<std::string, Source>;

  void on_accepted(const ErrorCode& code, Tcp::socket socket);
  void on_handshake(const std::shared_ptr<TlsConnection>& connection, const Status& status);
  void shut();
  void refuse(Refusal why, const Endpoint& peer, const std::string& text);
  // Under the lock, as what follows. Whether it may wait; `gives_way`: which has to go for it.
  bool admit(const std::shared_ptr<TlsConnection>& connection,
             std::shared_ptr<TlsConnection>& gives_way);
  Sources::iterator most_shaking();
  void leave(Sources::iterator source);

  const std::shared_ptr<Io> io_;
  const std::string peer_name_;
  const ListenLimits limits_;
  Tcp::acceptor acceptor_;
  boost::asio::steady_timer retry_;
  boost::asio::steady_timer next_beat_;
  std::array<MonoTime, 2> next_line_{};  // I/O thread; by Refusal
  std::mutex mutex_;
  const std::unique_ptr<Condition> arrived_;
  std::shared_ptr<SslContext> context_;
  std::deque<std::shared_ptr<TlsConnection>> ready_;
  Sources sources_;  // by IP address; none is empty
  std::size_t waiting_ = 0;
  bool accepting_ = false;
  bool closed_ = false;
};

}  // namespace rubato::net
