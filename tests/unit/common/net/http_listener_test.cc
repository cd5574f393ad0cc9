#include "common/net/http_listener.h"

#include "tests/unit/common/net/raw_client.h"

#include <future>

#include <gtest/gtest.h>

namespace rubato::net {
namespace {

class HttpListenerTest : public ::testing::Test {
 protected:
  std::string ask(const std::string& request) {
    RawClient client(http_->local());
    client.send(request);
    return client.read_until("");
  }
  static std::string get(const std::string& path) {
    return "GET " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
  }

  ThreadExecutor executor_;
  std::unique_ptr<HttpListener> http_ =
      HttpListener::start(executor_, {"127.0.0.1", 0},
                          {{"/healthz", [] { return HttpResponse{.body = "ok\n"}; }},
                           {"/readyz", [] { return HttpResponse{.status = 503, .body = "no\n"}; }}})
          .value();
};

// A scraper that forgets its connections, say, beside a kubelet's probes.
TEST_F(HttpListenerTest, OneSourceKeepsNobodyElseOut) {
  std::vector<std::unique_ptr<RawClient>> idle;
  for (int i = 0; i < 300; ++i)
    idle.push_back(std::make_unique<RawClient>(http_->local(), "127.0.0.2"));
  EXPECT_TRUE(ask(get("/healthz")).starts_with("HTTP/1.1 200 OK\r\n"));
}

TEST_F(HttpListenerTest, NorDoSomeTogether) {
  std::vector<std::unique_ptr<RawClient>> idle;
  for (int source = 2; source < 10; ++source) {
    const std::string from = "127.0.0." + std::to_string(source);
    for (int i = 0; i < 32; ++i)
      idle.push_back(std::make_unique<RawClient>(http_->local(), from.c_str()));
  }
  EXPECT_TRUE(ask(get("/healthz")).starts_with("HTTP/1.1 200 OK\r\n"));
}

TEST_F(HttpListenerTest, AnswersByPath) {
  const std::string good = ask(get("/healthz?verbose"));
  EXPECT_TRUE(good.starts_with("HTTP/1.1 200 OK\r\n")) << good;
  EXPECT_TRUE(good.ends_with("\r\n\r\nok\n")) << good;
  EXPECT_TRUE(ask(get("/readyz")).starts_with("HTTP/1.1 503 "));
  EXPECT_TRUE(ask(get("/nope")).starts_with("HTTP/1.1 404 "));
  EXPECT_TRUE(ask("POST /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                  .starts_with("HTTP/1.1 405 "));
  const std::string head = ask("HEAD /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_NE(head.find("Content-Length: 3\r\n"), std::string::npos) << head;
  EXPECT_TRUE(head.ends_with("\r\n\r\n")) << head;
}

TEST_F(HttpListenerTest, KeepsAConnection) {
  RawClient client(http_->local());
  for (int i = 0; i < 3; ++i) {
    client.send("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n");
    EXPECT_TRUE(client.read_until("ok\n").starts_with("HTTP/1.1 200"));
  }
}

TEST_F(HttpListenerTest, RefusesNonsenseAndTooMuch) {
  EXPECT_TRUE(ask("nonsense\r\n\r\n").starts_with("HTTP/1.1 400 "));
  EXPECT_TRUE(ask("GET / HTTP/1.1\r\nX: " + std::string(32 * 1024, 'x')).starts_with("HTTP/1.1 4"));
}

TEST_F(HttpListenerTest, BoundsConnectionsAndEndsWithThemOpen) {
  std::vector<std::unique_ptr<RawClient>> mute;
  for (int i = 0; i < 64; ++i) mute.push_back(std::make_unique<RawClient>(http_->local()));
  EXPECT_EQ(ask(get("/healthz")), "");
  http_.reset();
}

TEST_F(HttpListenerTest, ASharedBodyIsSentAsItIs) {
  const auto body = std::make_shared<const std::string>(1 << 20, 'x');
  http_ = HttpListener::start(executor_, {"127.0.0.1", 0},
                              {{"/big", [&] { return HttpResponse{.shared_body = body}; }}})
              .value();
  EXPECT_TRUE(ask(get("/big")).ends_with("\r\n\r\n" + *body));
}

TEST_F(HttpListenerTest, WhoIsNotAdmittedGetsTheRefusalHoweverLate) {
  HttpOptions::Decide later;
  std::promise<void> asked;
  HttpOptions options;
  options.admit = [&](const HttpRequest& request, HttpOptions::Decide done) {
    EXPECT_EQ(request.path, "/x");
    if (request.authorization == "good") return done(std::nullopt);
    later = std::move(done);
    asked.set_value();
  };
  http_ = HttpListener::start(executor_, {"127.0.0.1", 0},
                              {{"/x", [] { return HttpResponse{.body = "secret"}; }}}, options)
              .value();
  EXPECT_TRUE(
      ask("GET /x?y HTTP/1.1\r\nHost: x\r\nAuthorization: good\r\nConnection: close\r\n\r\n")
          .ends_with("secret"));
  RawClient client(http_->local());
  client.send(get("/x"));
  asked.get_future().wait();
  later(HttpResponse{.status = 401, .body = "who are you?"});
  const std::string refused = client.read_until("");
  EXPECT_TRUE(refused.starts_with("HTTP/1.1 401 ")) << refused;
  EXPECT_NE(refused.find("WWW-Authenticate: Bearer"), std::string::npos);
  EXPECT_EQ(refused.find("secret"), std::string::npos);
}

TEST_F(HttpListenerTest, AWordThatComesAfterTheListenerIsLost) {
  HttpOptions::Decide later;
  std::promise<void> asked;
  HttpOptions options;
  options.admit = [&](const HttpRequest&, HttpOptions::Decide done) {
    later = std::move(done);
    asked.set_value();
  };
  http_ = HttpListener::start(executor_, {"127.0.0.1", 0}, {}, options).value();
  RawClient client(http_->local());
  client.send(get("/x"));
  asked.get_future().wait();
  http_.reset();
  later(std::nullopt);
  EXPECT_EQ(client.read_until(""), "");
}

TEST_F(HttpListenerTest, WithACertificateOnlyTlsIsAnswered) {
  const auto now = executor_.clock().wall();
  const KeyPair authority = make_authority("a", now - 1h, now + 1h).value();
  HttpOptions options;
  options.certificate = [&] {
    return issue_certificate(
        authority,
        {.common_name = "m", .dns_names = {"m"}, .not_before = now - 1h, .not_after = now + 1h});
  };
  http_ = HttpListener::start(executor_, {"127.0.0.1", 0},
                              {{"/x", [] { return HttpResponse{.body = "secret"}; }}}, options)
              .value();
  EXPECT_EQ(ask(get("/x")).find("secret"), std::string::npos);
  options.certificate = [] { return Result<KeyPair>(Error(Code::kNotFound, "no tls.crt")); };
  EXPECT_EQ(HttpListener::start(executor_, {"127.0.0.1", 0}, {}, options).error().code(),
            Code::kNotFound);
}

TEST_F(HttpListenerTest, ATakenPortIsSaid) {
  EXPECT_EQ(HttpListener::start(executor_, http_->local(), {}).error().code(), Code::kUnavailable);
  EXPECT_EQ(HttpListener::start(executor_, {"x", 0}, {}).error().code(), Code::kInvalid);
}

}  // namespace
}  // namespace rubato::net
