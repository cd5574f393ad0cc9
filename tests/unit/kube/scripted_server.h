// A server on a loopback port that does, connection by connection, what a test tells it: plain TCP
// or TLS. Each connection has a thread; all end with the server.
#pragma once

#include "common/net/certificates.h"

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace rubato::kube {

class ScriptedServer {
 public:
  class Connection {
   public:
    virtual ~Connection() = default;
    // The next request up to its body's end; empty when the client has gone.
    virtual std::string read_request() = 0;
    // False when the client has gone.
    virtual bool write(std::string_view bytes) = 0;
    // How many bytes the kernel took without blocking, at most; 0 when its buffers are full.
    virtual std::size_t write_now(std::string_view bytes) = 0;
    // Until the client closes.
    virtual void wait_for_close() = 0;
  };
  using Script = std::function<void(Connection&)>;

  // With a key pair: TLS. `client_authority` (PEM): demands a client certificate signed by it.
  // `address`: 127.0.0.1 or ::1.
  explicit ScriptedServer(Script script, const net::KeyPair& identity = {},
                          const std::string& client_authority = "",
                          const std::string& address = "127.0.0.1");
  static bool has_ipv6();  // whether ::1 can be listened on here
  ~ScriptedServer();
  std::uint16_t port() const { return port_; }
  int connections() const;

 private:
  void accept_loop();

  Script script_;
  std::shared_ptr<void> tls_;  // SSL_CTX
  int listener_ = -1;
  std::uint16_t port_ = 0;
  mutable std::mutex mutex_;
  std::vector<int> sockets_;
  std::vector<std::thread> threads_;
  bool closing_ = false;
  std::thread acceptor_;
};

// An answer with Content-Length.
std::string http_answer(int code, const std::string& body, const std::string& headers = "");
// The head of a chunked answer, one chunk, and the last chunk.
std::string chunked_head();
std::string chunk(const std::string& body);
std::string last_chunk();

}  // namespace rubato::kube
