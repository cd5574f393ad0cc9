#include "worker/collective/tls.h"

#include "common/log.h"
#include "common/net/tls_limits.h"
#include "worker/collective/tls_session.h"

#include <array>
#include <mutex>
#include <string>
#include <utility>

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

namespace rubato::worker {

namespace {
struct FreeContext {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
};
struct FreeCertificate {
  void operator()(X509* certificate) const { X509_free(certificate); }
};
using Context = std::unique_ptr<SSL_CTX, FreeContext>;
using Certificate = std::unique_ptr<X509, FreeCertificate>;

// AES-128 first: the cheapest suite of TLS 1.3 where the CPU has AES instructions.
constexpr auto kSuites =
    "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256";

constexpr std::size_t kReadBufferBytes = 128u << 10;  // per link

std::string common_name(X509* certificate) {
  std::array<char, 256> name{};
  X509_NAME_get_text_by_NID(X509_get_subject_name(certificate), NID_commonName, name.data(),
                            static_cast<int>(name.size()));
  return name.data();
}

// The leaf that is our own certificate is trusted for what it is; anything else must chain to the
// authority.
int verify(int chain_is_good, X509_STORE_CTX* store) {
  if (chain_is_good == 1) return 1;
  auto* ssl =
      static_cast<SSL*>(X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx()));
  X509* ours = SSL_get_certificate(ssl);
  X509* leaf = X509_STORE_CTX_get0_cert(store);
  return ours != nullptr && leaf != nullptr && X509_cmp(ours, leaf) == 0 ? 1 : 0;
}

// OpenSSL notes what a certificate's extensions say when it first verifies with it. Done here,
// once: several threads dial by one context, and a race detector does not see by what OpenSSL
// orders them.
void note_extensions(SSL_CTX* context) {
  constexpr int kNoPurpose = -1;
  X509_check_purpose(SSL_CTX_get0_certificate(context), kNoPurpose, 0);
  STACK_OF(X509_OBJECT)* trusted = X509_STORE_get0_objects(SSL_CTX_get_cert_store(context));
  for (int i = 0; i < sk_X509_OBJECT_num(trusted); ++i) {
    X509* authority = X509_OBJECT_get0_X509(sk_X509_OBJECT_value(trusted, i));
    if (authority != nullptr) X509_check_purpose(authority, kNoPurpose, 0);
  }
}

Result<Context> make_context(const SSL_METHOD* method, const std::string& dir) {
  Context context(SSL_CTX_new(method));
  CHECK(context != nullptr);
  SSL_CTX* raw = context.get();
  if (SSL_CTX_use_certificate_chain_file(raw, (dir + "/tls.crt").c_str()) != 1) {
    return Error(Code::kInvalid, dir + "/tls.crt: " + openssl_error());
  }
  if (SSL_CTX_use_PrivateKey_file(raw, (dir + "/tls.key").c_str(), SSL_FILETYPE_PEM) != 1) {
    return Error(Code::kInvalid, dir + "/tls.key: " + openssl_error());
  }
  if (SSL_CTX_load_verify_file(raw, (dir + "/ca.crt").c_str()) != 1) {
    return Error(Code::kInvalid, dir + "/ca.crt: " + openssl_error());
  }
  note_extensions(raw);
  SSL_CTX_set_min_proto_version(raw, TLS1_3_VERSION);
  net::limit_peers(raw);
  SSL_CTX_set_ciphersuites(raw, kSuites);
  SSL_CTX_set_verify(raw, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, verify);
  X509_VERIFY_PARAM_set_purpose(SSL_CTX_get0_param(raw), X509_PURPOSE_ANY);
  // ca.crt need not be a root: who keeps the authority for us may have it from another.
  X509_VERIFY_PARAM_set_flags(SSL_CTX_get0_param(raw), X509_V_FLAG_PARTIAL_CHAIN);
  // No resumption: a ring link never reads, and a ticket nobody reads would reset it at the end.
  SSL_CTX_set_session_cache_mode(raw, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(raw, 0);
  // Many records per read() of the socket: without it each record costs two system calls.
  SSL_CTX_set_read_ahead(raw, 1);
  SSL_CTX_set_default_read_buffer_len(raw, kReadBufferBytes);
  SSL_CTX_set_mode(raw, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  return context;
}

// Which files were read: a Secret's volume has others after it was renewed.
using FileMarks = std::array<std::pair<ino_t, std::pair<time_t, long>>, 3>;
FileMarks marks_of(const std::string& dir) {
  FileMarks marks;
  std::size_t i = 0;
  for (const char* name : {"/tls.crt", "/tls.key", "/ca.crt"}) {
    struct stat file{};
    if (::stat((dir + name).c_str(), &file) == 0)
      marks.at(i) = {file.st_ino, {file.st_mtim.tv_sec, file.st_mtim.tv_nsec}};
    ++i;
  }
  return marks;
}
}  // namespace

struct TlsIdentity::Impl {
  std::string dir;
  std::string job_uid;
  std::mutex mutex;
  FileMarks marks;
  Context dials;
  Context accepts;

  // Files that cannot be read, or that change while they are, are read again the next time.
  Status read() {
    const FileMarks seen = marks_of(dir);
    TRY(Context for_dials, make_context(TLS_client_method(), dir));
    TRY(Context for_accepts, make_context(TLS_server_method(), dir));
    dials = std::move(for_dials);
    accepts = std::move(for_accepts);
    marks = seen;
    return ok();
  }
  // It keeps the context that it was made by.
  SSL* make_session(Side side) {
    const std::lock_guard lock(mutex);
    if (marks_of(dir) != marks) {
      const Status renewed = read();
      if (renewed.ok()) {
        LOG_INFO("links", "the job's certificate was renewed");
      } else {
        LOG_WARNING("links", "keeps the certificate of before: {}", renewed.error().what());
      }
    }
    return SSL_new((side == Side::kDials ? dials : accepts).get());
  }
};

TlsIdentity::TlsIdentity(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TlsIdentity::~TlsIdentity() = default;

Result<std::unique_ptr<TlsIdentity>> TlsIdentity::open(const std::string& secret_dir,
                                                       const std::string& job_uid) {
  auto impl = std::make_unique<Impl>();
  impl->dir = secret_dir;
  impl->job_uid = job_uid;
  TRY_OK(impl->read());
  return std::unique_ptr<TlsIdentity>(new TlsIdentity(std::move(impl)));
}

namespace {
Status check_peer(SSL* ssl, const std::string& job_uid) {
  const Certificate peer(SSL_get1_peer_certificate(ssl));
  if (peer == nullptr) return Error(Code::kDenied, "peer presented no certificate");
  if (X509_cmp(peer.get(), SSL_get_certificate(ssl)) == 0) return ok();
  const std::string name = common_name(peer.get());
  if (name == job_uid) return ok();
  return Error(Code::kDenied, "peer's certificate is for \"" + name + "\", not for this job");
}

Status handshake(SSL* ssl, int fd, TlsIdentity::Side side, MonoTime deadline,
                 const StopSignal& cancel) {
  for (;;) {
    ERR_clear_error();
    const int done = side == TlsIdentity::Side::kDials ? SSL_connect(ssl) : SSL_accept(ssl);
    if (done == 1) return ok();
    const int why = SSL_get_error(ssl, done);
    if (why != SSL_ERROR_WANT_READ && why != SSL_ERROR_WANT_WRITE) {
      // A peer that ends, or has no place for us now, closes without a word; it may be there later.
      const bool closed = ERR_GET_REASON(ERR_peek_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING;
      const Code code = why == SSL_ERROR_SSL && !closed ? Code::kDenied : Code::kUnavailable;
      return Error(code, "TLS handshake: " + openssl_error());
    }
    const auto events = static_cast<short>(why == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT);
    std::array<pollfd, 2> entries{pollfd{fd, events, 0}, pollfd{cancel.fd(), POLLIN, 0}};
    const int ready = ::poll(entries.data(), entries.size(), poll_timeout_ms(deadline));
    if (cancel.is_stopped()) return Error(Code::kCancelled, "TLS handshake: cancelled");
    if (ready == 0) return Error(Code::kTimeout, "TLS handshake: deadline");
  }
}
}  // namespace

Result<std::unique_ptr<Link>> TlsIdentity::secure(int fd, Side side, MonoTime deadline,
                                                  const StopSignal& cancel) const {
  SSL* ssl = impl_->make_session(side);
  CHECK(ssl != nullptr);
  auto link = std::make_unique<TlsLink>(fd, std::make_unique<TlsSession>(ssl));
  SSL_set_fd(ssl, fd);
  TRY_OK(handshake(ssl, fd, side, deadline, cancel));
  TRY_OK(check_peer(ssl, impl_->job_uid));
  return std::unique_ptr<Link>(std::move(link));
}

}  // namespace rubato::worker
