#include "tools/localnode/log_server.h"

#include "common/log.h"
#include "common/net/certificates.h"

#include <atomic>
#include <list>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>
#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/socket.h>

namespace rubato::localnode {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using ErrorCode = boost::system::error_code;
using Stream = beast::ssl_stream<beast::tcp_stream>;

namespace {

constexpr auto kCertificateLife = std::chrono::hours(24 * 365);
constexpr Duration kAcceptPause = 100ms;  // after EMFILE and the like
constexpr std::size_t kChunk = 64u << 10;
constexpr std::size_t kTimeLength = 27;  // "2026-11-21T08:00:00.000000Z"

struct Request {
  std::string ns, pod, container;
  bool follow = false;
  bool timestamps = false;
  bool previous = false;
  std::int64_t tail = -1;
  std::int64_t since_seconds = -1;
  std::optional<WallTime> since_time;
  std::uint64_t limit_bytes = ~0ull;
};

std::vector<std::string> split(std::string_view text, char by) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find(by, begin), text.size());
    parts.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::int64_t number(const std::string& text) { return std::strtoll(text.c_str(), nullptr, 10); }

// "%3A" is a colon.
std::string unescaped(const std::string& text) {
  std::string out;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '%') {
      out += text[at];
      continue;
    }
    out += static_cast<char>(std::strtol(text.substr(at + 1, 2).c_str(), nullptr, 16));
    at += 2;
  }
  return out;
}

Result<Request> parse_request(const std::string& target) {
  const std::size_t question = target.find('?');
  const auto path = split(std::string_view(target).substr(0, question), '/');
  if (path.size() != 5 || path[1] != "containerLogs") {
    return Error(Code::kNotFound, "only /containerLogs/NAMESPACE/POD/CONTAINER is served");
  }
  Request request{path[2], path[3], path[4]};
  if (question == std::string::npos) return request;
  for (const std::string& pair : split(std::string_view(target).substr(question + 1), '&')) {
    const std::size_t equals = pair.find('=');
    const std::string name = pair.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : pair.substr(equals + 1);
    if (name == "follow") request.follow = value == "true";
    if (name == "timestamps") request.timestamps = value == "true";
    if (name == "previous") request.previous = value == "true";
    if (name == "tailLines") request.tail = number(value);
    if (name == "sinceSeconds") request.since_seconds = number(value);
    if (name == "sinceTime") {
      TRY(request.since_time, parse_rfc3339(unescaped(value)));
    }
    if (name == "limitBytes") request.limit_bytes = static_cast<std::uint64_t>(number(value));
  }
  return request;
}

// Drops the times, and the lines before `since`.
std::string shape(const std::string& text, const Request& request, const std::string& since) {
  std::string out;
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = std::min(text.find('\n', begin), text.size() - 1);
    const std::string_view line = std::string_view(text).substr(begin, end + 1 - begin);
    begin = end + 1;
    if (line.size() < kTimeLength + 1 || (!since.empty() && line.substr(0, kTimeLength) < since))
      continue;
    out += request.timestamps ? line : line.substr(kTimeLength + 1);
  }
  return out;
}

// A caller, on the one task that serves it. Asio's calls that wait know no time limit, so each
// operation is started, and then this task does what it asks for until it is over or too late.
class Connection {
 public:
  Connection(asio::ssl::context& tls, Duration limit)
      : stream_(beast::tcp_stream(io_), tls), limit_(limit) {}

  asio::ip::tcp::socket& socket() { return beast::get_lowest_layer(stream_).socket(); }
  // A follower that has gone; it sends nothing after its request.
  bool has_left() {
    pollfd look{socket().native_handle(), POLLRDHUP, 0};
    return ::poll(&look, 1, 0) > 0;
  }

