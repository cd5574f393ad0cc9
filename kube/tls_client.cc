#include "kube/tls_client.h"

#include "common/free_with.h"
#include "kube/rest_url.h"

#include <memory>
#include <utility>

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

namespace rubato::kube {
namespace {

using Bio = std::unique_ptr<BIO, FreeWith<BIO_free_all>>;
using Certificate = std::unique_ptr<X509, FreeWith<X509_free>>;
using PrivateKey = std::unique_ptr<EVP_PKEY, FreeWith<EVP_PKEY_free>>;
using TrustStore = std::unique_ptr<X509_STORE, FreeWith<X509_STORE_free>>;

Error failed(const char* what) {
  char text[256] = "no reason given";
  if (const auto code = ERR_get_error(); code != 0) ERR_error_string_n(code, text, sizeof text);
  ERR_clear_error();
  return Error(Code::kInvalid, std::string(what) + ": " + text);
}

Bio reader(const std::string& pem) {
  return Bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

// OpenSSL would ask at the terminal, from a thread of a library, for each connection.
int no_password(char*, int, int, void*) { return 0; }

Status trust(SSL_CTX* context, const std::string& pem) {
  TrustStore store(X509_STORE_new());
  const Bio bio = reader(pem);
  int count = 0;
  for (;; ++count) {
    const Certificate certificate(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
    if (!certificate) break;
    if (X509_STORE_add_cert(store.get(), certificate.get()) != 1)
      return failed("certificate authority");
  }
  if (count == 0) return failed("certificate authority");
  ERR_clear_error();  // the end of the text is an error to the reader
  SSL_CTX_set_cert_store(context, store.release());
  return ok();
}

Status present(SSL_CTX* context, const Credential& credential) {
  const Bio bio = reader(credential.certificate);
  const Certificate leaf(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
  if (!leaf || SSL_CTX_use_certificate(context, leaf.get()) != 1)
    return failed("client certificate");
  for (;;) {
    Certificate next(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
    if (!next) break;
    if (SSL_CTX_add_extra_chain_cert(context, next.get()) != 1)
      return failed("client certificate chain");
    (void)next.release();  // NOLINT(bugprone-unused-return-value): the context owns it now
  }
  ERR_clear_error();
  const Bio key_bio = reader(credential.private_key);
  const PrivateKey key(PEM_read_bio_PrivateKey(key_bio.get(), nullptr, no_password, nullptr));
  if (!key) return failed("client key, which has to be PEM without a password");
  if (SSL_CTX_use_PrivateKey(context, key.get()) != 1) return failed("client key");
  if (SSL_CTX_check_private_key(context) != 1)
    return failed("client key and certificate do not belong together");
  return ok();
}

// What OpenSSL says of the server's certificate, as far as it has come.
std::string refusal_of(const SSL* ssl) {
  const long verdict = SSL_get_verify_result(ssl);
  if (verdict == X509_V_OK) return "";
  return X509_verify_cert_error_string(verdict);
}

using RefusalPointer = std::shared_ptr<TlsRefusal>;

int refusal_index() {
  static const int kIndex = SSL_CTX_get_ex_new_index(
      0, nullptr, nullptr, nullptr, [](void*, void* kept, CRYPTO_EX_DATA*, int, long, void*) {
        delete static_cast<RefusalPointer*>(kept);  // NOLINT: OpenSSL owns raw pointers
      });
  return kIndex;
}

// Called with each alert that goes out: what we tell a server that we do not trust.
void on_alert(const SSL* ssl, int where, int alert) {
  if ((where & SSL_CB_WRITE_ALERT) != SSL_CB_WRITE_ALERT || (alert >> 8) != SSL3_AL_FATAL) return;
  auto* refusal =
      static_cast<RefusalPointer*>(SSL_CTX_get_ex_data(SSL_get_SSL_CTX(ssl), refusal_index()));
  if (refusal == nullptr) return;
  if (std::string why = refusal_of(ssl); !why.empty()) (*refusal)->note(std::move(why));
}

}  // namespace

void TlsRefusal::note(std::string why) {
  std::lock_guard lock(mutex_);
  why_ = std::move(why);
}

std::string TlsRefusal::take() {
  std::lock_guard lock(mutex_);
  if (why_.empty()) return "";
  return ": the server's certificate is refused: " + std::exchange(why_, "");
}

void note_refusals(SSL_CTX* context, std::shared_ptr<TlsRefusal> refusal) {
  auto kept = std::make_unique<RefusalPointer>(std::move(refusal));
  if (SSL_CTX_set_ex_data(context, refusal_index(), kept.get()) != 1) return;
  (void)kept.release();  // NOLINT(bugprone-unused-return-value): freed with the context
  SSL_CTX_set_info_callback(context, on_alert);
}

Status configure_tls(SSL_CTX* context, const Credential& credential, bool verify) {
  ERR_clear_error();
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_verify(context, verify ? SSL_VERIFY_PEER : SSL_VERIFY_NONE, nullptr);
  if (!credential.authority.empty()) {
    TRY_OK(trust(context, credential.authority));
  } else if (SSL_CTX_set_default_verify_paths(context) != 1) {
    return failed("the system's certificate authorities");
  }
  if (!credential.certificate.empty()) TRY_OK(present(context, credential));
  return ok();
}

Status expect_server(SSL* ssl, const std::string& name) {
  if (is_ip_address(name)) {
    if (X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), name.c_str()) != 1)
      return failed("server address");
    return ok();
  }
  SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
  if (SSL_set1_host(ssl, name.c_str()) != 1 || SSL_set_tlsext_host_name(ssl, name.c_str()) != 1)
    return failed("server name");
  return ok();
}

Status expect_server(SSL_CTX* context, const std::string& name) {
  X509_VERIFY_PARAM* expected = SSL_CTX_get0_param(context);
  X509_VERIFY_PARAM_set_hostflags(expected, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
  const int set = is_ip_address(name)
                      ? X509_VERIFY_PARAM_set1_ip_asc(expected, name.c_str())
                      : X509_VERIFY_PARAM_set1_host(expected, name.c_str(), name.size());
  if (set != 1) return failed("server name");
  return ok();
}

}  // namespace rubato::kube
