// Certificates for Rubato's own trust domains: a certificate authority per installation, a
// certificate per job. ECDSA P-256, SHA-256. All texts are PEM. Wraps OpenSSL.
#pragma once

#include "common/clock.h"
#include "common/result.h"

#include <string>
#include <vector>

namespace rubato::net {

struct KeyPair {
  std::string certificate;
  std::string private_key;
  bool operator==(const KeyPair&) const = default;
};

struct CertificateRequest {
  std::string common_name = {};
  std::vector<std::string> dns_names = {};
  std::vector<std::string> ip_addresses = {};
  WallTime not_before = {};
  WallTime not_after = {};
  bool server = true;
  bool client = true;
};

Result<KeyPair> make_authority(const std::string& common_name, WallTime not_before,
                               WallTime not_after);
Result<KeyPair> issue_certificate(const KeyPair& authority, const CertificateRequest& request);

// A certificate authority that somebody else made, as a Secret of type kubernetes.io/tls has it: of
// a chain, the first certificate is taken. kInvalid when a text is no PEM, the key is not the
// certificate's, or the certificate may not sign others.
Result<KeyPair> read_authority(const KeyPair& texts);

// The first DNS name of a certificate (PEM); empty: it has none, or cannot be read.
std::string certificate_name(const std::string& certificate);

struct Validity {
  WallTime not_before = {};
  WallTime not_after = {};
};
Result<Validity> certificate_validity(const std::string& certificate);

// HMAC-SHA-256, hex: a job's token is hmac(master key, job uid). SHA-256, hex.
std::string hmac_sha256_hex(std::string_view key, std::string_view message);
std::string sha256_hex(std::string_view bytes);
// Compares in constant time.
bool equal_secret(std::string_view a, std::string_view b);
// `bytes` random bytes from the operating system, hex.
std::string random_hex(std::size_t bytes);
std::string base64_encode(std::string_view bytes);
Result<std::string> base64_decode(std::string_view text);

}  // namespace rubato::net