  void shake_hands() {
    act([&](auto done) { stream_.async_handshake(Stream::server, std::move(done)); });
  }
  void read(http::request<http::empty_body>& incoming) {
    beast::flat_buffer buffer(16u << 10);
    act([&](auto done) { http::async_read(stream_, buffer, incoming, std::move(done)); });
  }
  void write(http::response<http::string_body>& response) {
    act([&](auto done) { http::async_write(stream_, response, std::move(done)); });
  }
  void write_head(http::response<http::empty_body>& response) {
    http::response_serializer<http::empty_body> serializer(response);
    act([&](auto done) { http::async_write_header(stream_, serializer, std::move(done)); });
  }
  template <class Buffers>
  void write_raw(const Buffers& buffers) {
    act([&](auto done) { asio::async_write(stream_, buffers, std::move(done)); });
  }
  void say_goodbye() {
    act([&](auto done) { stream_.async_shutdown(std::move(done)); });
  }

 private:
  // Throws when it fails or is not over in time.
  template <class Start>
  void act(Start start) {
    ErrorCode result = asio::error::operation_aborted;
    beast::get_lowest_layer(stream_).expires_after(limit_);
    start([&result](const ErrorCode& code, auto&&...) { result = code; });
    io_.restart();
    io_.run();
    if (result) throw boost::system::system_error(result);
  }

  asio::io_context io_{1};
  Stream stream_;
  const Duration limit_;
};

}  // namespace

struct LogServer::Impl {
  Executor& executor;
  const NodeAgent& node;
  const Duration limit;
  asio::io_context io;
  asio::ssl::context tls{asio::ssl::context::tls_server};
  asio::ip::tcp::acceptor acceptor{io};
  std::list<Task> readers;
  Task accept_task;
  std::atomic<bool> stopping{false};
  std::mutex mutex;
  std::set<int> sockets;  // of readers, while these have them open

  Impl(Executor& e, const NodeAgent& n, Duration l) : executor(e), node(n), limit(l) {}

  void accept(std::stop_token stop) {
    while (!stop.stop_requested() && !stopping) {
      try {
        accept_one();
      } catch (const boost::system::system_error& error) {
        if (stopping) return;
        // No descriptors are left, or the like: those that are open go on, and others may come.
        LOG_WARNING("localnode", "log server: accept: {}", error.what());
        executor.sleep_for(kAcceptPause, stop);
      }
    }
  }

  void accept_one() {
    auto caller = std::make_shared<Connection>(tls, limit);
    acceptor.accept(caller->socket());
    const int socket = caller->socket().native_handle();
    ::fcntl(socket, F_SETFD, FD_CLOEXEC);
    std::erase_if(readers, [](const Task& task) { return task.done(); });
    if (readers.size() >= kLogReadersMax) return;  // closes it
    {
      const std::lock_guard lock(mutex);
      sockets.insert(socket);
    }
    auto reader = executor.try_spawn("log-reader", [this, caller, socket](std::stop_token stop) {
      try {
        caller->shake_hands();
        serve(*caller, stop);
        caller->say_goodbye();
      } catch (const boost::system::system_error&) {
        // The caller went away or is too slow; there is nobody to tell.
      }
      drop(*caller, socket);
    });
    if (reader.ok()) {
      readers.push_back(std::move(*reader));
      return;
    }
    LOG_WARNING("localnode", "log server: {}", reader.error().to_string());
    drop(*caller, socket);
  }

  void drop(Connection& caller, int socket) {
    const std::lock_guard lock(mutex);
    sockets.erase(socket);
    ErrorCode ignored;
    caller.socket().close(ignored);
  }

  void serve(Connection& caller, std::stop_token stop) {
    http::request<http::empty_body> incoming;
    caller.read(incoming);
    const auto request = parse_request(std::string(incoming.target()));
    if (!request.ok()) return answer_error(caller, request.error());
    const auto log = node.log(request->ns, request->pod, request->container);
    if (!log.ok()) return answer_error(caller, log.error());
    if (request->previous) {
      return answer_error(
          caller, http::status::bad_request,
          fmt::format("previous terminated container \"{}\" in pod \"{}\" not found; "
                      "no container is started again here",
                      request->container, request->pod));
    }
    send_log(caller, *request, **log, stop);
  }

  void answer_error(Connection& caller, const Error& error) {
    const bool is_missing = error.code() == Code::kNotFound;
    answer_error(caller, is_missing ? http::status::not_found : http::status::bad_request,
                 error.what());
  }

