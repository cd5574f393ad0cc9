// The production Network: TLS 1.3 over TCP with Boost.Asio, one I/O thread per network.
// TCP_NODELAY, keep-alive and TCP_USER_TIMEOUT are set; a handshake has kHandshakeLimit. Peers are
// verified as TlsConfig says; a dial without `authority` is refused (kInvalid). A peer certificate
// that we refuse is kDenied from dial(). When the other side refuses ours, TLS 1.3 tells us only
// after dial() has returned: the first receive() fails.
//
// A dial by name asks DNS and waits kLookupWait for it; an answer that comes later is kept for the
// next dial, so that a DNS that hangs costs a dialer no more than that, and the network's end
// nothing. Of several addresses each is tried for a share of the dial's time.
//
// close() sends what is queued and says farewell within a second, in the background. Sockets are
// not inherited by child processes. SIGPIPE is ignored in the whole process from then on. Channels
// may outlive the network; they are closed then.
#pragma once

#include "common/executor.h"
#include "common/net/channel.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace rubato::net {

constexpr auto kHandshakeLimit = 5s;
constexpr auto kLookupWait = 250ms;

// Finds the addresses of a name, in digits. Calls `done` once, from any thread, now or later.
using LookupDone = std::function<void(Result<std::vector<std::string>> addresses)>;
using Lookup = std::function<void(const std::string& name, const LookupDone& done)>;

class TlsNetwork : public Network {
 public:
  explicit TlsNetwork(Executor& executor, Lookup lookup = {});  // none: the system's
  ~TlsNetwork() override;
  Result<std::unique_ptr<Listener>> listen(const Endpoint& at, const TlsConfig& tls,
                                           const ListenLimits& limits) override;
  Result<std::unique_ptr<Channel>> dial(const Endpoint& to, const TlsConfig& tls,
                                        MonoTime deadline) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rubato::net
