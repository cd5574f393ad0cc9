// RestClient against a scripted server on loopback: who is trusted over TLS.
#include "common/free_with.h"
#include "kube/errors.h"
#include "kube/tls_client.h"
#include "rest_fixture.h"

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <openssl/evp.h>
#include <openssl/pem.h>

namespace rubato::kube {
namespace {

struct RestTls : Rest {
  RestTls() {
    options.limits.timeout = std::chrono::seconds(60);
    const WallTime now = SystemClock().wall();
    authority = net::make_authority("test", now - 1h, now + 24h).value();
    stranger = net::make_authority("stranger", now - 1h, now + 24h).value();
    net::CertificateRequest request;
    request.common_name = "server";
    request.not_before = now - 1h;
    request.not_after = now + 24h;
    request.ip_addresses = {"127.0.0.1"};
    by_address = net::issue_certificate(authority, request).value();
    request.ip_addresses.clear();
    request.dns_names = {"api.test"};
    by_name = net::issue_certificate(authority, request).value();
  }
  // Whether a unary request and a watch get through; they must agree.
  Code ask(const ScriptedServer& server, const std::function<void(RestConfig&)>& change) {
    RestConfig config;
    config.server = secure(server);
    config.credentials.authority.text = authority.certificate;
    change(config);
    const auto client = connect(config);
    const auto unary = client->get(types::kPod, {"a", "p"}, "");
    const auto watch = client->watch(types::kPod, "", {});
    EXPECT_EQ(unary.ok(), watch.ok()) << (unary.ok() ? watch.error() : unary.error()).to_string();
    return unary.ok() ? Code::kCancelled : unary.error().code();  // kCancelled stands for "fine"
  }
  static constexpr Code kFine = Code::kCancelled;
  net::KeyPair authority;
  net::KeyPair stranger;
  net::KeyPair by_address;
  net::KeyPair by_name;
  ScriptedServer::Script script = answering([](const std::string& request) {
    return request.find("watch=1") == std::string::npos ? http_answer(200, pod("p", 1))
                                                        : chunked_head();
  });
};

TEST_F(RestTls, ServersAreVerified) {
  ScriptedServer right(script, by_address);
  EXPECT_EQ(ask(right, [](RestConfig&) {}), kFine);
  EXPECT_EQ(
      ask(right,
          [&](RestConfig& config) { config.credentials.authority.text = stranger.certificate; }),
      Code::kUnavailable);
  EXPECT_EQ(ask(right,
                [&](RestConfig& config) {
                  config.credentials.authority.text = stranger.certificate;
                  config.insecure_skip_tls_verify = true;
                }),
            kFine);
  EXPECT_EQ(ask(right, [](RestConfig& config) { config.tls_server_name = "api.test"; }),
            Code::kUnavailable);
  ScriptedServer named(script, by_name);
  EXPECT_EQ(ask(named, [](RestConfig&) {}), Code::kUnavailable);  // an IP that it does not carry
  EXPECT_EQ(ask(named, [](RestConfig& config) { config.tls_server_name = "api.test"; }), kFine);
}

// As in_cluster_config() gives it in a pod of a cluster without IPv4.
TEST_F(RestTls, ServersOfIpv6AreVerified) {
  if (!ScriptedServer::has_ipv6()) GTEST_SKIP() << "::1 cannot be listened on here";
  net::CertificateRequest request;
  request.common_name = "server";
  request.not_before = SystemClock().wall() - 1h;
  request.not_after = SystemClock().wall() + 24h;
  request.ip_addresses = {"::1"};
  const auto over = [](const ScriptedServer& server, const std::string& name = "") {
    return [&server, name](RestConfig& config) {
      config.server = "https://[::1]:" + std::to_string(server.port());
      config.tls_server_name = name;
    };
  };
  ScriptedServer right(script, net::issue_certificate(authority, request).value(), "", "::1");
  EXPECT_EQ(ask(right, over(right)), kFine);
  EXPECT_EQ(ask(right, over(right, "::2")), Code::kUnavailable);
  ScriptedServer other(script, by_address, "", "::1");
  EXPECT_EQ(ask(other, over(other)), Code::kUnavailable);
  ScriptedServer named(script, by_name, "", "::1");
  EXPECT_EQ(ask(named, over(named, "api.test")), kFine);
}

TEST_F(RestTls, ARefusedCertificateSaysWhy) {
  net::CertificateRequest past;
  past.common_name = "api";
  past.ip_addresses = {"127.0.0.1"};
  past.not_before = SystemClock().wall() - 2h;
  past.not_after = SystemClock().wall() - 1h;
  ScriptedServer expired(script, net::issue_certificate(authority, past).value());
  ScriptedServer named(script, by_name);
  ScriptedServer right(script, by_address);
  const auto says = [&](const ScriptedServer& server, const net::KeyPair& trusted,
                        const std::string& words) {
    RestConfig config;
    config.server = secure(server);
    config.credentials.authority.text = trusted.certificate;
    const auto client = connect(config);
    const auto unary = client->get(types::kPod, {"a", "p"}, "");
    const auto watch = client->watch(types::kPod, "", {});
    for (const std::string& text : {unary.error().what(), watch.error().what()}) {
      EXPECT_NE(text.find("the server's certificate is refused: "), std::string::npos) << text;
      EXPECT_NE(text.find(words), std::string::npos) << text;
    }
  };
  says(expired, authority, "certificate has expired");
  says(named, authority, "IP address mismatch");
  says(right, stranger, "unable to get local issuer certificate");
}

TEST_F(RestTls, ClientCertificates) {
  ScriptedServer server(script, by_address, authority.certificate);
  EXPECT_NE(ask(server, [](RestConfig&) {}), kFine);
  EXPECT_EQ(ask(server,
                [&](RestConfig& config) {
                  config.credentials.certificate.text = by_name.certificate;
                  config.credentials.private_key.text = by_name.private_key;
                }),
            kFine);
}

TEST_F(RestTls, NobodyIsAskedForThePasswordOfAClientsKey) {
  const std::unique_ptr<EVP_PKEY, FreeWith<EVP_PKEY_free>> key(EVP_EC_gen("P-256"));
  const std::unique_ptr<BIO, FreeWith<BIO_free_all>> out(BIO_new(BIO_s_mem()));
  std::string password = "secret";
  ASSERT_EQ(PEM_write_bio_PKCS8PrivateKey(out.get(), key.get(), EVP_aes_256_cbc(), password.data(),
                                          static_cast<int>(password.size()), nullptr, nullptr),
            1);
  char* bytes = nullptr;
  const long size = BIO_get_mem_data(out.get(), &bytes);
  Credential credential;
  credential.certificate = by_name.certificate;
  credential.private_key.assign(bytes, static_cast<std::size_t>(size));
  const std::unique_ptr<SSL_CTX, FreeWith<SSL_CTX_free>> context(SSL_CTX_new(TLS_client_method()));
  const Status refused = configure_tls(context.get(), credential, true);
  ASSERT_FALSE(refused.ok());
  EXPECT_TRUE(
      refused.error().what().starts_with("client key, which has to be PEM without a password: "))
      << refused.error().what();
}

// The connection in the pool was opened with the one of before, and the server goes on refusing it.
TEST_F(RestTls, AClientCertificateThatWasReplacedIsShownOnANewConnection) {
  std::atomic<int> opened{0};
  ScriptedServer server(
      [&](ScriptedServer::Connection& connection) {
        const bool is_first = opened++ == 0;
        for (int answered = 0; !connection.read_request().empty(); ++answered)
          connection.write(is_first && answered > 0
                               ? http_answer(401, json::dump(make_status(401, "Unauthorized", "x")))
                               : http_answer(200, pod("p", 1)));
      },
      by_address, authority.certificate);
  std::string folder = (std::filesystem::temp_directory_path() / "rubato-tls-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::string certificate = folder + "/tls.crt", key = folder + "/tls.key";
  const auto put = [&](const net::KeyPair& pair) {
    std::ofstream(certificate) << pair.certificate;
    std::ofstream(key) << pair.private_key;
  };
  put(by_name);
  RestConfig config;
  config.server = secure(server);
  config.credentials.authority.text = authority.certificate;
  config.credentials.certificate.file = certificate;
  config.credentials.private_key.file = key;
  const auto client = connect(config);
  ASSERT_TRUE(client->get(types::kPod, {"a", "p"}, "").ok());
  put(by_address);
  const auto again = client->get(types::kPod, {"a", "p"}, "");
  EXPECT_TRUE(again.ok()) << again.error().to_string();
  EXPECT_EQ(server.connections(), 2);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace rubato::kube