  void answer_error(Connection& caller, http::status status, const std::string& text) {
    http::response<http::string_body> response(status, 11);
    response.set(http::field::content_type, "text/plain");
    response.body() = text;
    response.prepare_payload();
    caller.write(response);
  }

  void send_log(Connection& caller, const Request& request, ContainerLog& log,
                std::stop_token stop) {
    http::response<http::empty_body> response(http::status::ok, 11);
    response.set(http::field::content_type, "text/plain");
    response.chunked(true);
    caller.write_head(response);
    auto from = request.since_time;
    if (request.since_seconds >= 0)
      from = executor.clock().wall() - std::chrono::seconds(request.since_seconds);
    const std::string since = from ? to_rfc3339_micro(*from) : "";
    std::uint64_t offset = request.tail >= 0 ? log.tail(static_cast<std::size_t>(request.tail)) : 0;
    const std::uint64_t end = log.size();
    std::uint64_t left = request.limit_bytes;
    while (left > 0 && !stop.stop_requested() && !stopping && !caller.has_left()) {
      if (!request.follow && offset >= end) break;
      auto text = log.read(offset, kChunk, executor.now() + 500ms);
      if (!text) break;
      std::string lines = shape(*text, request, since);
      if (lines.size() > left) lines.resize(left);
      left -= lines.size();
      if (!lines.empty()) caller.write_raw(http::make_chunk(asio::buffer(lines)));
    }
    caller.write_raw(http::make_chunk_last());
  }
};

LogServer::LogServer(Executor& executor, const NodeAgent& node, Duration limit)
    : impl_(std::make_unique<Impl>(executor, node, limit)) {}

LogServer::~LogServer() {
  impl_->stopping = true;
  boost::system::error_code ignored;
  if (impl_->acceptor.is_open()) ::shutdown(impl_->acceptor.native_handle(), SHUT_RDWR);
  impl_->accept_task = Task();
  impl_->acceptor.close(ignored);
  {
    const std::lock_guard lock(impl_->mutex);
    for (const int socket : impl_->sockets) ::shutdown(socket, SHUT_RDWR);
  }
  impl_->readers.clear();
}

Result<int> LogServer::listen(const std::string& address, int port,
                              const std::string& client_authority) {
  const WallTime now = impl_->executor.clock().wall();
  TRY(const net::KeyPair authority,
      net::make_authority("rubato-localnode", now - 1h, now + kCertificateLife));
  net::CertificateRequest wanted;
  wanted.common_name = "rubato-localnode";
  wanted.ip_addresses = {address};
  wanted.not_before = now - 1h;
  wanted.not_after = now + kCertificateLife;
  TRY(const net::KeyPair pair, net::issue_certificate(authority, wanted));
  try {
    impl_->tls.use_certificate_chain(asio::buffer(pair.certificate));
    impl_->tls.use_private_key(asio::buffer(pair.private_key), asio::ssl::context::pem);
    const auto where = asio::ip::make_address(address);
    if (!client_authority.empty()) {
      impl_->tls.add_certificate_authority(asio::buffer(client_authority));
      impl_->tls.set_verify_mode(asio::ssl::verify_peer | asio::ssl::verify_fail_if_no_peer_cert);
    } else if (!where.is_loopback()) {
      return Error(Code::kInvalid,
                   "logs are served without a client authority on loopback only; give --client-ca");
    }
    const asio::ip::tcp::endpoint at(where, static_cast<unsigned short>(port));
    impl_->acceptor.open(at.protocol());
    ::fcntl(impl_->acceptor.native_handle(), F_SETFD, FD_CLOEXEC);
    impl_->acceptor.set_option(asio::socket_base::reuse_address(true));
    impl_->acceptor.bind(at);
    impl_->acceptor.listen();
    return static_cast<int>(impl_->acceptor.local_endpoint().port());
  } catch (const boost::system::system_error& error) {
    return Error(Code::kUnavailable, "serving logs at " + address + ": " + error.what());
  }
}

void LogServer::start() {
  impl_->accept_task =
      impl_->executor.spawn("log-server", [this](std::stop_token stop) { impl_->accept(stop); });
}

}  // namespace rubato::localnode
