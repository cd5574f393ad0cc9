#include "worker/collective/tls_link_network.h"

#include "worker/collective/sockets.h"
#include "worker/collective/tls.h"
#include "worker/collective/tls_link.h"
#include "worker/collective/tls_session.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include <poll.h>
#include <sys/socket.h>

namespace rubato::worker {

struct TlsLinkNetwork::Impl {
  std::unique_ptr<TlsIdentity> identity;
  Socket listener;
  std::uint16_t port = 0;
  std::stop_source closing;
  StopSignal closed{closing.get_token()};
};

namespace {
class TlsArrival : public Arrival {
 public:
  TlsArrival(Socket socket, const TlsIdentity& identity)
      : socket_(std::move(socket)), identity_(identity) {}
  Result<std::unique_ptr<Link>> secure(MonoTime deadline, std::stop_token stop) override {
    tune_socket(socket_.fd());
    return identity_.secure(socket_.release(), TlsIdentity::Side::kAccepts, deadline,
                            StopSignal(std::move(stop)));
  }
  std::string source() const override { return peer_host(socket_.fd()); }

 private:
  Socket socket_;
  const TlsIdentity& identity_;
};
}  // namespace

Result<std::unique_ptr<TlsLinkNetwork>> TlsLinkNetwork::open(const TlsLinkConfig& config) {
  // OpenSSL writes without MSG_NOSIGNAL: a peer that died must be an error, not our end.
  std::signal(SIGPIPE, SIG_IGN);
  auto impl = std::make_unique<Impl>();
  TRY(impl->identity, TlsIdentity::open(config.secret_dir, config.job_uid));
  TRY(impl->listener, listen_tcp(config.bind_host, config.port));
  TRY(impl->port, local_port(impl->listener.fd()));
  return std::unique_ptr<TlsLinkNetwork>(new TlsLinkNetwork(std::move(impl)));
}

TlsLinkNetwork::TlsLinkNetwork(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TlsLinkNetwork::~TlsLinkNetwork() = default;
std::uint16_t TlsLinkNetwork::port() const { return impl_->port; }
void TlsLinkNetwork::close() { impl_->closing.request_stop(); }

Result<std::unique_ptr<Arrival>> TlsLinkNetwork::accept(MonoTime deadline) {
  std::array<pollfd, 2> entries{pollfd{impl_->closed.fd(), POLLIN, 0},
                                pollfd{impl_->listener.fd(), POLLIN, 0}};
  ::poll(entries.data(), entries.size(), poll_timeout_ms(deadline));
  if (impl_->closed.is_stopped()) return Error(Code::kCancelled, "closed");
  Socket socket(::accept4(impl_->listener.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket.fd() >= 0) {
    return std::unique_ptr<Arrival>(
        std::make_unique<TlsArrival>(std::move(socket), *impl_->identity));
  }
  if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
    return Error(Code::kExhausted, std::string("accepting: ") + std::strerror(errno));
  return Error(Code::kTimeout, "nobody came");
}

Result<std::unique_ptr<Link>> TlsLinkNetwork::dial(const std::string& host, std::uint16_t port,
                                                   MonoTime deadline, std::stop_token stop) {
  const StopSignal cancel(std::move(stop));
  TRY(Socket socket, connect_tcp(host, port, deadline, cancel));
  return impl_->identity->secure(socket.release(), TlsIdentity::Side::kDials, deadline, cancel);
}

}  // namespace rubato::worker
