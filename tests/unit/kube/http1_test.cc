#include "kube/http1.h"

#include "common/rng.h"
#include "kube/rest_url.h"
#include "scripted_server.h"

#include <gtest/gtest.h>

namespace rubato::kube {
namespace {

TEST(Http1, ChunkedAtEveryCut) {
  const std::string text = "HTTP/1.1 100 Continue\r\n\r\n" + chunked_head() + chunk("{\"a\":1}\n") +
                           chunk(std::string(300, 'x')) +
                           "3;ext=1\r\nabc\r\n0\r\nTrailer: t\r\n\r\n";
  const std::string expected = "{\"a\":1}\n" + std::string(300, 'x') + "abc";
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    Http1Decoder decoder;
    std::string body;
    ASSERT_TRUE(decoder.feed(std::string_view(text).substr(0, cut), body).ok()) << cut;
    ASSERT_TRUE(decoder.feed(std::string_view(text).substr(cut), body).ok()) << cut;
    EXPECT_TRUE(decoder.is_complete());
    EXPECT_EQ(decoder.status(), 200);
    EXPECT_EQ(decoder.header("transfer-encoding"), "chunked");
    EXPECT_EQ(body, expected) << cut;
  }
}

TEST(Http1, LengthAndClose) {
  Http1Decoder length;
  std::string body;
  ASSERT_TRUE(length.feed(http_answer(404, "gone"), body).ok());
  EXPECT_TRUE(length.is_complete());
  EXPECT_EQ(length.status(), 404);
  EXPECT_EQ(body, "gone");
  EXPECT_FALSE(length.feed("more", body).ok());

  Http1Decoder until_close;
  body.clear();
  ASSERT_TRUE(until_close.feed("HTTP/1.0 200 OK\r\n\r\nabc", body).ok());
  EXPECT_FALSE(until_close.is_complete());
  EXPECT_TRUE(until_close.end().ok());
  EXPECT_EQ(body, "abc");

  Http1Decoder torn;
  ASSERT_TRUE(torn.feed(chunked_head() + "5\r\nab", body).ok());
  EXPECT_EQ(torn.end().error().code(), Code::kUnavailable);
}

TEST(Http1, BrokenAnswersAreRefused) {
  for (const std::string& text :
       {std::string("SSH-2.0-x\r\n\r\n"), std::string("\r\n\r\n"), chunked_head() + "zz\r\n",
        chunked_head() + "2\r\nabcd\r\n", chunked_head() + "ffffffffffffffffff\r\n",
        std::string("HTTP/1.1 200 OK\r\nno colon\r\n\r\n"),
        std::string("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"),
        "HTTP/1.1 200 OK\r\nX: " + std::string(kHttpHeadBytesMax, 'x')}) {
    Http1Decoder decoder;
    std::string body;
    EXPECT_FALSE(decoder.feed(text, body).ok()) << text.substr(0, 60);
  }
}

// Random damage must never crash nor take memory beyond the input's size.
TEST(Http1Property, DamagedInputIsHarmless) {
  const std::string text = chunked_head() + chunk(std::string(100, 'x')) + last_chunk();
  for (std::uint64_t seed = 1; seed <= 3000; ++seed) {
    Rng rng(seed);
    std::string damaged = text;
    for (int i = 0; i < 3; ++i)
      damaged[rng.below(damaged.size())] = static_cast<char>(rng.below(256));
    Http1Decoder decoder;
    std::string body;
    std::string_view rest = damaged;
    while (!rest.empty()) {
      const auto count = std::min<std::size_t>(rest.size(), 1 + rng.below(20));
      if (!decoder.feed(rest.substr(0, count), body).ok()) break;
      rest.remove_prefix(count);
    }
    ASSERT_LE(body.size(), damaged.size()) << "seed " << seed;
  }
}

TEST(RestUrl, Servers) {
  const auto plain = parse_server_url("https://10.0.0.1:6443/k8s/c1/");
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain->host, "10.0.0.1");
  EXPECT_EQ(plain->port, 6443);
  EXPECT_EQ(plain->prefix, "/k8s/c1");
  EXPECT_EQ(authority_of(*plain), "10.0.0.1:6443");
  const auto v6 = parse_server_url("https://[fd00::1]:6443");
  ASSERT_TRUE(v6.ok());
  EXPECT_EQ(authority_of(*v6), "[fd00::1]:6443");
  EXPECT_EQ(authority_of(*parse_server_url("https://api.example")), "api.example");
  EXPECT_TRUE(parse_server_url("http://127.0.0.1:8001").ok());
  EXPECT_TRUE(parse_server_url("http://localhost:8001").ok());
  for (const char* bad :
       {"http://10.0.0.1", "http://localhost.example", "ftp://x", "10.0.0.1", "https://",
        "https://x:0", "https://x:99999", "https://x:1x", "https://[::1",
        "http://127.0.0.1.example", "https://[10.0.0.1]", "https://[fe80::1%25eth0]:6443"})
    EXPECT_FALSE(parse_server_url(bad).ok()) << bad;
}

TEST(RestUrl, PathsAndQueries) {
  EXPECT_EQ(collection_path(types::kPod, ""), "/api/v1/pods");
  EXPECT_EQ(collection_path(types::kLease, "a"),
            "/apis/coordination.k8s.io/v1/namespaces/a/leases");
  EXPECT_EQ(collection_path(types::kNode, "ignored"), "/api/v1/nodes");
  EXPECT_EQ(object_path(types::kPod, Key{"a", "p/../q"}, "status"),
            "/api/v1/namespaces/a/pods/p%2F..%2Fq/status");
  ListOptions list;
  list.label_selector = "a in (b, c)";
  list.limit = 5;
  list.resource_version = "7";
  EXPECT_EQ(encode_query(list_query(list)),
            "?labelSelector=a%20in%20%28b%2C%20c%29&limit=5&resourceVersion=7");
  list.continue_token = "t==";
  EXPECT_EQ(encode_query(list_query(list)),
            "?labelSelector=a%20in%20%28b%2C%20c%29&limit=5&continue=t%3D%3D");
}

}  // namespace
}  // namespace rubato::kube
