#include "tools/localnode/log_server.h"

#include "common/log.h"
#include "common/net/certificates.h"

#include <atomic>
#include <list>
#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <sys/socket.h>

namespace rubato::localnode {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using Stream = asio::ssl::stream<asio::ip::tcp::socket>;

namespace {

constexpr auto kCertificateLife = std::chrono::hours(24 * 365);
constexpr int kRequestLimitSeconds = 10;  // a slow or silent caller is dropped
constexpr std::size_t kChunk = 64u << 10;
constexpr std::size_t kTimeLength = 27;  // "2026-11-21T08:00:00.000000Z"

struct Request {
  std::string ns, pod, container;
  bool follow = false;
  bool timestamps = false;
  std::int64_t tail = -1;
  std::int64_t since_seconds = -1;
  std::string since_time;
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
    if (name == "tailLines") request.tail = number(value);
    if (name == "sinceSeconds") request.since_seconds = number(value);
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

}  // namespace

struct LogServer::Impl {
  Executor& executor;
  const NodeAgent& node;
  asio::io_context io;
  asio::ssl::context tls{asio::ssl::context::tls_server};
  asio::ip::tcp::acceptor acceptor{io};
  std::list<Task> readers;
  Task accept_task;
  std::atomic<bool> stopping{false};

  Impl(Executor& e, const NodeAgent& n) : executor(e), node(n) {}

  void accept(std::stop_token stop) {
    while (!stop.stop_requested() && !stopping) {
      boost::system::error_code error;
      asio::ip::tcp::socket socket = acceptor.accept(error);
      if (error) break;
      std::erase_if(readers, [](const Task& task) { return task.done(); });
      if (readers.size() >= kLogReadersMax) continue;  // closes it
      const timeval limit{kRequestLimitSeconds, 0};
      ::setsockopt(socket.native_handle(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
      ::setsockopt(socket.native_handle(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
      auto stream = std::make_shared<Stream>(std::move(socket), tls);
      readers.push_back(executor.spawn("log-reader", [this, stream](std::stop_token s) {
        try {
          stream->handshake(Stream::server);
          serve(*stream, s);
          stream->shutdown();
        } catch (const boost::system::system_error&) {
          // The caller went away; there is nobody to tell.
        }
      }));
    }
  }

  void serve(Stream& stream, std::stop_token stop) {
    boost::beast::flat_buffer buffer(16u << 10);
    http::request<http::empty_body> incoming;
    http::read(stream, buffer, incoming);
    const auto request = parse_request(std::string(incoming.target()));
    if (!request.ok()) return answer_error(stream, http::status::not_found, request.error().what());
    const auto log = node.log(request->ns, request->pod, request->container);
    if (!log.ok()) {
      return answer_error(stream,
                          log.error().code() == Code::kNotFound ? http::status::not_found
                                                                : http::status::bad_request,
                          log.error().what());
    }
    send_log(stream, *request, **log, stop);
  }

  void answer_error(Stream& stream, http::status status, const std::string& text) {
    http::response<http::string_body> response(status, 11);
    response.set(http::field::content_type, "text/plain");
    response.body() = text;
    response.prepare_payload();
    http::write(stream, response);
  }

  void send_log(Stream& stream, const Request& request, ContainerLog& log, std::stop_token stop) {
    http::response<http::empty_body> response(http::status::ok, 11);
    response.set(http::field::content_type, "text/plain");
    response.chunked(true);
    http::response_serializer<http::empty_body> serializer(response);
    http::write_header(stream, serializer);
    const std::string since = request.since_seconds < 0
                                  ? ""
                                  : to_rfc3339_micro(executor.clock().wall() -
                                                     std::chrono::seconds(request.since_seconds));
    std::uint64_t offset = request.tail >= 0 ? log.tail(static_cast<std::size_t>(request.tail)) : 0;
    const std::uint64_t end = log.size();
    std::uint64_t left = request.limit_bytes;
    while (left > 0 && !stop.stop_requested() && !stopping) {
      if (!request.follow && offset >= end) break;
      auto text = log.read(offset, kChunk, executor.now() + 500ms);
      if (!text) break;
      std::string lines = shape(*text, request, since);
      if (lines.size() > left) lines.resize(left);
      left -= lines.size();
      if (!lines.empty()) asio::write(stream, http::make_chunk(asio::buffer(lines)));
    }
    asio::write(stream, http::make_chunk_last());
  }
};

LogServer::LogServer(Executor& executor, const NodeAgent& node)
    : impl_(std::make_unique<Impl>(executor, node)) {}

LogServer::~LogServer() {
  impl_->stopping = true;
  boost::system::error_code ignored;
  if (impl_->acceptor.is_open()) ::shutdown(impl_->acceptor.native_handle(), SHUT_RDWR);
  impl_->accept_task = Task();
  impl_->acceptor.close(ignored);
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
