// A client's side of TLS on OpenSSL, shared by the two transports. For .cc files only.
#pragma once

#include "kube/credentials.h"

#include <memory>
#include <mutex>
#include <string>

#include <openssl/ssl.h>

namespace rubato::kube {

// TLS 1.2 or later; trusts the credential's authority and nothing else (the system's when it has
// none); presents the client certificate when there is one. `verify` false: trusts anybody.
Status configure_tls(SSL_CTX* context, const Credential& credential, bool verify);

// Demands that the server's certificate carries `name` (DNS or IP), and asks for it by SNI when it
// is a DNS name. Before the handshake.
Status expect_server(SSL* ssl, const std::string& name);
// The same for all connections of a context, without SNI.
Status expect_server(SSL_CTX* context, const std::string& name);

// Why the last server was not trusted, for people. Thread-safe.
class TlsRefusal {
 public:
  void note(std::string why);
  // ": its certificate is refused: …", or "" when nothing was noted since the last call.
  std::string take();

 private:
  std::mutex mutex_;
  std::string why_;
};
// From now on handshakes under `context` note their refusals. Keeps `refusal` alive.
void note_refusals(SSL_CTX* context, std::shared_ptr<TlsRefusal> refusal);

}  // namespace rubato::kube
