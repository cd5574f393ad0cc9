#include "common/net/certificates.h"

#include "common/free_with.h"
#include "common/net/x509_name.h"

#include <array>
#include <memory>

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

namespace rubato::net {
namespace {

using Bio = std::unique_ptr<BIO, FreeWith<BIO_free_all>>;
using Key = std::unique_ptr<EVP_PKEY, FreeWith<EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, FreeWith<X509_free>>;
using Extension = std::unique_ptr<X509_EXTENSION, FreeWith<X509_EXTENSION_free>>;
using Names = std::unique_ptr<GENERAL_NAMES, FreeWith<GENERAL_NAMES_free>>;
using Name = std::unique_ptr<GENERAL_NAME, FreeWith<GENERAL_NAME_free>>;

constexpr int kSerialBytes = 16;  // RFC 5280: at most 20, at least 64 random bits
constexpr std::size_t kCommonNameMax = 64;

Error openssl_error(const std::string& what) {
  std::array<char, 256> text{};
  ERR_error_string_n(ERR_get_error(), text.data(), text.size());
  ERR_clear_error();
  return {Code::kInternal, what + ": " + text.data()};
}

Bio read_bio(const std::string& text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

std::string contents(BIO* bio) {
  char* bytes = nullptr;
  const long size = BIO_get_mem_data(bio, &bytes);
  return {bytes, static_cast<std::size_t>(size)};
}

Result<KeyPair> to_pem(X509* certificate, EVP_PKEY* key) {
  const Bio out(BIO_new(BIO_s_mem()));
  const Bio key_out(BIO_new(BIO_s_mem()));
  if (PEM_write_bio_X509(out.get(), certificate) != 1 ||
      PEM_write_bio_PrivateKey(key_out.get(), key, nullptr, nullptr, 0, nullptr, nullptr) != 1) {
    return openssl_error("writing PEM");
  }
  return KeyPair{contents(out.get()), contents(key_out.get())};
}

Status set_serial(X509* certificate) {
  std::array<unsigned char, kSerialBytes> bytes{};
  if (RAND_bytes(bytes.data(), kSerialBytes) != 1) return openssl_error("random serial");
  bytes[0] &= 0x7f;  // positive
  bytes[0] |= 0x40;  // and never short
  const std::unique_ptr<BIGNUM, FreeWith<BN_free>> number(
      BN_bin2bn(bytes.data(), kSerialBytes, nullptr));
  if (!number || !BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate))) {
    return openssl_error("serial");
  }
  return ok();
}

Status set_times(X509* certificate, WallTime not_before, WallTime not_after) {
  if (not_after <= not_before) return Error(Code::kInvalid, "not_after must follow not_before");
  const auto seconds = [](WallTime time) {
    return static_cast<time_t>(
        std::chrono::floor<std::chrono::seconds>(time).time_since_epoch().count());
  };
  if (!ASN1_TIME_set(X509_getm_notBefore(certificate), seconds(not_before)) ||
      !ASN1_TIME_set(X509_getm_notAfter(certificate), seconds(not_after))) {
    return openssl_error("validity");
  }
  return ok();
}

Status set_common_name(X509* certificate, const std::string& name) {
  if (name.empty() || name.size() > kCommonNameMax) {
    return Error(Code::kInvalid, "a common name has 1 to 64 bytes");
  }
  X509_NAME* subject = X509_get_subject_name(certificate);
  if (X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8,
                                 reinterpret_cast<const unsigned char*>(name.data()),
                                 static_cast<int>(name.size()), -1, 0) != 1) {
    return openssl_error("common name");
  }
  return ok();
}

Status add_extension(X509* certificate, X509* issuer, int nid, const char* text) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const Extension extension(X509V3_EXT_conf_nid(nullptr, &context, nid, text));
  if (!extension || X509_add_ext(certificate, extension.get(), -1) != 1) {
    return openssl_error(std::string("extension ") + OBJ_nid2sn(nid));
  }
  return ok();
}

// Built from parts, not from a text: a comma in a name must not add another name.
Status add_alternative_names(X509* certificate, const CertificateRequest& request) {
  if (request.dns_names.empty() && request.ip_addresses.empty()) return ok();
  const Names names(GENERAL_NAMES_new());
  const auto push = [&](int type, ASN1_STRING* value) {
    Name name(GENERAL_NAME_new());
    GENERAL_NAME_set0_value(name.get(), type, value);
    sk_GENERAL_NAME_push(names.get(), name.release());
  };
  for (const std::string& dns : request.dns_names) {
    if (dns.empty() || dns.find('\0') != std::string::npos) {
      return Error(Code::kInvalid, "bad DNS name in a certificate request");
    }
    ASN1_IA5STRING* value = ASN1_IA5STRING_new();
    ASN1_STRING_set(value, dns.data(), static_cast<int>(dns.size()));
    push(GEN_DNS, value);
  }
  for (const std::string& ip : request.ip_addresses) {
    ASN1_OCTET_STRING* value = a2i_IPADDRESS(ip.c_str());
    if (!value) return Error(Code::kInvalid, "not an IP address: \"" + ip + "\"");
    push(GEN_IPADD, value);
  }
  if (X509_add1_ext_i2d(certificate, NID_subject_alt_name, names.get(), 0, X509V3_ADD_DEFAULT) !=
      1) {
    return openssl_error("alternative names");
  }
  return ok();
}

