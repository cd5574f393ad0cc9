// Private to common/net: TlsConfig to OpenSSL.
#pragma once

#include "common/net/channel.h"

#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include <boost/asio/ssl.hpp>

namespace rubato::net {

using SslContext = boost::asio::ssl::context;
enum class TlsRole { kServer, kClient };
constexpr auto kAcceptRetry = 100ms;  // of listeners, after EMFILE and the like

// TLS 1.3 only. kInvalid when a PEM text cannot be read, a dialer has no authority, or a listener
// has no certificate.
Result<std::shared_ptr<SslContext>> make_context(const TlsConfig& config, TlsRole role);

// The contexts of the last few configurations that were dialed with. To read keys and certificates
// from their texts takes longer than a handshake, and who dials mostly does so with the same ones.
// Any thread.
class ClientContexts {
 public:
  Result<std::shared_ptr<SslContext>> context_of(const TlsConfig& config);

 private:
  std::mutex mutex_;
  std::deque<std::pair<TlsConfig, std::shared_ptr<SslContext>>> kept_;  // the newest first
};

// Demands `name` (DNS or IP) among the peer's alternative names. Before the handshake.
Status demand_peer_name(SSL* ssl, const std::string& name, TlsRole role);

// The first DNS name in the certificate that the peer has shown and we have verified; empty: none.
std::string certified_name(SSL* ssl);

// What OpenSSL says of its last call in this thread, or errno's text.
std::string tls_problem(int ssl_error);

// What a failed handshake means: kDenied when the peer's certificate was refused by us.
Error handshake_error(SSL* ssl, const std::string& problem);

}  // namespace rubato::net
