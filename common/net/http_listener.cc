#include "common/net/http_listener.h"

#include "common/log.h"

#include <set>
#include <utility>

#include <boost/asio.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <fcntl.h>

namespace rubato::net {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using Tcp = asio::ip::tcp;
using ErrorCode = boost::system::error_code;

constexpr std::size_t kConnectionsMax = 64;
constexpr std::uint32_t kHeaderBytesMax = 16 * 1024;
constexpr std::uint64_t kBodyBytesMax = 1024;
constexpr auto kRequestLimit = std::chrono::seconds(10);
constexpr auto kAcceptRetry = 100ms;

using Response = http::response<http::string_body>;

class Session;

struct Server {
  asio::io_context context{1};
  Tcp::acceptor acceptor{context};
  asio::steady_timer retry{context};
  HttpListener::Handlers handlers;
  std::set<Session*> sessions;  // I/O thread
  bool closed = false;          // I/O thread
};

class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(Server& server, Tcp::socket socket) : server_(server), stream_(std::move(socket)) {
    server_.sessions.insert(this);
  }
  ~Session() { server_.sessions.erase(this); }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  void close() { stream_.close(); }

  void read() {
    parser_.emplace();
    parser_->header_limit(kHeaderBytesMax);
    parser_->body_limit(kBodyBytesMax);
    stream_.expires_after(kRequestLimit);
    http::async_read(
        stream_, buffer_, *parser_,
        [self = shared_from_this()](const ErrorCode& code, std::size_t) { self->on_read(code); });
  }

 private:
  void on_read(const ErrorCode& code) {
    if (server_.closed) return;
    if (code == http::error::header_limit || code == http::error::body_limit) {
      respond({.status = 413, .body = "too large\n"}, false);
    } else if (code && code.category() == make_error_code(http::error::bad_method).category() &&
               code != http::error::end_of_stream) {
      respond({.status = 400, .body = "bad request\n"}, false);
    } else if (!code) {
      respond(handle(), parser_->keep_alive());
    }  // else: the end of the stream, the time limit, a reset; the session ends here
  }

  HttpResponse handle() {
    const auto& request = parser_->get();
    if (request.method() != http::verb::get && request.method() != http::verb::head) {
      return {.status = 405, .body = "GET or HEAD\n"};
    }
    const std::string target(request.target());
    const auto found = server_.handlers.find(target.substr(0, target.find('?')));
    if (found == server_.handlers.end()) return {.status = 404, .body = "not found\n"};
    return found->second();
  }

  void respond(HttpResponse answer, bool keep_alive) {
    const bool head = parser_->is_header_done() && parser_->get().method() == http::verb::head;
    response_ = Response(static_cast<http::status>(answer.status), 11);
    response_.set(http::field::content_type, answer.content_type);
    response_.set(http::field::cache_control, "no-store");
    response_.keep_alive(keep_alive);
    response_.content_length(answer.body.size());
    if (!head) response_.body() = std::move(answer.body);
    stream_.expires_after(kRequestLimit);
    http::async_write(stream_, response_,
                      [self = shared_from_this(), keep_alive](const ErrorCode& code, std::size_t) {
                        if (code || self->server_.closed) return;
                        if (keep_alive) return self->read();
                        ErrorCode ignored;
                        self->stream_.socket().shutdown(Tcp::socket::shutdown_send, ignored);
                      });
  }

  Server& server_;
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_{kHeaderBytesMax + kBodyBytesMax};
  std::optional<http::request_parser<http::string_body>> parser_;
  Response response_;
};

void accept_next(Server& server) {
  server.acceptor.async_accept([&server](const ErrorCode& code, Tcp::socket socket) {
    if (server.closed) return;
    if (code) {
      LOG_WARNING("http", "accept: {}", code.message());
      server.retry.expires_after(kAcceptRetry);
      server.retry.async_wait([&server](const ErrorCode& cancelled) {
        if (!cancelled && !server.closed) accept_next(server);
      });
      return;
    }
    ::fcntl(socket.native_handle(), F_SETFD, FD_CLOEXEC);
    if (server.sessions.size() < kConnectionsMax) {
      std::make_shared<Session>(server, std::move(socket))->read();
    }  // else the socket closes here
    accept_next(server);
  });
}

}  // namespace

struct HttpListener::Impl {
  Server server;
  Endpoint local;
  Task thread;
};

Result<std::unique_ptr<HttpListener>> HttpListener::start(Executor& executor, const Endpoint& at,
                                                          Handlers handlers) {
  auto impl = std::make_unique<Impl>();
  Server& server = impl->server;
  server.handlers = std::move(handlers);
  ErrorCode code;
  const auto address = asio::ip::make_address(at.host, code);
  if (code) return Error(Code::kInvalid, "http: not an IP address: \"" + at.host + "\"");
  const Tcp::endpoint endpoint(address, at.port);
  server.acceptor.open(endpoint.protocol(), code);
  if (!code) server.acceptor.set_option(Tcp::acceptor::reuse_address(true), code);
  if (!code) server.acceptor.bind(endpoint, code);
  if (!code) server.acceptor.listen(asio::socket_base::max_listen_connections, code);
  if (code) {
    return Error(Code::kUnavailable, "http: listen on " + to_string(at) + ": " + code.message());
  }
  ::fcntl(server.acceptor.native_handle(), F_SETFD, FD_CLOEXEC);
  const auto local = server.acceptor.local_endpoint(code);
  impl->local = {local.address().to_string(), local.port()};
  accept_next(server);
  impl->thread = executor.spawn("http-io", [&server](std::stop_token) { server.context.run(); });
  return std::unique_ptr<HttpListener>(new HttpListener(std::move(impl)));
}

HttpListener::HttpListener(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

HttpListener::~HttpListener() {
  asio::post(impl_->server.context, [&server = impl_->server] {
    server.closed = true;
    ErrorCode ignored;
    server.acceptor.close(ignored);
    server.retry.cancel();
    for (Session* session : server.sessions) session->close();
  });
  impl_->thread.join();
}

Endpoint HttpListener::local() const { return impl_->local; }

}  // namespace rubato::net