// Those of EdDSA bring their own.
const EVP_MD* digest_for(EVP_PKEY* key) {
  const int type = EVP_PKEY_get_base_id(key);
  return type == EVP_PKEY_ED25519 || type == EVP_PKEY_ED448 ? nullptr : EVP_sha256();
}

Result<WallTime> time_of(const ASN1_TIME* time) {
  std::tm fields{};
  if (ASN1_TIME_to_tm(time, &fields) != 1)
    return Error(Code::kInvalid, "a certificate without a readable time");
  return nearest_wall_time(std::chrono::sys_seconds(std::chrono::seconds(timegm(&fields))));
}

Certificate read_certificate(const std::string& text) {
  const Bio bio = read_bio(text);
  Certificate certificate(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
  ERR_clear_error();
  return certificate;
}

// nullptr: not PEM, or it needs a password.
Key read_key(const std::string& text) {
  const Bio bio = read_bio(text);
  Key key(PEM_read_bio_PrivateKey(
      bio.get(), nullptr, [](char*, int, int, void*) { return 0; }, nullptr));
  ERR_clear_error();
  return key;
}

struct Issuer {
  KeyPair texts;
  Certificate certificate;
  Key key;
};

// The last authority that this thread read is kept: one signs for thousands of jobs, and OpenSSL
// takes longer to read a key than to make one and sign. Null: not a pair.
const Issuer* issuer_of(const KeyPair& authority) {
  thread_local Issuer last;
  if (last.key && last.texts == authority) return &last;
  last = {authority, read_certificate(authority.certificate), read_key(authority.private_key)};
  if (last.certificate && last.key &&
      X509_check_private_key(last.certificate.get(), last.key.get()) == 1) {
    return &last;
  }
  ERR_clear_error();
  last = {};
  return nullptr;
}

// A certificate with everything but issuer, extensions and signature.
Result<Certificate> blank(const std::string& common_name, EVP_PKEY* key, WallTime not_before,
                          WallTime not_after) {
  Certificate certificate(X509_new());
  if (!certificate || X509_set_version(certificate.get(), X509_VERSION_3) != 1 ||
      X509_set_pubkey(certificate.get(), key) != 1) {
    return openssl_error("new certificate");
  }
  TRY_OK(set_serial(certificate.get()));
  TRY_OK(set_times(certificate.get(), not_before, not_after));
  TRY_OK(set_common_name(certificate.get(), common_name));
  return certificate;
}

std::string hex(const unsigned char* bytes, std::size_t count) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  out.reserve(2 * count);
  for (std::size_t i = 0; i < count; ++i) {
    out += kDigits[bytes[i] >> 4];
    out += kDigits[bytes[i] & 15];
  }
  return out;
}

const unsigned char* bytes_of(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

}  // namespace

Result<KeyPair> make_authority(const std::string& common_name, WallTime not_before,
                               WallTime not_after) {
  const Key key(EVP_EC_gen("P-256"));
  if (!key) return openssl_error("generating a key");
  TRY(const Certificate certificate, blank(common_name, key.get(), not_before, not_after));
  X509* x = certificate.get();
  if (X509_set_issuer_name(x, X509_get_subject_name(x)) != 1) return openssl_error("issuer");
  TRY_OK(add_extension(x, x, NID_basic_constraints, "critical,CA:TRUE,pathlen:0"));
  TRY_OK(add_extension(x, x, NID_key_usage, "critical,keyCertSign,cRLSign"));
  TRY_OK(add_extension(x, x, NID_subject_key_identifier, "hash"));
  if (X509_sign(x, key.get(), EVP_sha256()) == 0) return openssl_error("signing");
  return to_pem(x, key.get());
}

