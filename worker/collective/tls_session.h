// Private to worker/collective: the OpenSSL connection behind a Link, and two small helpers.
#pragma once

#include "common/clock.h"

#include <string>

#include <openssl/ssl.h>

namespace rubato::worker {

struct TlsSession {
  explicit TlsSession(SSL* connection) : ssl(connection) {}
  ~TlsSession() { SSL_free(ssl); }
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;
  SSL* ssl;
};

// Milliseconds until `deadline` for poll, rounded up; 0 when it has passed.
int poll_timeout_ms(MonoTime deadline);
// The oldest error of OpenSSL's queue of this thread, which is emptied.
std::string openssl_error();

}  // namespace rubato::worker
