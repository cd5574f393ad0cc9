// Private to the wire server: one TLS connection of a client.
#pragma once

#include "apiserver/front/wire_server.h"

#include <memory>
#include <set>
#include <string>

#include <boost/asio.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>

namespace rubato::apiserver {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using ErrorCode = boost::system::error_code;
using TlsStream = beast::ssl_stream<beast::tcp_stream>;
constexpr auto kToken = asio::use_awaitable;

// What all sessions share; I/O thread only.
struct Shared {
  asio::io_context context{1};
  asio::ssl::context server_tls{asio::ssl::context::tls_server};
  asio::ssl::context agent_tls{asio::ssl::context::tls_client};
  Router* router = nullptr;
  std::set<class Session*> sessions;
};

class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(Shared& shared, asio::ip::tcp::socket socket);
  ~Session();
  void start();
  void close();  // closes the socket; pending operations fail

 private:
  asio::awaitable<void> run();
  asio::awaitable<bool> serve_one();  // false: close the connection
  asio::awaitable<bool> send(Response response, bool head_only, bool keep_alive);
  asio::awaitable<bool> refuse_large();  // always false
  asio::awaitable<void> stream_watch(WatchReply reply);
  asio::awaitable<bool> proxy_log(LogReply reply);
  // Pieces of a chunked response. False once the client is gone.
  asio::awaitable<bool> begin_chunks(int status, std::string content_type);
  asio::awaitable<bool> write(std::string text);
  asio::awaitable<bool> send_chunk(std::string bytes);
  asio::awaitable<void> end_chunks();
  void notice_hang_up();
  asio::awaitable<void> wait(MonoTime until);
  void poke();
  void leave_agent();

  Shared& shared_;
  TlsStream stream_;
  beast::flat_buffer buffer_;
  asio::steady_timer timer_;
  beast::tcp_stream* agent_ = nullptr;  // while we pass on its logs
  bool gone_ = false;                   // the client closed while we streamed
  bool poked_ = false;                  // something happened since the last wait
};

// Events of a watch as lines of JSON.
class WatchLines {
 public:
  WatchLines(const WatchReply& reply, const Clock& clock);
  std::string line(const kube::WatchItem& item);
  static std::string error_line(const kube::ApiError& error);

 private:
  const WatchReply& reply_;
  const Clock& clock_;
  struct Table;
  std::shared_ptr<Table> table_;
  bool first_ = true;
};

}  // namespace rubato::apiserver
