#include "apiserver/front/session.h"

#include "common/log.h"

#include <sstream>
#include <utility>

namespace rubato::apiserver {
namespace {

constexpr std::size_t kOneWriteBytes = 64U << 10U;  // a head and a body of less go together

template <class Body, class Fields>
Request to_request(http::request<Body, Fields>& in, Status& bad) {
  Request out;
  out.method = std::string(in.method_string());
  const auto header = [&](http::field name) { return std::string(in[name]); };
  out.accept = header(http::field::accept);
  out.content_type = header(http::field::content_type);
  out.authorization = header(http::field::authorization);
  out.body = std::move(in.body());
  bad = parse_target(std::string_view(in.target().data(), in.target().size()), out);
  return out;
}

http::response<http::empty_body> head_of(int status, const std::string& content_type) {
  http::response<http::empty_body> head;
  head.version(11);
  head.result(static_cast<unsigned>(status));
  head.set(http::field::content_type, content_type);
  head.set(http::field::cache_control, "no-cache, private");
  return head;
}

std::string text_of(const http::response<http::empty_body>& head) {
  std::ostringstream text;
  text << head.base();
  return std::move(text).str();
}

}  // namespace

Session::Session(Shared& shared, asio::ip::tcp::socket socket)
    : shared_(shared),
      stream_(beast::tcp_stream(std::move(socket)), shared.server_tls),
      timer_(shared.context) {
  shared_.sessions.insert(this);
}

Session::~Session() { shared_.sessions.erase(this); }

void Session::start() {
  asio::co_spawn(
      shared_.context, [self = shared_from_this()] { return self->run(); }, asio::detached);
}

void Session::close() {
  ErrorCode ignored;
  beast::get_lowest_layer(stream_).socket().close(ignored);
  gone_ = true;
  leave_agent();
  poke();
}

// A silent log would otherwise outlive its reader.
void Session::leave_agent() {
  ErrorCode ignored;
  if (agent_ != nullptr) agent_->socket().close(ignored);
}

void Session::poke() {
  poked_ = true;
  timer_.cancel();
}

asio::awaitable<void> Session::run() {
  ErrorCode error;
  auto& tcp = beast::get_lowest_layer(stream_);
  tcp.socket().set_option(asio::ip::tcp::no_delay(true), error);
  tcp.expires_after(kHandshakeLimit);
  co_await stream_.async_handshake(asio::ssl::stream_base::server,
                                   asio::redirect_error(kToken, error));
  if (error) co_return;
  while (co_await serve_one()) {
  }
  tcp.expires_after(std::chrono::seconds(2));
  co_await stream_.async_shutdown(asio::redirect_error(kToken, error));
  tcp.close();
}

asio::awaitable<bool> Session::serve_one() {
  ErrorCode error;
  auto& tcp = beast::get_lowest_layer(stream_);
  http::request_parser<http::string_body> parser;
  parser.header_limit(kHeaderBytes);
  parser.body_limit(kBodyBytes);
  tcp.expires_after(kIdleLimit);
  co_await http::async_read_header(stream_, buffer_, parser, asio::redirect_error(kToken, error));
  if (error == http::error::body_limit) co_return co_await refuse_large();  // its length says so
  if (error) co_return false;
  tcp.expires_after(kRequestLimit);
  if (parser.get()[http::field::expect] == "100-continue") {
    http::response<http::empty_body> proceed(http::status::continue_, 11);
    co_await http::async_write(stream_, proceed, asio::redirect_error(kToken, error));
    if (error) co_return false;
  }
  co_await http::async_read(stream_, buffer_, parser, asio::redirect_error(kToken, error));
  if (error == http::error::body_limit) co_return co_await refuse_large();
  if (error) co_return false;
  auto message = parser.release();
  const bool keep_alive = message.keep_alive();
  Status bad;
  const Request request = to_request(message, bad);
  if (!bad.ok()) {
    Response refusal = error_response(kube::api_error::bad_request(bad.error().what()));
    co_return co_await send(std::move(refusal), false, keep_alive);
  }
  Reply reply = shared_.router->handle(request);
  LOG_DEBUG("apiserver", "{} {} {}", request.method, request.path, reply.response.status);
  if (reply.watch) {
    WatchReply watch = std::move(*reply.watch);
    co_await stream_watch(std::move(watch));
    co_return false;
  }
  if (reply.log) {
    LogReply log = std::move(*reply.log);
    co_return co_await proxy_log(std::move(log));
  }
  Response response = std::move(reply.response);
  co_return co_await send(std::move(response), request.method == "HEAD", keep_alive);
}

// A connection that is closed while bytes of the body wait to be read is reset, and the client may
// lose the answer with it: so what still comes is read and dropped, up to a bound.
asio::awaitable<bool> Session::refuse_large() {
  const kube::ApiError large{413,
                             "RequestEntityTooLarge",
                             "Request entity too large: limit is " + std::to_string(kBodyBytes),
                             {}};
  Response refusal = error_response(large);
  (void)co_await send(std::move(refusal), false, false);
  const SystemClock clock;
  const MonoTime end = clock.now() + kRequestLimit;
  std::string dropped(kOneWriteBytes, '\0');
  std::size_t bytes = 0;
  ErrorCode error;
  while (!error && bytes < kDiscardBytes && clock.now() < end) {
    beast::get_lowest_layer(stream_).expires_after(kDiscardPause);
    const std::size_t more = co_await stream_.async_read_some(asio::buffer(dropped),
                                                              asio::redirect_error(kToken, error));
    bytes += more;
  }
  co_return false;
}

asio::awaitable<bool> Session::send(Response response, bool head_only, bool keep_alive) {
  http::response<http::empty_body> head = head_of(response.status, response.content_type);
  for (const auto& [name, value] : response.headers) head.insert(name, value);
  head.keep_alive(keep_alive);
  std::string body = head_only ? "" : std::move(response.body);
  head.content_length(body.size());
  std::string text = text_of(head);
  const bool together = body.size() < kOneWriteBytes;
  if (together) text += body;
  bool sent = co_await write(std::move(text));
  if (sent && !together) sent = co_await write(std::move(body));
  co_return (sent && keep_alive);
}

// All that is sent goes through here: each type of buffers would be compiled through Asio's layers
// for itself, for seconds.
asio::awaitable<bool> Session::write(std::string text) {
  ErrorCode error;
  beast::get_lowest_layer(stream_).expires_after(kWriteLimit);
  co_await asio::async_write(stream_, asio::buffer(text), asio::redirect_error(kToken, error));
  co_return !error;
}

asio::awaitable<bool> Session::begin_chunks(int status, std::string content_type) {
  http::response<http::empty_body> head = head_of(status, content_type);
  head.keep_alive(false);
  head.chunked(true);
  std::string text = text_of(head);
  co_return co_await write(std::move(text));
}

asio::awaitable<bool> Session::send_chunk(std::string bytes) {
  if (bytes.empty()) co_return !gone_;
  std::string chunk = fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes);
  const bool sent = co_await write(std::move(chunk));
  co_return sent && !gone_;
}

