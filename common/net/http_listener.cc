#include "common/net/http_listener.h"

#include "common/log.h"
#include "common/net/tls_context.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <boost/asio.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>
#include <fcntl.h>

namespace rubato::net {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using Tcp = asio::ip::tcp;
using ErrorCode = boost::system::error_code;

constexpr std::size_t kConnectionsMax = 256;
constexpr std::size_t kConnectionsPerSource = 32;  // beyond: closed at once
constexpr std::uint32_t kHeaderBytesMax = 16 * 1024;
constexpr std::uint64_t kBodyBytesMax = 1024;
constexpr auto kRequestLimit = std::chrono::seconds(10);

using Response = http::response<http::span_body<const char>>;

// One connection, over TCP or TLS.
class Session : public std::enable_shared_from_this<Session> {
 public:
  virtual ~Session() = default;
  virtual void start() = 0;
  virtual void close() = 0;
  virtual void answer(std::optional<HttpResponse> refusal) = 0;  // to the request that waits
  asio::ip::address from;
  std::uint64_t number = 0;  // in the order of their coming
};

struct Server {
  asio::io_context context{1};
  Tcp::acceptor acceptor{context};
  asio::steady_timer retry{context};
  HttpListener::Handlers handlers;
  HttpOptions options;
  std::shared_ptr<SslContext> tls;  // null: plain
  std::chrono::steady_clock::time_point tls_read;
  std::set<Session*> sessions;  // I/O thread, as all that follows
  std::uint64_t last_session = 0;
  std::set<std::shared_ptr<Session>> waiting;  // for the word of `admit`
  bool closed = false;
};

template <class Stream>
class StreamSession : public Session {
 public:
  template <class... Args>
  explicit StreamSession(std::shared_ptr<Server> server, Args&&... args)
      : server_(std::move(server)), stream_(std::forward<Args>(args)...) {
    server_->sessions.insert(this);
  }
  ~StreamSession() override { server_->sessions.erase(this); }
  StreamSession(const StreamSession&) = delete;
  StreamSession& operator=(const StreamSession&) = delete;

  void close() override { beast::get_lowest_layer(stream_).close(); }

  void start() override {
    if constexpr (kIsTls) {
      beast::get_lowest_layer(stream_).expires_after(kRequestLimit);
      stream_.async_handshake(asio::ssl::stream_base::server,
                              [self = self()](const ErrorCode& code) {
                                if (!code && !self->server_->closed) self->read();
                              });
    } else {
      read();
    }
  }

  void answer(std::optional<HttpResponse> refusal) override {
    if (refusal) return respond(std::move(*refusal), false);
    const auto found = server_->handlers.find(path());
    if (found == server_->handlers.end())
      return respond({.status = 404, .body = "not found\n"}, parser_->keep_alive());
    respond(found->second(), parser_->keep_alive());
  }

 private:
  static constexpr bool kIsTls = !std::is_same_v<Stream, beast::tcp_stream>;

  std::shared_ptr<StreamSession> self() {
    return std::static_pointer_cast<StreamSession>(shared_from_this());
  }

  void read() {
    parser_.emplace();
    parser_->header_limit(kHeaderBytesMax);
    parser_->body_limit(kBodyBytesMax);
    beast::get_lowest_layer(stream_).expires_after(kRequestLimit);
    http::async_read(stream_, buffer_, *parser_,
                     [self = self()](const ErrorCode& code, std::size_t) { self->on_read(code); });
  }

  void on_read(const ErrorCode& code) {
    if (server_->closed) return;
    if (code == http::error::header_limit || code == http::error::body_limit) {
      respond({.status = 413, .body = "too large\n"}, false);
    } else if (code && code.category() == make_error_code(http::error::bad_method).category() &&
               code != http::error::end_of_stream) {
      respond({.status = 400, .body = "bad request\n"}, false);
    } else if (!code) {
      handle();
    }  // else: the end of the stream, the time limit, a reset; the session ends here
  }

  std::string path() const {
    const std::string target(parser_->get().target());
    return target.substr(0, target.find('?'));
  }

  void handle() {
    const auto& request = parser_->get();
    if (request.method() != http::verb::get && request.method() != http::verb::head)
      return respond({.status = 405, .body = "GET or HEAD\n"}, parser_->keep_alive());
    if (!server_->options.admit) return answer(std::nullopt);
    const HttpRequest asked{path(), std::string(request[http::field::authorization])};
    server_->waiting.insert(shared_from_this());
    // Whoever decides may do so late, and on another thread: nothing of ours is kept alive for it.
    server_->options.admit(asked, [server = std::weak_ptr(server_), session = weak_from_this()](
                                      std::optional<HttpResponse> refusal) {
      const auto alive = server.lock();
      if (!alive) return;
      asio::post(alive->context, [server, session, refusal = std::move(refusal)]() mutable {
        const auto listener = server.lock();
        const auto asker = session.lock();
        if (!listener || listener->closed || !asker || listener->waiting.erase(asker) == 0) return;
        asker->answer(std::move(refusal));
      });
    });
  }

