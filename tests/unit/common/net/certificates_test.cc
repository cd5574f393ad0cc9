#include "common/net/certificates.h"

#include "tests/unit/common/net/long_lived_authority.h"

#include <gtest/gtest.h>

namespace rubato::net {
namespace {

const WallTime kNow = WallTime(std::chrono::seconds(1'800'000'000));

TEST(Certificates, AnAuthorityIssues) {
  const KeyPair authority = make_authority("rubato", kNow, kNow + 24h).value();
  const auto issued = issue_certificate(authority, {.common_name = "job",
                                                    .dns_names = {"a.svc", "b"},
                                                    .ip_addresses = {"127.0.0.1", "::1"},
                                                    .not_before = kNow,
                                                    .not_after = kNow + 1h});
  ASSERT_TRUE(issued.ok());
  EXPECT_EQ(issued->certificate.rfind("-----BEGIN CERTIFICATE-----", 0), 0u);
  EXPECT_NE(issued->private_key.find("PRIVATE KEY-----"), std::string::npos);
}

TEST(Certificates, RefusesBadRequests) {
  const KeyPair authority = make_authority("rubato", kNow, kNow + 24h).value();
  const CertificateRequest good{.common_name = "job", .not_before = kNow, .not_after = kNow + 1h};
  CertificateRequest bad = good;
  bad.ip_addresses = {"localhost"};
  EXPECT_EQ(issue_certificate(authority, bad).error().code(), Code::kInvalid);
  bad = good;
  bad.not_after = kNow;
  EXPECT_EQ(issue_certificate(authority, bad).error().code(), Code::kInvalid);
  bad = good;
  bad.common_name = "";
  EXPECT_EQ(issue_certificate(authority, bad).error().code(), Code::kInvalid);
  bad = good;
  bad.server = bad.client = false;
  EXPECT_EQ(issue_certificate(authority, bad).error().code(), Code::kInvalid);
  const KeyPair other = make_authority("other", kNow, kNow + 24h).value();
  const KeyPair mixed{authority.certificate, other.private_key};
  EXPECT_EQ(issue_certificate(mixed, good).error().code(), Code::kInvalid);
  EXPECT_EQ(issue_certificate({"x", "y"}, good).error().code(), Code::kInvalid);
}

TEST(Certificates, AnAuthorityOfOthersMustBeOne) {
  const KeyPair good = make_authority("theirs", kNow, kNow + 24h).value();
  const CertificateRequest request{
      .common_name = "leaf", .not_before = kNow, .not_after = kNow + 1h};
  const KeyPair leaf = issue_certificate(good, request).value();
  const auto read = read_authority({good.certificate + leaf.certificate, good.private_key});
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->certificate, good.certificate) << "the first of a chain";
  EXPECT_EQ(certificate_validity(good.certificate)->not_after, kNow + 24h);
  EXPECT_EQ(certificate_validity(good.certificate)->not_before, kNow);
  for (const KeyPair& bad : {leaf, KeyPair{good.certificate, leaf.private_key},
                             KeyPair{"", good.private_key}, KeyPair{good.certificate, "x"}})
    EXPECT_EQ(read_authority(bad).error().code(), Code::kInvalid);
  EXPECT_FALSE(certificate_validity("x").ok());
}

// RFC 5280 has 9999-12-31 for what has no end; others write a thousand years.
TEST(Certificates, AnEndThatIsOutOfReachIsReadAsTheLastTime) {
  for (const char* end : {"99991231235959Z", "30260101000000Z"}) {
    const KeyPair authority = long_lived_authority(kNow, end);
    ASSERT_TRUE(read_authority(authority).ok());
    const auto validity = certificate_validity(authority.certificate);
    ASSERT_TRUE(validity.ok());
    EXPECT_EQ(validity->not_before, kNow);
    EXPECT_EQ(validity->not_after, kLastTime) << to_rfc3339(validity->not_after);
  }
}

// FIPS 180-4 and RFC 4231 (test case 2).
TEST(Certificates, DigestsMatchPublishedVectors) {
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hmac_sha256_hex("Jefe", "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_TRUE(equal_secret("abc", "abc"));
  EXPECT_FALSE(equal_secret("abc", "abd"));
  EXPECT_FALSE(equal_secret("abc", "ab"));
  EXPECT_EQ(random_hex(16).size(), 32u);
  EXPECT_NE(random_hex(16), random_hex(16));
}

TEST(Certificates, Base64) {
  const struct {
    const char *plain, *coded;
  } cases[] = {{"", ""},
               {"f", "Zg=="},
               {"fo", "Zm8="},
               {"foo", "Zm9v"},
               {"foob", "Zm9vYg=="},
               {"fooba", "Zm9vYmE="},
               {"foobar", "Zm9vYmFy"}};
  for (const auto& c : cases) {
    EXPECT_EQ(base64_encode(c.plain), c.coded);
    EXPECT_EQ(base64_decode(c.coded).value(), c.plain);
  }
  const std::string bytes("\0\xff\0\x80", 4);
  EXPECT_EQ(base64_decode(base64_encode(bytes)).value(), bytes);
  EXPECT_EQ(base64_decode("Zm9v\nYmFy\n").value(), "foobar");
  for (const char* bad :
       {"Z", "Zg", "Zg=", "Zm9v====", "Z===", "Zm 9", "Zg==Zg==", "Zm9-", "===="}) {
    EXPECT_FALSE(base64_decode(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace rubato::net
