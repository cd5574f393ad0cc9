#include "apiserver/front/wire_server.h"

#include "apiserver/front/session.h"
#include "common/log.h"

#include <thread>

namespace rubato::apiserver {
namespace {

using asio::ip::tcp;

asio::const_buffer bytes(const std::string& text) { return asio::buffer(text); }

Status load_pair(asio::ssl::context& tls, const std::string& certificate, const std::string& key) {
  try {
    tls.use_certificate_chain(bytes(certificate));
    tls.use_private_key(bytes(key), asio::ssl::context::pem);
  } catch (const std::exception& error) {
    return Error(Code::kInvalid, std::string("certificate: ") + error.what());
  }
  return ok();
}

}  // namespace

struct WireServer::Impl {
  Shared shared;
  tcp::acceptor acceptor{shared.context};
  net::Endpoint local;
  std::thread thread;

  asio::awaitable<void> accept_loop() {
    asio::steady_timer pause(shared.context);
    while (acceptor.is_open()) {
      ErrorCode error;
      tcp::socket socket(shared.context);
      co_await acceptor.async_accept(socket, asio::redirect_error(asio::use_awaitable, error));
      if (error == asio::error::operation_aborted) co_return;
      if (error) {  // out of descriptors: let others finish
        pause.expires_after(std::chrono::milliseconds(50));
        co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, error));
        continue;
      }
      if (shared.sessions.size() >= kConnectionsMax) {
        LOG_WARNING("apiserver", "{} connections: one more is refused", kConnectionsMax);
        continue;
      }
      std::make_shared<Session>(shared, std::move(socket))->start();
    }
  }

  Status listen(const net::Endpoint& at) {
    ErrorCode error;
    const auto address = asio::ip::make_address(at.host, error);
    if (error) return Error(Code::kInvalid, "not an IP address: " + at.host);
    const tcp::endpoint endpoint(address, at.port);
    acceptor.open(endpoint.protocol(), error);
    if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor.bind(endpoint, error);
    if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
    if (error)
      return Error(Code::kUnavailable, "listening on " + to_string(at) + ": " + error.message());
    local = {at.host, acceptor.local_endpoint().port()};
    return ok();
  }

  void stop() {
    asio::post(shared.context, [this] {
      ErrorCode ignored;
      acceptor.close(ignored);
      for (Session* session : std::set<Session*>(shared.sessions)) session->close();
    });
    // Coroutines end once their sockets are closed; then run() returns.
    if (thread.joinable()) thread.join();
  }
};

WireServer::WireServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

WireServer::~WireServer() { impl_->stop(); }

net::Endpoint WireServer::local() const { return impl_->local; }

Result<std::unique_ptr<WireServer>> WireServer::start(const WireConfig& config, Router& router) {
  auto impl = std::make_unique<Impl>();
  impl->shared.router = &router;
  TRY_OK(load_pair(impl->shared.server_tls, config.certificate, config.private_key));
  SSL_CTX_set_min_proto_version(impl->shared.server_tls.native_handle(), TLS1_2_VERSION);
  if (!config.agent_certificate.empty())
    TRY_OK(load_pair(impl->shared.agent_tls, config.agent_certificate, config.agent_private_key));
  if (!config.agent_authority.empty()) {
    ErrorCode error;
    impl->shared.agent_tls.add_certificate_authority(bytes(config.agent_authority), error);
    if (error) return Error(Code::kInvalid, "authority of agents: " + error.message());
    impl->shared.agent_tls.set_verify_mode(asio::ssl::verify_peer);
  }
  TRY_OK(impl->listen(config.listen));
  Impl* raw = impl.get();
  asio::co_spawn(raw->shared.context, [raw] { return raw->accept_loop(); }, asio::detached);
  raw->thread = std::thread([raw] { raw->shared.context.run(); });
  return std::unique_ptr<WireServer>(new WireServer(std::move(impl)));
}

}  // namespace rubato::apiserver
