// The production Network: TLS 1.3 over TCP with Boost.Asio, one I/O thread per network.
// TCP_NODELAY, keep-alive and TCP_USER_TIMEOUT are set; a handshake has kHandshakeLimit. Peers are
// verified as TlsConfig says; a dial without `authority` is refused.
#pragma once

#include "common/executor.h"
#include "common/net/channel.h"

#include <memory>

namespace rubato::net {

constexpr auto kHandshakeLimit = 5s;
constexpr std::size_t kPendingHandshakes = 256;  // beyond: new connections wait in the backlog

class TlsNetwork : public Network {
 public:
  explicit TlsNetwork(Executor& executor);
  ~TlsNetwork() override;
  Result<std::unique_ptr<Listener>> listen(const Endpoint& at, const TlsConfig& tls) override;
  Result<std::unique_ptr<Channel>> dial(const Endpoint& to, const TlsConfig& tls,
                                        MonoTime deadline) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rubato::net
