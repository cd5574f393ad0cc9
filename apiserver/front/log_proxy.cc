// Logs: the request goes on to the agent of the pod's node, its answer comes back as it arrives.
#include "apiserver/front/session.h"

#include <limits>

namespace rubato::apiserver {
namespace {

constexpr auto kAgentConnectLimit = std::chrono::seconds(10);
constexpr std::size_t kLogPiece = 32 * 1024;
constexpr std::size_t kErrorText = 4096;

Response agent_failed(const LogReply& log, const std::string& why) {
  return error_response(kube::api_error::internal("Get \"https://" + log.host + ":" + log.port +
                                                  log.target + "\": " + why));
}

// Lets the session close the agent's connection for as long as it lives.
class AgentLink {
 public:
  AgentLink(beast::tcp_stream*& slot, beast::tcp_stream& agent) : slot_(slot) { slot_ = &agent; }
  ~AgentLink() { slot_ = nullptr; }
  AgentLink(const AgentLink&) = delete;
  AgentLink& operator=(const AgentLink&) = delete;

 private:
  beast::tcp_stream*& slot_;
};

// An error of the agent as the real API server passes it on.
Response agent_refused(unsigned status, std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  if (status == 400) return error_response(kube::api_error::bad_request(text));
  if (status == 404) return error_response({404, "NotFound", text, json::Value::object()});
  return error_response(kube::api_error::internal(text));
}

}  // namespace

asio::awaitable<bool> Session::proxy_log(LogReply reply) {
  ErrorCode error;
  TlsStream agent(shared_.context, shared_.agent_tls);
  auto& tcp = beast::get_lowest_layer(agent);
  const AgentLink link(agent_, tcp);
  const auto address = asio::ip::make_address(reply.host, error);
  if (error) {
    Response refusal = agent_failed(reply, "not an IP address");
    co_return co_await send(std::move(refusal), false, true);
  }
  const asio::ip::tcp::endpoint endpoint(address,
                                         static_cast<std::uint16_t>(std::stoul(reply.port)));
  tcp.expires_after(kAgentConnectLimit);
  co_await tcp.async_connect(endpoint, asio::redirect_error(kToken, error));
  if (!error)
    co_await agent.async_handshake(asio::ssl::stream_base::client,
                                   asio::redirect_error(kToken, error));
  http::request<http::empty_body> request(http::verb::get, reply.target, 11);
  request.set(http::field::host, reply.host);
  request.keep_alive(false);
  if (!error) co_await http::async_write(agent, request, asio::redirect_error(kToken, error));
  beast::flat_buffer buffer;
  http::response_parser<http::buffer_body> parser;
  // Without a limit Beast 1.74 takes every stated length, as errors have one, for too large.
  parser.body_limit(std::numeric_limits<std::uint64_t>::max());
  if (!error)
    co_await http::async_read_header(agent, buffer, parser, asio::redirect_error(kToken, error));
  if (error) {
    Response refusal = agent_failed(reply, error.message());
    co_return co_await send(std::move(refusal), false, true);
  }
  const unsigned status = parser.get().result_int();
  std::string failure;
  if (status / 100 == 2) {
    if (!co_await begin_chunks(200, "text/plain")) co_return false;
    notice_hang_up();
  }
  tcp.expires_never();  // followed logs are silent for as long as they like
  std::string piece(kLogPiece, '\0');
  while (!parser.is_done() && !gone_) {
    parser.get().body().data = piece.data();
    parser.get().body().size = piece.size();
    parser.get().body().more = true;
    co_await http::async_read_some(agent, buffer, parser, asio::redirect_error(kToken, error));
    if (error && error != http::error::need_buffer) break;
    std::string got = piece.substr(0, piece.size() - parser.get().body().size);
    if (status / 100 == 2) {
      if (!co_await send_chunk(std::move(got))) co_return false;
    } else if (failure.size() < kErrorText) {
      failure += got;
    }
  }
  if (status / 100 != 2) {
    Response refusal = agent_refused(status, std::move(failure));
    co_return co_await send(std::move(refusal), false, true);
  }
  if (!gone_) co_await end_chunks();
  co_return false;
}

}  // namespace rubato::apiserver