asio::awaitable<void> Session::end_chunks() {
  std::string last = "0\r\n\r\n";
  (void)co_await write(std::move(last));
}

// A client sends nothing while it reads a stream: a readable socket means that it has gone.
void Session::notice_hang_up() {
  auto& tcp = beast::get_lowest_layer(stream_);
  tcp.expires_never();
  tcp.socket().async_wait(asio::ip::tcp::socket::wait_read,
                          [self = shared_from_this()](const ErrorCode&) {
                            self->gone_ = true;
                            self->leave_agent();
                            self->poke();
                          });
}

asio::awaitable<void> Session::wait(MonoTime until) {
  ErrorCode ignored;
  if (!poked_) {
    timer_.expires_at(until);
    co_await timer_.async_wait(asio::redirect_error(kToken, ignored));
  }
  poked_ = false;
}

asio::awaitable<void> Session::stream_watch(WatchReply reply) {
  if (!co_await begin_chunks(200, "application/json")) co_return;
  notice_hang_up();
  const SystemClock clock;
  const MonoTime end = clock.now() + reply.length;
  WatchLines lines(reply, clock);
  const std::weak_ptr<Session> weak = shared_from_this();
  reply.watcher->set_wake([weak, &context = shared_.context] {
    asio::post(context, [weak] {
      if (const auto self = weak.lock()) self->poke();
    });
  });
  bool open = true;
  while (open && !gone_) {
    std::string batch;
    bool more = true;
    while (more && batch.size() < kWatchBatchBytes) {
      auto polled = reply.watcher->poll();
      if (!polled.ok()) {
        batch += WatchLines::error_line(polled.error());
        open = false;
        break;
      }
      more = polled.value().has_value();
      if (more) batch += lines.line(*polled.value());
    }
    if (!co_await send_chunk(std::move(batch))) co_return;
    if (more || !open) continue;
    if (clock.now() >= end) break;
    co_await wait(std::min(end, reply.watcher->bookmark_due()));
  }
  if (!gone_) co_await end_chunks();
}

}  // namespace rubato::apiserver
