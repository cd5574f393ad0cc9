#include "common/net/tls_limits.h"

#include "common/check.h"

#include <memory>

#include <openssl/ssl.h>

namespace rubato::net {
namespace {

void free_count(void* /*connection*/, void* count, CRYPTO_EX_DATA* /*all*/, int /*index*/,
                long /*number*/, void* /*argument*/) {
  const std::unique_ptr<unsigned> owned(static_cast<unsigned*>(count));
}

// Where a connection has the number of handshake messages that came.
int count_index() {
  static const int index = SSL_get_ex_new_index(0, nullptr, nullptr, nullptr, free_count);
  return index;
}

// OpenSSL reads on by itself after such a message. That the peer has shut down ends that.
void count_message(int is_sent, int /*version*/, int type, const void* /*message*/,
                   std::size_t /*size*/, SSL* connection, void* /*argument*/) {
  if (is_sent != 0 || type != SSL3_RT_HANDSHAKE) return;
  auto* count = static_cast<unsigned*>(SSL_get_ex_data(connection, count_index()));
  if (count == nullptr) {
    auto made = std::make_unique<unsigned>(0);
    if (SSL_set_ex_data(connection, count_index(), made.get()) != 1) return;  // no memory
    count = made.release();
  }
  ++*count;
  if (is_over_limit(connection))
    SSL_set_shutdown(connection, SSL_get_shutdown(connection) | SSL_RECEIVED_SHUTDOWN);
}

}  // namespace

void limit_peers(SSL_CTX* context) {
  CHECK(SSL_CTX_set1_groups_list(context, "X25519:P-256") ==
        1);  // each side of TLS 1.3 knows P-256
  SSL_CTX_set_max_cert_list(context, static_cast<long>(kPeerChainBytes));
  SSL_CTX_set_verify_depth(context, kPeerChainMost);
  SSL_CTX_set_msg_callback(context, count_message);
}

bool is_over_limit(const SSL* connection) {
  const auto* count = static_cast<const unsigned*>(SSL_get_ex_data(connection, count_index()));
  return count != nullptr && *count > kHandshakeMessagesMost;
}

}  // namespace rubato::net
