#include "common/net/tls_context.h"

#include "common/free_with.h"
#include "common/net/tls_limits.h"
#include "common/net/x509_name.h"

#include <algorithm>
#include <cerrno>
#include <system_error>

#include <openssl/err.h>
#include <openssl/x509v3.h>

namespace rubato::net {
namespace {

namespace asio = boost::asio;

// A process dials with one identity, and for a moment with two when its certificate is renewed; a
// test or a benchmark plays several.
constexpr std::size_t kContextsKept = 16;

Error bad_pem(const char* what) { return {Code::kInvalid, std::string("TLS: bad ") + what}; }

Status load(SslContext& context, const TlsConfig& config) {
  boost::system::error_code code;
  if (!config.certificate.empty()) {
    context.use_certificate_chain(asio::buffer(config.certificate), code);
    if (code) return bad_pem("certificate");
    context.use_private_key(asio::buffer(config.private_key), SslContext::pem, code);
    if (code || SSL_CTX_check_private_key(context.native_handle()) != 1) {
      return bad_pem("private key");
    }
  }
  if (!config.authority.empty()) {
    context.add_certificate_authority(asio::buffer(config.authority), code);
    if (code) return bad_pem("authority");
    // Whom we are told to trust need not be a root: cert-manager may have it from another.
    X509_STORE_set_flags(SSL_CTX_get_cert_store(context.native_handle()),
                         X509_V_FLAG_PARTIAL_CHAIN);
  }
  return ok();
}

}  // namespace

Result<std::shared_ptr<SslContext>> make_context(const TlsConfig& config, TlsRole role) {
  if (role == TlsRole::kClient && config.authority.empty()) {
    return Error(Code::kInvalid, "TLS: a dial needs an authority to verify the peer with");
  }
  if (role == TlsRole::kServer && config.certificate.empty()) {
    return Error(Code::kInvalid, "TLS: a listener needs a certificate");
  }
  if (config.require_peer_certificate && config.authority.empty()) {
    return Error(Code::kInvalid, "TLS: peer certificates are required but no authority is given");
  }
  const auto context = std::make_shared<SslContext>(SslContext::tls);
  SSL_CTX* raw = context->native_handle();
  CHECK(SSL_CTX_set_min_proto_version(raw, TLS1_3_VERSION) == 1);
  limit_peers(raw);
  // An idle connection holds no 32 KiB. What we show is what we were given: by itself OpenSSL would
  // look for the authorities of our own certificate again at each handshake.
  SSL_CTX_set_mode(raw, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_NO_AUTO_CHAIN);
  SSL_CTX_set_read_ahead(raw, 1);   // a record is one read of the socket, not two
  SSL_CTX_set_num_tickets(raw, 0);  // no resumption: each connection verifies anew
  SSL_CTX_set_session_cache_mode(raw, SSL_SESS_CACHE_OFF);
  TRY_OK(load(*context, config));
  boost::system::error_code code;
  auto mode = asio::ssl::verify_none;
  if (!config.authority.empty()) mode = asio::ssl::verify_peer;
  if (config.require_peer_certificate) mode |= asio::ssl::verify_fail_if_no_peer_cert;
  context->set_verify_mode(mode, code);
  return context;
}

Result<std::shared_ptr<SslContext>> ClientContexts::context_of(const TlsConfig& config) {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(kept_.begin(), kept_.end(), [&](const auto& kept) {
    const TlsConfig& with = kept.first;  // whom it demands is said to each connection
    return with.certificate == config.certificate && with.private_key == config.private_key &&
           with.authority == config.authority;
  });
  if (found != kept_.end()) return found->second;
  TRY(auto context, make_context(config, TlsRole::kClient));
  if (kept_.size() == kContextsKept) kept_.pop_back();
  kept_.emplace_front(config, context);
  return context;
}

Status demand_peer_name(SSL* ssl, const std::string& name, TlsRole role) {
  X509_VERIFY_PARAM* param = SSL_get0_param(ssl);
  if (is_address(name)) {
    if (X509_VERIFY_PARAM_set1_ip_asc(param, name.c_str()) == 1) return ok();
    return Error(Code::kInvalid, "TLS: bad peer address " + name);
  }
  X509_VERIFY_PARAM_set_hostflags(
      param, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS | X509_CHECK_FLAG_NEVER_CHECK_SUBJECT);
  if (X509_VERIFY_PARAM_set1_host(param, name.data(), name.size()) != 1) {
    return Error(Code::kInvalid, "TLS: bad peer name " + name);
  }
  if (role == TlsRole::kClient && SSL_set_tlsext_host_name(ssl, name.c_str()) != 1) {
    return Error(Code::kInvalid, "TLS: bad server name " + name);
  }
  return ok();
}

std::string certified_name(SSL* ssl) {
  if (SSL_get_verify_result(ssl) != X509_V_OK) return "";
  const std::unique_ptr<X509, FreeWith<X509_free>> shown(SSL_get1_peer_certificate(ssl));
  return shown ? first_dns_name(shown.get()) : "";
}

std::string tls_problem(int ssl_error) {
  if (ssl_error == SSL_ERROR_ZERO_RETURN) return "the peer closed";
  const unsigned long code = ERR_peek_last_error();
  // A peer that dies, or says farewell by closing its half, sends no alert.
  if (ERR_GET_REASON(code) == SSL_R_UNEXPECTED_EOF_WHILE_READING) return "the peer closed";
  if (ssl_error == SSL_ERROR_SYSCALL)
    return errno == 0 ? "the peer closed" : std::generic_category().message(errno);
  const char* reason = ERR_reason_error_string(code);
  return reason != nullptr ? reason : "TLS error " + std::to_string(ssl_error);
}

Error handshake_error(SSL* ssl, const std::string& problem) {
  const long verdict = SSL_get_verify_result(ssl);
  if (verdict != X509_V_OK) {
    return {Code::kDenied, std::string("TLS: peer certificate refused: ") +
                               X509_verify_cert_error_string(verdict)};
  }
  return {Code::kUnavailable, "TLS handshake: " + problem};
}

}  // namespace rubato::net
