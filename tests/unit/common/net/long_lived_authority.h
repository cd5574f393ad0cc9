// An authority as others make them: without an end that matters.
#pragma once

#include "common/free_with.h"
#include "common/net/certificates.h"

#include <memory>
#include <string>

#include <openssl/pem.h>
#include <openssl/x509.h>

namespace rubato::net {

// From then until `end` ("99991231235959Z").
inline KeyPair long_lived_authority(WallTime from, const std::string& end) {
  using Bio = std::unique_ptr<BIO, FreeWith<BIO_free_all>>;
  KeyPair pair = make_authority("long-lived", from, from + 24h).value();
  const auto reader = [](const std::string& text) {
    return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
  };
  const std::unique_ptr<X509, FreeWith<X509_free>> certificate(
      PEM_read_bio_X509(reader(pair.certificate).get(), nullptr, nullptr, nullptr));
  const std::unique_ptr<EVP_PKEY, FreeWith<EVP_PKEY_free>> key(
      PEM_read_bio_PrivateKey(reader(pair.private_key).get(), nullptr, nullptr, nullptr));
  CHECK_EQ(ASN1_TIME_set_string(X509_getm_notAfter(certificate.get()), end.c_str()), 1);
  CHECK(X509_sign(certificate.get(), key.get(), EVP_sha256()) != 0);
  const Bio out(BIO_new(BIO_s_mem()));
  CHECK_EQ(PEM_write_bio_X509(out.get(), certificate.get()), 1);
  char* bytes = nullptr;
  const long size = BIO_get_mem_data(out.get(), &bytes);
  pair.certificate.assign(bytes, static_cast<std::size_t>(size));
  return pair;
}

}  // namespace rubato::net