  void respond(HttpResponse answer, bool keep_alive) {
    const bool head = parser_->is_header_done() && parser_->get().method() == http::verb::head;
    response_ = Response(static_cast<http::status>(answer.status), 11);
    response_.set(http::field::content_type, answer.content_type);
    response_.set(http::field::cache_control, "no-store");
    if (answer.status == 401) response_.set(http::field::www_authenticate, "Bearer");
    response_.keep_alive(keep_alive);
    sent_ = answer.shared_body ? std::move(answer.shared_body)
                               : std::make_shared<const std::string>(std::move(answer.body));
    response_.content_length(sent_->size());
    if (!head) response_.body() = {sent_->data(), sent_->size()};
    beast::get_lowest_layer(stream_).expires_after(kRequestLimit);
    http::async_write(stream_, response_,
                      [self = self(), keep_alive](const ErrorCode& code, std::size_t) {
                        self->sent_.reset();
                        if (code || self->server_->closed) return;
                        if (keep_alive) return self->read();
                        ErrorCode ignored;
                        beast::get_lowest_layer(self->stream_)
                            .socket()
                            .shutdown(Tcp::socket::shutdown_send, ignored);
                      });
  }

  std::shared_ptr<Server> server_;
  Stream stream_;
  beast::flat_buffer buffer_{kHeaderBytesMax + kBodyBytesMax};
  std::optional<http::request_parser<http::string_body>> parser_;
  std::shared_ptr<const std::string> sent_;  // what the response's body points to
  Response response_;
};

Status read_certificate(Server& server) {
  TRY(const KeyPair pair, server.options.certificate());
  TlsConfig config;
  config.certificate = pair.certificate;
  config.private_key = pair.private_key;
  TRY(server.tls, make_context(config, TlsRole::kServer));
  return ok();
}

// Anew where it may have been replaced meanwhile.
void renew_certificate(Server& server) {
  const auto now = std::chrono::steady_clock::now();
  if (now - server.tls_read < kCertificateAge) return;
  server.tls_read = now;
  if (const Status read = read_certificate(server); !read.ok())
    LOG_WARNING("http", "keeps the certificate it has: {}", read.error().to_string());
}

std::shared_ptr<Session> make_session(const std::shared_ptr<Server>& server, Tcp::socket socket) {
  if (!server->options.certificate)
    return std::make_shared<StreamSession<beast::tcp_stream>>(server, std::move(socket));
  renew_certificate(*server);
  return std::make_shared<StreamSession<beast::ssl_stream<beast::tcp_stream>>>(
      server, std::move(socket), *server->tls);
}

// For one of `from`; false: it has enough already. With all places taken the oldest connection of
// the source that has most goes: a few sources keep nobody out.
bool make_room(Server& server, const asio::ip::address& from) {
  std::map<asio::ip::address, std::vector<Session*>> sources;
  for (Session* session : server.sessions) sources[session->from].push_back(session);
  const std::size_t own = sources[from].size();
  if (own >= kConnectionsPerSource) return false;
  if (server.sessions.size() < kConnectionsMax) return true;
  const auto count = [](const auto& source) { return source.second.size(); };
  const auto& most = std::ranges::max_element(sources, {}, count)->second;
  if (own >= most.size()) return false;
  Session* oldest = *std::ranges::min_element(most, {}, &Session::number);
  oldest->close();
  server.sessions.erase(oldest);
  return true;
}

void accept_next(const std::shared_ptr<Server>& server) {
  // The pointer to the listener's own is valid while its thread runs.
  server->acceptor.async_accept(
      [weak = std::weak_ptr(server)](const ErrorCode& code, Tcp::socket socket) {
        const auto listener = weak.lock();
        if (!listener || listener->closed) return;
        if (code) {
          LOG_WARNING("http", "accept: {}", code.message());
          listener->retry.expires_after(kAcceptRetry);
          listener->retry.async_wait([weak](const ErrorCode& cancelled) {
            const auto again = weak.lock();
            if (!cancelled && again && !again->closed) accept_next(again);
          });
          return;
        }
        ::fcntl(socket.native_handle(), F_SETFD, FD_CLOEXEC);
        ErrorCode unknown;
        const asio::ip::address from = socket.remote_endpoint(unknown).address();
        if (make_room(*listener, from)) {
          const auto session = make_session(listener, std::move(socket));
          session->from = from;
          session->number = ++listener->last_session;
          session->start();
        }  // else the socket closes here
        accept_next(listener);
      });
}

}  // namespace

struct HttpListener::Impl {
  std::shared_ptr<Server> server = std::make_shared<Server>();
  Endpoint local;
  Task thread;
};

Result<std::unique_ptr<HttpListener>> HttpListener::start(Executor& executor, const Endpoint& at,
                                                          Handlers handlers, HttpOptions options) {
  auto impl = std::make_unique<Impl>();
  Server& server = *impl->server;
  server.handlers = std::move(handlers);
  server.options = std::move(options);
  if (server.options.certificate) {
    TRY_OK(read_certificate(server));
    server.tls_read = std::chrono::steady_clock::now();
  }
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
  accept_next(impl->server);
  impl->thread = executor.spawn("http-io", [&server](std::stop_token) { server.context.run(); });
  return std::unique_ptr<HttpListener>(new HttpListener(std::move(impl)));
}

HttpListener::HttpListener(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

HttpListener::~HttpListener() {
  asio::post(impl_->server->context, [&server = *impl_->server] {
    server.closed = true;
    ErrorCode ignored;
    server.acceptor.close(ignored);
    server.retry.cancel();
    for (Session* session : server.sessions) session->close();
    server.waiting.clear();
  });
  impl_->thread.join();
}

Endpoint HttpListener::local() const { return impl_->local; }

}  // namespace rubato::net
