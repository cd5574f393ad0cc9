// What a peer may have OpenSSL do for it, whoever it is. OpenSSL's own limits let one peer keep a
// thread from all others that the thread serves:
//   - the first message of a handshake proves nothing, and its key exchange costs 140 ms with
//     ffdhe8192, which OpenSSL offers by itself; 0.6 ms with ours;
//   - a peer may show 100 KiB of certificates, in a chain of 100;
//   - a read does not return while key updates (RFC 8446, 4.6.3) or session tickets come, of which
//     there may be any number.
// Empty records and warnings OpenSSL bounds itself, and TLS 1.3 has no renegotiation.
#pragma once

#include <cstddef>

struct ssl_st;      // OpenSSL's SSL
struct ssl_ctx_st;  // and SSL_CTX

namespace rubato::net {

constexpr std::size_t kPeerChainBytes = 32u << 10;
constexpr int kPeerChainMost = 8;  // certificates between the peer's and ours
// Of one connection. A handshake has seven at most, and no peer of ours sends others after it.
constexpr unsigned kHandshakeMessagesMost = 32;

// For all connections of the context. Before the first.
void limit_peers(ssl_ctx_st* context);
// The peer has sent more than kHandshakeMessagesMost: nothing more can be read from it.
bool is_over_limit(const ssl_st* connection);

}  // namespace rubato::net