Result<KeyPair> issue_certificate(const KeyPair& authority, const CertificateRequest& request) {
  const Issuer* issuer = issuer_of(authority);
  if (issuer == nullptr)
    return Error(Code::kInvalid, "the authority is not a PEM certificate and its key");
  if (!request.server && !request.client) {
    return Error(Code::kInvalid, "a certificate is for a server, a client, or both");
  }
  const Key key(EVP_EC_gen("P-256"));
  if (!key) return openssl_error("generating a key");
  TRY(const Certificate certificate,
      blank(request.common_name, key.get(), request.not_before, request.not_after));
  X509* x = certificate.get();
  if (X509_set_issuer_name(x, X509_get_subject_name(issuer->certificate.get())) != 1) {
    return openssl_error("issuer");
  }
  const char* usage = "serverAuth,clientAuth";
  if (!request.client) usage = "serverAuth";
  if (!request.server) usage = "clientAuth";
  TRY_OK(add_extension(x, issuer->certificate.get(), NID_basic_constraints, "critical,CA:FALSE"));
  TRY_OK(add_extension(x, issuer->certificate.get(), NID_key_usage, "critical,digitalSignature"));
  TRY_OK(add_extension(x, issuer->certificate.get(), NID_ext_key_usage, usage));
  TRY_OK(add_extension(x, issuer->certificate.get(), NID_subject_key_identifier, "hash"));
  TRY_OK(add_extension(x, issuer->certificate.get(), NID_authority_key_identifier, "keyid"));
  TRY_OK(add_alternative_names(x, request));
  if (X509_sign(x, issuer->key.get(), digest_for(issuer->key.get())) == 0)
    return openssl_error("signing");
  return to_pem(x, key.get());
}

Result<KeyPair> read_authority(const KeyPair& texts) {
  const Issuer* issuer = issuer_of(texts);
  if (issuer == nullptr) {
    if (!read_certificate(texts.certificate))
      return Error(Code::kInvalid, "the certificate is not PEM");
    if (!read_key(texts.private_key))
      return Error(Code::kInvalid, "the private key is not PEM, or it needs a password");
    return Error(Code::kInvalid, "the private key is not the certificate's");
  }
  X509* certificate = issuer->certificate.get();
  const bool may_sign = (X509_get_key_usage(certificate) & KU_KEY_CERT_SIGN) != 0;
  if (X509_check_ca(certificate) == 0 || !may_sign) {
    return Error(Code::kInvalid,
                 "the certificate is not one of an authority (CA:TRUE, key usage: cert sign)");
  }
  return to_pem(certificate, issuer->key.get());
}

std::string first_dns_name(const X509* certificate) {
  const Names names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; names && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_DNS) continue;
    return {reinterpret_cast<const char*>(ASN1_STRING_get0_data(name->d.dNSName)),
            static_cast<std::size_t>(ASN1_STRING_length(name->d.dNSName))};
  }
  return "";
}

std::string certificate_name(const std::string& certificate) {
  const Certificate parsed = read_certificate(certificate);
  return parsed ? first_dns_name(parsed.get()) : "";
}

Result<Validity> certificate_validity(const std::string& certificate) {
  const Certificate parsed = read_certificate(certificate);
  if (!parsed) return Error(Code::kInvalid, "not a PEM certificate");
  Validity validity;
  TRY(validity.not_before, time_of(X509_get0_notBefore(parsed.get())));
  TRY(validity.not_after, time_of(X509_get0_notAfter(parsed.get())));
  return validity;
}

std::string hmac_sha256_hex(std::string_view key, std::string_view message) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  CHECK(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), bytes_of(message),
             message.size(), digest.data(), &size) != nullptr);
  return hex(digest.data(), size);
}

std::string sha256_hex(std::string_view bytes) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  CHECK(EVP_Digest(bytes.data(), bytes.size(), digest.data(), &size, EVP_sha256(), nullptr) == 1);
  return hex(digest.data(), size);
}

bool equal_secret(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string random_hex(std::size_t bytes) {
  std::string raw(bytes, '\0');
  CHECK(RAND_bytes(reinterpret_cast<unsigned char*>(raw.data()), static_cast<int>(bytes)) == 1);
  return hex(bytes_of(raw), bytes);
}

std::string base64_encode(std::string_view bytes) {
  std::string out((bytes.size() + 2) / 3 * 4 + 1, '\0');  // EVP adds a NUL
  const int size = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data()), bytes_of(bytes),
                                   static_cast<int>(bytes.size()));
  out.resize(static_cast<std::size_t>(size));
  return out;
}

// Standard alphabet with padding (Kubernetes Secrets); line breaks are skipped.
Result<std::string> base64_decode(std::string_view text) {
  std::string compact;
  compact.reserve(text.size());
  for (const char c : text) {
    if (c != '\n' && c != '\r') compact += c;
  }
  const auto invalid = [] { return Error(Code::kInvalid, "not base64"); };
  if (compact.size() % 4 != 0) return invalid();
  std::size_t padding = 0;
  while (padding < 2 && padding < compact.size() && compact[compact.size() - 1 - padding] == '=') {
    ++padding;
  }
  // EVP skips blanks and takes '=' anywhere: both are refused here.
  const std::string_view digits = std::string_view(compact).substr(0, compact.size() - padding);
  const bool clean = digits.find_first_not_of(
                         "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                         "0123456789+/") == std::string_view::npos;
  if (!clean) return invalid();
  std::string out(compact.size() / 4 * 3, '\0');
  const int size = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(out.data()), bytes_of(compact),
                                   static_cast<int>(compact.size()));
  if (size < 0) return invalid();
  out.resize(out.size() - padding);
  return out;
}

}  // namespace rubato::net
